package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

// demo is one run: a Redis, the services that use it, and the timeline they are seen on.
type demo struct {
	*timeline
	server   *server
	workers  []*service
	operator *service
}

func newDemo(ctx context.Context, out io.Writer, addr, kind string) (*demo, error) {
	if kinds[kind] == nil {
		return nil, fmt.Errorf("no kind of lock: %q; there are %s", kind, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	}
	srv, err := connect(ctx, addr, kind == "quorum")
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "relock quickstart on %s\n", srv.label)
	d := &demo{timeline: newTimeline(out), server: srv}
	for i := range 4 {
		w, err := start(srv, fmt.Sprintf("worker-%d", i+1), kind)
		if err != nil {
			return nil, errors.Join(err, d.close())
		}
		d.workers = append(d.workers, w)
	}
	if d.operator, err = start(srv, "operator", kind); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *demo) close() error {
	var errs []error
	for _, s := range append(d.workers, d.operator) {
		if s != nil {
			errs = append(errs, s.stop())
		}
	}
	return errors.Join(append(errs, d.server.close())...)
}

// checkNothingLeft looks for every key of this run. A lock on a quorum is released when
// most nodes have confirmed it. The others may take a moment longer, limit at most.
func (d *demo) checkNothingLeft(ctx context.Context, limit time.Duration) error {
	for end := time.Now().Add(limit); ; {
		n, err := d.server.left(ctx)
		if err != nil || n == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d keys are left on Redis", n)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

const aMoment = 5 * time.Second // less even on a busy machine

// service stands for a process of its own: it has its own Redis clients, and one relock
// client on them.
type service struct {
	name  string
	rdb   *redis.Client // of its data
	rdbs  []redis.UniversalClient
	locks *relock.Client
	kind  string // of its locks
}

// mutex is what the demo does with a lock: a *relock.Mutex, or the side of a *relock.RWMutex
// that writes.
type mutex interface {
	locker
	TryLock(ctx context.Context) (bool, error)
	Do(ctx context.Context, fn func(ctx context.Context) error) error
	Context(ctx context.Context) context.Context
	HoldCount() int
	ForceUnlock(ctx context.Context) (bool, error)
	State(ctx context.Context) (relock.State, error)
}

// kinds are the kinds of lock, as handles of one name, or of two that are held together.
var kinds = map[string]func(c *relock.Client, name string, opts ...relock.MutexOption) mutex{
	"plain": func(c *relock.Client, name string, opts ...relock.MutexOption) mutex { return c.Mutex(name, opts...) },
	"quorum": func(c *relock.Client, name string, opts ...relock.MutexOption) mutex { // of another client
		return c.Mutex(name, opts...)
	},
	"fair": func(c *relock.Client, name string, opts ...relock.MutexOption) mutex {
		return c.FairMutex(name, opts...)
	},
	"multi": func(c *relock.Client, name string, opts ...relock.MutexOption) mutex {
		return c.MultiMutex([]string{name, name + ":too"}, opts...)
	},
	"rw": func(c *relock.Client, name string, opts ...relock.MutexOption) mutex {
		return writer{c.RWMutex(name, opts...)}
	},
}

// writer is the side of an RWMutex that writes.
type writer struct{ *relock.RWMutex }

func (w writer) State(ctx context.Context) (relock.State, error) {
	s, err := w.RWMutex.State(ctx)
	return relock.State{Owner: s.Owner, Count: s.Count, TTL: s.TTL, FencingToken: s.FencingToken}, err
}

func (s *service) mutex(name string, opts ...relock.MutexOption) mutex {
	return kinds[s.kind](s.locks, name, opts...)
}

func start(srv *server, name, kind string) (*service, error) {
	s := &service{name: name, kind: kind}
	for _, addr := range srv.addrs {
		s.rdbs = append(s.rdbs, redis.NewClient(&redis.Options{Addr: addr}))
	}
	s.rdb = s.rdbs[0].(*redis.Client)
	var err error
	opts := []relock.ClientOption{relock.WithPrefix(srv.prefix), relock.WithTTL(10 * time.Second)}
	if kind == "quorum" {
		s.locks, err = relock.NewQuorum(s.rdbs, opts...)
	} else {
		s.locks, err = relock.New(s.rdb, opts...)
	}
	if err != nil {
		return nil, errors.Join(err, s.disconnect())
	}
	return s, nil
}

// stop releases what the service still holds. The locks end before the Redis clients do.
func (s *service) stop() error {
	return errors.Join(s.locks.Close(), s.disconnect())
}

func (s *service) disconnect() error {
	var errs []error
	for _, rdb := range s.rdbs {
		errs = append(errs, rdb.Close())
	}
	return errors.Join(errs...)
}

// pause is the work that a holder does: it ends early when ctx does, as work under a lock
// should.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
