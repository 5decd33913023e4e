package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// The names that a run uses on Redis, after its prefix.
const (
	counterKey  = "counter"
	counterLock = "counter-lock"
	nestedLock  = "nested"
	jobLock     = "long-job"
	forcedLock  = "forced"
	busyLock    = "busy"
)

// server is the Redis of a run.
type server struct {
	label  string
	addr   string
	prefix string        // of every name, so that runs on a shared Redis do not meet
	rdb    *redis.Client // to look at the keys
	stop   func()        // ends an embedded one
}

// connect returns the Redis at addr, or an embedded one if addr is empty.
func connect(ctx context.Context, addr string) (*server, error) {
	s := &server{
		label:  "Redis at " + addr,
		addr:   addr,
		prefix: fmt.Sprintf("relock-quickstart-%08x:", rand.Uint32()),
		stop:   func() {},
	}
	if addr == "" {
		mini, err := miniredis.Run()
		if err != nil {
			return nil, err
		}
		mini.ClockTTL(true) // keys expire as time passes, as on a real Redis
		s.label, s.addr, s.stop = "an embedded miniredis", mini.Addr(), mini.Close
	}
	if err := reach(ctx, s.addr); err != nil {
		s.stop()
		return nil, fmt.Errorf("cannot use the Redis at %s: %w", s.addr, err)
	}
	s.rdb = redis.NewClient(&redis.Options{Addr: s.addr})
	return s, nil
}

// reach checks that Redis answers. It dials by itself first: go-redis would log every one
// of its attempts.
func reach(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	conn.Close()
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	defer rdb.Close()
	return rdb.Ping(ctx).Err()
}

// keys are all that a run may write.
func (s *server) keys() []string {
	var keys []string
	for _, name := range []string{counterKey, counterLock, nestedLock, jobLock, forcedLock, busyLock} {
		keys = append(keys, s.prefix+name)
	}
	return keys
}

// close removes what a run that was cut short has left behind.
func (s *server) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	s.rdb.Del(ctx, s.keys()...)
	err := s.rdb.Close()
	s.stop()
	return err
}
