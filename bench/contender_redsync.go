package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redsyncFast is the set-up for locks that are held for a short time.
func redsyncFast(m *redsync.Mutex) {
	redsync.WithRetryDelay(2 * time.Millisecond).Apply(m)
	redsync.WithTries(math.MaxInt32).Apply(m)
}

type redsyncClient struct {
	rdbs    []*redis.Client
	locks   *redsync.Redsync
	options []redsync.Option
}

func openRedsync(options ...redsync.OptionFunc) func(setup) (client, error) {
	return func(s setup) (client, error) { return openRedsyncOn([]string{s.Addr}, options) }
}

func openRedsyncQuorum(s setup) (client, error) { return openRedsyncOn(s.Addrs, nil) }

func openRedsyncOn(addrs []string, options []redsync.OptionFunc) (client, error) {
	c := &redsyncClient{}
	var pools []redsyncredis.Pool
	for _, addr := range addrs {
		rdb := goRedis(addr)
		c.rdbs, pools = append(c.rdbs, rdb), append(pools, goredis.NewPool(rdb))
	}
	c.locks = redsync.New(pools...)
	for _, option := range options {
		c.options = append(c.options, option)
	}
	return c, nil
}

func (c *redsyncClient) mutex(name string) mutex {
	return redsyncMutex{c.locks.NewMutex(name, c.options...)}
}

func (c *redsyncClient) close() (err error) {
	for _, rdb := range c.rdbs {
		err = errors.Join(err, rdb.Close())
	}
	return err
}

type redsyncMutex struct{ m *redsync.Mutex }

// Lock calls again, as the documentation allows, after all tries failed because another owner had the lock.
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
