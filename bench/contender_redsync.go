package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redsyncFast is the set-up for locks that are held for a short time.
func redsyncFast(m *redsync.Mutex) {
	redsync.WithRetryDelay(2 * time.Millisecond).Apply(m)
	redsync.WithTries(math.MaxInt32).Apply(m)
}

type redsyncClient struct {
	rdb     *redis.Client
	locks   *redsync.Redsync
	options []redsync.Option
}

func openRedsync(options ...redsync.OptionFunc) func(setup) (client, error) {
	return func(s setup) (client, error) {
		rdb := goRedis(s.Addr)
		c := &redsyncClient{rdb: rdb, locks: redsync.New(goredis.NewPool(rdb))}
		for _, option := range options {
			c.options = append(c.options, option)
		}
		return c, nil
	}
}

func (c *redsyncClient) mutex(name string) mutex {
	return redsyncMutex{c.locks.NewMutex(name, c.options...)}
}

func (c *redsyncClient) close() error { return c.rdb.Close() }

type redsyncMutex struct{ m *redsync.Mutex }

// Lock calls again, as the documentation says one may, after all tries were in vain
// because somebody else had the lock.
func (r redsyncMutex) Lock(ctx context.Context) error {
	for {
		err := r.m.LockContext(ctx)
		var taken *redsync.ErrTaken
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.As(err, &taken) && !errors.Is(err, redsync.ErrFailed):
			return err
		}
	}
}

func (r redsyncMutex) Unlock() error {
	ok, err := r.m.UnlockContext(context.Background())
	if err == nil && !ok {
		err = errors.New("redsync: the lock was lost")
	}
	return err
}
