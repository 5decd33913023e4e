package contend

import (
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

type relockClient struct {
	rdb   *redis.Client
	locks *relock.Client
	kind  func(c *relock.Client, name string) Mutex
}

// Relock returns what opens a client with these options.
func Relock(opts ...relock.ClientOption) func(Setup) (Client, error) {
	return func(s Setup) (Client, error) {
		return RelockOf(s, func(c *relock.Client, name string) Mutex { return c.Mutex(name) }, opts...)
	}
}

// RelockFair opens a client for its FairMutex.
func RelockFair(s Setup) (Client, error) {
	return RelockOf(s, func(c *relock.Client, name string) Mutex { return c.FairMutex(name) })
}

// RelockOf opens a client for locks of another kind.
func RelockOf(s Setup, kind func(*relock.Client, string) Mutex, opts ...relock.ClientOption) (Client, error) {
	rdb := GoRedis(s)
	if s.Lease > 0 {
		opts = append(opts, relock.WithTTL(s.Lease)) // renewed after every third of it
	}
	locks, err := relock.New(rdb, opts...)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	return &relockClient{rdb, locks, kind}, nil
}

func (c *relockClient) Mutex(name string) Mutex { return c.kind(c.locks, name) }

func (c *relockClient) Close() error { return errors.Join(c.locks.Close(), c.rdb.Close()) }
