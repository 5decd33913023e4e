package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/bench/contend"
)

// Semaphores take part as locks that several may hold: see [setup].

func openRelockPermits(s setup) (client, error) {
	return contend.RelockOf(s, func(c *relock.Client, name string) mutex {
		return &permits{semaphore: c.Semaphore(name, s.Places())}
	})
}

// permits is a handle of a semaphore for one goroutine, which has one permit at a time.
type permits struct {
	semaphore *relock.Semaphore
	permit    *relock.Permit
}

func (p *permits) Lock(ctx context.Context) (err error) {
	p.permit, err = p.semaphore.Acquire(ctx)
	return err
}

func (p *permits) Unlock() error { return p.permit.Release() }

// counter is a limit as applications write it by hand: it counts those inside, and polls. It has no record of who they are. If one
// dies, its share is in use until nobody has entered for counterLife; then the shares of all are free.
type counter struct {
	rdb   *redis.Client
	limit int
	retry time.Duration
}

const counterLife = 5 * time.Minute

// How long a waiter sleeps: as in the examples, and as briefly as rivals that poll for a lock.
const (
	counterRetry = 50 * time.Millisecond
	counterFast  = 2 * time.Millisecond
)

// openCounter returns what opens a counter whose waiters sleep for so long.
func openCounter(retry time.Duration) func(setup) (client, error) {
	return func(s setup) (client, error) {
		return &counter{rdb: contend.GoRedis(s), limit: s.Places(), retry: retry}, nil
	}
}

func (c *counter) Mutex(name string) mutex { return counterHandle{c, name} }
func (c *counter) Close() error            { return c.rdb.Close() }

// counterHandle is a counter under a name.
type counterHandle struct {
	*counter
	key string
}

func (c counterHandle) Lock(ctx context.Context) error {
	whole := context.WithoutCancel(ctx) // what has been counted is taken back, whatever happens
	for {
		n, err := c.rdb.Incr(ctx, c.key).Result()
		if err != nil {
			return err
		}
		if n <= int64(c.limit) {
			return c.rdb.Expire(whole, c.key, counterLife).Err()
		}
		if err := c.rdb.Decr(whole, c.key).Err(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(c.retry):
		}
	}
}

func (c counterHandle) Unlock() error {
	n, err := c.rdb.Decr(context.Background(), c.key).Result()
	if err == nil && n < 0 {
		err = errors.New("counter: more have left than have entered")
	}
	return err
}
