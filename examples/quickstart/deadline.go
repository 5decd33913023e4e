package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	waitLimit = 400 * time.Millisecond
	tooLate   = waitLimit + 1500*time.Millisecond // even on a busy machine
)

// giveUp shows that a deadline ends a wait, and leaves nothing behind.
func (d *demo) giveUp(ctx context.Context) error {
	holder, waiter := d.workers[0], d.workers[1]
	held, wanted := holder.mutex(busyLock), waiter.mutex(busyLock)
	if err := held.Lock(ctx); err != nil {
		return err
	}
	d.print(holder.name, "holds the lock")
	d.print(waiter.name, "waits for it, %v at most", waitLimit)
	if err := d.waitBriefly(ctx, waiter, wanted); err != nil {
		return errors.Join(err, held.Unlock())
	}
	if err := held.Unlock(); err != nil {
		return err
	}
	d.print(holder.name, "unlocks")

	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, tooLate)
	defer cancel()
	if err := wanted.Lock(limited); err != nil {
		return err
	}
	d.print(waiter.name, "tries again, and gets it after %v", time.Since(began).Round(time.Microsecond))
	return wanted.Unlock()
}

// waitBriefly waits for a lock that is not to be had.
func (d *demo) waitBriefly(ctx context.Context, waiter *service, lock locker) error {
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	err := lock.Lock(limited)
	waited := time.Since(began)
	switch {
	case err == nil:
		return errors.Join(errors.New("the waiter got a lock that another one holds"), lock.Unlock())
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the wait ended, but not by its deadline: %w", err)
	case waited > tooLate:
		return fmt.Errorf("the waiter gave up after %v only", waited)
	}
	d.print(waiter.name, "gave up after %v:", ms(waited))
	d.print("", "%v", err)
	return nil
}
