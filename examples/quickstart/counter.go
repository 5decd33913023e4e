package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	turns    = 25                   // of each worker
	workTime = 3 * time.Millisecond // between GET and SET
)

// locker is what the counter job needs of a *relock.Mutex.
type locker interface {
	Lock(ctx context.Context) error
	Unlock() error
}

// countTogether is the main job: every worker adds to the same counter, in turn.
func (d *demo) countTogether(ctx context.Context) error {
	return d.count(ctx, func(s *service) locker { return s.mutex(counterLock) })
}

// count has every worker add to the counter under its lock, and checks the sum.
func (d *demo) count(ctx context.Context, lockOf func(*service) locker) error {
	c := &counter{key: d.server.prefix + counterKey}
	defer d.server.rdbs[0].Del(context.WithoutCancel(ctx), c.key)

	failed := make(chan error, len(d.workers))
	for _, w := range d.workers {
		go func() { failed <- d.addAll(ctx, w, c, lockOf(w)) }()
	}
	var errs []error
	for range d.workers {
		errs = append(errs, <-failed)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	sum, err := d.server.rdbs[0].Get(ctx, c.key).Int()
	if err != nil {
		return err
	}
	want := len(d.workers) * turns
	if err := c.check(sum, want); err != nil {
		return err
	}
	d.print("check", "the counter is %d of %d, and no two workers were at it at once", sum, want)
	return nil
}

// addAll takes one worker's turns.
func (d *demo) addAll(ctx context.Context, w *service, c *counter, lock locker) error {
	var longest time.Duration
	for range turns {
		wait, err := c.addOne(ctx, w.rdb, lock)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		longest = max(longest, wait)
	}
	d.print(w.name, "added %d times; its longest wait for the lock was %v", turns, ms(longest))
	return nil
}

// counter is a number on Redis that is read, then written: without a lock two that do
// it at the same time lose one of their updates.
type counter struct {
	key     string
	inside  atomic.Int32 // workers between GET and SET
	crowded atomic.Int32 // how often there was more than one
}

func (c *counter) addOne(ctx context.Context, rdb *redis.Client, lock locker) (waited time.Duration, err error) {
	began := time.Now()
	if err := lock.Lock(ctx); err != nil {
		return 0, err
	}
	defer lock.Unlock()
	waited = time.Since(began)

	if c.inside.Add(1) > 1 {
		c.crowded.Add(1)
	}
	defer c.inside.Add(-1)

	n, err := rdb.Get(ctx, c.key).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return waited, err
	}
	if err := pause(ctx, workTime); err != nil {
		return waited, err
	}
	return waited, rdb.Set(ctx, c.key, n+1, time.Minute).Err()
}

// check says what is wrong with a sum that the workers came to.
func (c *counter) check(sum, want int) error {
	var errs []error
	if sum != want {
		errs = append(errs, fmt.Errorf("the counter is %d instead of %d", sum, want))
	}
	if n := c.crowded.Load(); n > 0 {
		errs = append(errs, fmt.Errorf("%d times a worker met another one at the counter", n))
	}
	return errors.Join(errs...)
}
