package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/redistest"
)

// kind is a kind of deployment of Redis.
type kind string

const (
	standalone kind = "standalone" // one server that keeps nothing on disk
	persistent kind = "aof"        // one that writes every command to disk before it answers
	skewed     kind = "clock"      // one whose clock can be set
	cluster    kind = "cluster"    // three masters with a replica each
	sentinel   kind = "sentinel"   // a master with two replicas and three sentinels
	quorum     kind = "quorum"     // five independent masters that keep nothing on disk
	apart      kind = "clocks"     // such a quorum whose clocks are far apart
)

// votes reports whether locks of the kind are those of a quorum.
func (k kind) votes() bool { return k == quorum || k == apart }

const masterName = redistest.MasterName

// masters is how many there are of a quorum: two may be missing.
const masters = 5

// deployment is what Redis runs on.
type deployment struct {
	kind     kind
	servers  []*redistest.Server // those that keep data
	cluster  *redistest.Cluster
	sentinel *redistest.Sentinel
	clock    *clock
	clocks   []*clock // of a quorum

	failedOver time.Time // when a replica took over last
}

func deploy(k kind) (*deployment, error) {
	d := &deployment{kind: k}
	var err error
	switch k {
	case cluster:
		if d.cluster, err = redistest.StartCluster(); err == nil {
			d.servers = d.cluster.Nodes
		}
	case sentinel:
		if d.sentinel, err = redistest.StartSentinel(); err == nil {
			d.servers = d.sentinel.Nodes
		}
	case persistent:
		err = d.serve("--appendonly", "yes", "--appendfsync", "always")
	case skewed:
		if d.clock, err = newClock(); err == nil {
			err = d.clock.with(func() error { return d.serve() })
		}
	case quorum:
		for range masters {
			err = errors.Join(err, d.serve())
		}
	case apart:
		for i := range masters {
			err = errors.Join(err, d.serveAt(time.Duration(i-masters/2)*20*time.Second))
		}
	default:
		err = d.serve()
	}
	if err != nil {
		d.close()
		return nil, fmt.Errorf("deployment %s: %w", k, err)
	}
	return d, nil
}

func (d *deployment) serve(args ...string) error {
	s, err := redistest.StartServer("", args...)
	if err == nil {
		d.servers = append(d.servers, s)
	}
	return err
}

// serveAt is serve by a clock that is so far ahead.
func (d *deployment) serveAt(ahead time.Duration) error {
	c, err := newClock()
	if err != nil {
		return err
	}
	d.clocks = append(d.clocks, c)
	return errors.Join(c.shift(ahead), c.with(func() error { return d.serve() }))
}

func (d *deployment) close() {
	switch {
	case d.cluster != nil:
		d.cluster.Close()
	case d.sentinel != nil:
		d.sentinel.Close()
	default:
		for _, s := range d.servers {
			s.Close()
		}
	}
	d.clock.close()
	for _, c := range d.clocks {
		c.close()
	}
}

// relayed are the servers that clients connect to.
func (d *deployment) relayed() []*redistest.Server {
	if d.sentinel != nil {
		return append(d.servers[:len(d.servers):len(d.servers)], d.sentinel.Sentinels...)
	}
	return d.servers
}

// entrances are the addresses that a client is given.
func (d *deployment) entrances() []string {
	servers := d.servers
	if d.sentinel != nil {
		servers = d.sentinel.Sentinels
	}
	addrs := make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = s.Addr
	}
	return addrs
}

// master returns the server that keeps the key.
func (d *deployment) master(ctx context.Context, key string) (*redistest.Server, error) {
	switch {
	case d.cluster != nil:
		return d.cluster.Master(ctx, key)
	case d.sentinel != nil:
		return d.sentinel.Master(ctx)
	}
	return d.servers[0], nil
}

// ready waits until the deployment is as good as new.
func (d *deployment) ready(ctx context.Context) error {
	switch {
	case d.cluster != nil:
		return d.cluster.AwaitReady(ctx)
	case d.sentinel != nil:
		return d.sentinel.AwaitReady(ctx)
	}
	var err error
	for _, s := range d.servers {
		err = errors.Join(err, d.do(ctx, s, "ping"))
	}
	return err
}

// do sends one command to a server, past all relays.
func (d *deployment) do(ctx context.Context, s *redistest.Server, args ...any) error {
	_, err := d.ask(ctx, s, args...)
	return err
}

// ask is do with the answer.
func (d *deployment) ask(ctx context.Context, s *redistest.Server, args ...any) (answer any, err error) {
	err = d.with(ctx, s, func(ask func(...any) (any, error)) error {
		answer, err = ask(args...)
		return err
	})
	return answer, err
}

// with has several commands run on one connection.
func (d *deployment) with(ctx context.Context, s *redistest.Server, fn func(ask func(...any) (any, error)) error) error {
	rdb := redis.NewClient(&redis.Options{
		Addr: s.Addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1, ReadTimeout: 10 * time.Second,
	})
	defer rdb.Close()
	conn := rdb.Conn()
	defer conn.Close()
	return fn(func(args ...any) (any, error) {
		answer, err := conn.Do(ctx, args...).Result()
		if err != nil && err != redis.Nil {
			return nil, fmt.Errorf("%s: %v: %w", s.Addr, args[:min(2, len(args))], err)
		}
		return answer, nil
	})
}

// left returns the keys of locks that exist, on any server that is a master.
func (d *deployment) left(ctx context.Context) ([]string, error) {
	var left []string
	for _, s := range d.servers {
		role, err := d.ask(ctx, s, "info", "replication")
		if err != nil {
			return nil, err
		}
		if !strings.Contains(fmt.Sprint(role), "role:master") {
			continue
		}
		keys, err := d.ask(ctx, s, "keys", "*")
		if err != nil {
			return nil, err
		}
		for _, key := range keys.([]any) {
			if name := fmt.Sprint(key); !strings.HasPrefix(name, "redisson_lock_token:") { // counters live for a day
				left = append(left, name)
			}
		}
	}
	return left, nil
}
