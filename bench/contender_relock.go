package main

import (
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

type relockClient struct {
	rdb   *redis.Client
	locks *relock.Client
	kind  func(c *relock.Client, name string) mutex
}

// openRelockWith returns what opens a client with these options.
func openRelockWith(opts ...relock.ClientOption) func(setup) (client, error) {
	return func(s setup) (client, error) {
		return openRelockOf(s, func(c *relock.Client, name string) mutex { return c.Mutex(name) }, opts...)
	}
}

func openRelockFair(s setup) (client, error) {
	return openRelockOf(s, func(c *relock.Client, name string) mutex { return c.FairMutex(name) })
}

func openRelockRW(s setup) (client, error) {
	return openRelockOf(s, func(c *relock.Client, name string) mutex { return c.RWMutex(name) })
}

func openRelockOf(s setup, kind func(*relock.Client, string) mutex, opts ...relock.ClientOption) (client, error) {
	rdb := goRedis(s.Addr)
	if s.Lease > 0 {
		opts = append(opts, relock.WithTTL(s.Lease)) // renewed after every third of it
	}
	locks, err := relock.New(rdb, opts...)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	return &relockClient{rdb, locks, kind}, nil
}

func (c *relockClient) mutex(name string) mutex { return c.kind(c.locks, name) }

func (c *relockClient) close() error { return errors.Join(c.locks.Close(), c.rdb.Close()) }
