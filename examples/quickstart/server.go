package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
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
	callPermits = "call-permits"
)

// quorumNodes is how many embedded Redis servers make a quorum.
const quorumNodes = 3

// server is the Redis of a run, or those of a quorum.
type server struct {
	label  string
	addrs  []string
	prefix string          // of every name, so that runs on a shared Redis do not meet
	rdbs   []*redis.Client // to look at the keys; the first is also the services' store
	stops  []func()        // end embedded ones
}

// connect returns the Redis at addr, or an embedded one if addr is empty. A quorum may have
// several, with commas between the addresses.
func connect(ctx context.Context, addr string, quorum bool) (*server, error) {
	s := &server{
		label:  "Redis at " + addr,
		addrs:  strings.Split(addr, ","),
		prefix: fmt.Sprintf("relock-quickstart-%08x:", rand.Uint32()),
	}
	switch {
	case addr == "" && quorum:
		s.label = fmt.Sprintf("%d embedded miniredis", quorumNodes)
		s.addrs = make([]string, quorumNodes)
	case addr == "":
		s.label = "an embedded miniredis"
	case len(s.addrs) > 1 && !quorum:
		return nil, fmt.Errorf("%d addresses: only -kind quorum takes several", len(s.addrs))
	}
	for i := range s.addrs {
		if err := s.open(ctx, i); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	return s, nil
}

// open connects to number i, which it starts if it has no address.
func (s *server) open(ctx context.Context, i int) error {
	if s.addrs[i] == "" {
		mini, err := miniredis.Run()
		if err != nil {
			return err
		}
		mini.ClockTTL(true) // keys expire as time passes, as on a real Redis
		s.addrs[i], s.stops = mini.Addr(), append(s.stops, mini.Close)
	}
	if err := reach(ctx, s.addrs[i]); err != nil {
		return fmt.Errorf("cannot use the Redis at %s: %w", s.addrs[i], err)
	}
	s.rdbs = append(s.rdbs, redis.NewClient(&redis.Options{Addr: s.addrs[i]}))
	return nil
}

// left counts the keys of this run.
func (s *server) left(ctx context.Context) (int64, error) {
	var all int64
	for _, rdb := range s.rdbs {
		n, err := rdb.Exists(ctx, s.keys()...).Result()
		if err != nil {
			return 0, err
		}
		all += n
	}
	return all, nil
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
	for _, name := range []string{counterKey, counterLock, nestedLock, jobLock, forcedLock, busyLock, callPermits} {
		keys = append(keys, s.prefix+name)
	}
	return keys
}

// close removes what a run that was cut short has left behind.
func (s *server) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var errs []error
	for _, rdb := range s.rdbs {
		rdb.Del(ctx, s.keys()...)
		errs = append(errs, rdb.Close())
	}
	for _, stop := range s.stops {
		stop()
	}
	return errors.Join(errs...)
}
