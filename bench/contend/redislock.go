package contend

import (
	"cmp"
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
	ttl   time.Duration
	poll  time.Duration
}

// Redislock opens clients that poll every so often.
func Redislock(poll time.Duration) func(Setup) (Client, error) {
	return func(s Setup) (Client, error) {
		rdb := GoRedis(s)
		return &redislockClient{rdb, redislock.New(rdb), cmp.Or(s.Lease, redislockTTL), poll}, nil
	}
}

func (c *redislockClient) Mutex(name string) Mutex {
	return &redislockMutex{client: c.locks, name: name, ttl: c.ttl, options: &redislock.Options{
		RetryStrategy: redislock.LinearBackoff(c.poll), // has no state: one is enough
	}}
}

func (c *redislockClient) Close() error { return c.rdb.Close() }

type redislockMutex struct {
	client  *redislock.Client
	name    string
	ttl     time.Duration
	options *redislock.Options
	lock    *redislock.Lock
}

// Lock calls again after the library has given up waiting, which it does after one TTL.
func (m *redislockMutex) Lock(ctx context.Context) error {
	for {
		lock, err := m.client.Obtain(ctx, m.name, m.ttl, m.options)
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
