package contend

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

// RedsyncFast is the set-up for locks that are held for a short time.
func RedsyncFast(m *redsync.Mutex) {
	redsync.WithRetryDelay(2 * time.Millisecond).Apply(m)
	redsync.WithTries(math.MaxInt32).Apply(m)
}

type redsyncClient struct {
	rdbs    []*redis.Client
	locks   *redsync.Redsync
	options []redsync.Option
}

// Redsync returns what opens a client with these options.
func Redsync(options ...redsync.OptionFunc) func(Setup) (Client, error) {
	return func(s Setup) (Client, error) { return openRedsync(s, []*redis.Client{GoRedis(s)}, options) }
}

// RedsyncQuorum opens a client that votes on all servers.
func RedsyncQuorum(s Setup) (Client, error) {
	var rdbs []*redis.Client
	for _, addr := range s.Addrs {
		rdbs = append(rdbs, GoRedis(Setup{Addr: addr}))
	}
	return openRedsync(s, rdbs, nil)
}

func openRedsync(s Setup, rdbs []*redis.Client, options []redsync.OptionFunc) (Client, error) {
	c := &redsyncClient{rdbs: rdbs}
	var pools []redsyncredis.Pool
	for _, rdb := range rdbs {
		pools = append(pools, goredis.NewPool(rdb))
	}
	c.locks = redsync.New(pools...)
	if s.Lease > 0 {
		c.options = append(c.options, redsync.WithExpiry(s.Lease))
	}
	for _, option := range options {
		c.options = append(c.options, option)
	}
	return c, nil
}

func (c *redsyncClient) Mutex(name string) Mutex {
	return redsyncMutex{c.locks.NewMutex(name, c.options...)}
}

func (c *redsyncClient) Close() (err error) {
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
