package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// redislockTTL is a value of ours: the library wants one with every lock.
const redislockTTL = 30 * time.Second

type redislockClient struct {
	rdb   *redis.Client
	locks *redislock.Client
}

func openRedislock(s setup) (client, error) {
	rdb := goRedis(s.Addr)
	return &redislockClient{rdb, redislock.New(rdb)}, nil
}

func (c *redislockClient) mutex(name string) mutex {
	return &redislockMutex{client: c.locks, name: name, options: &redislock.Options{
		RetryStrategy: redislock.LinearBackoff(2 * time.Millisecond), // has no state: one is enough
	}}
}

func (c *redislockClient) close() error { return c.rdb.Close() }

type redislockMutex struct {
	client  *redislock.Client
	name    string
	options *redislock.Options
	lock    *redislock.Lock
}

// Lock calls again after the library has given up waiting, which it does after one TTL.
func (m *redislockMutex) Lock(ctx context.Context) error {
	for {
		lock, err := m.client.Obtain(ctx, m.name, redislockTTL, m.options)
		switch {
		case err == nil:
			m.lock = lock
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, redislock.ErrNotObtained):
			return err
		}
	}
}

func (m *redislockMutex) Unlock() error { return m.lock.Release(context.Background()) }
