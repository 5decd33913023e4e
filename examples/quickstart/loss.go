package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock"
)

// lossTTL sets how soon a holder finds out: its watchdog asks every third of it.
const lossTTL = 2400 * time.Millisecond

// loseLock shows that a holder learns that it does not hold any more.
func (d *demo) loseLock(ctx context.Context) error {
	return d.lose(ctx, func(ctx context.Context) error {
		forced, err := d.operator.mutex(forcedLock).ForceUnlock(ctx)
		if err == nil && !forced {
			err = errors.New("there was nothing to force open")
		}
		return err
	})
}

// lose has a worker hold a lock that takeAway takes from it.
func (d *demo) lose(ctx context.Context, takeAway func(context.Context) error) error {
	worker := d.workers[0]
	lock := worker.mutex(forcedLock, relock.WithTTL(lossTTL))
	ctx, cancel := context.WithTimeoutCause(ctx, 2*lossTTL, errors.New("the holder was not notified"))
	defer cancel()

	var cause error
	holding, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		stopped <- lock.Do(ctx, func(ctx context.Context) error {
			close(holding)
			<-ctx.Done() // here it would work, with this ctx
			cause = context.Cause(ctx)
			return cause
		})
	}()
	select {
	case <-holding:
	case err := <-stopped:
		return err
	}
	d.print(worker.name, "holds the lock, and works until its context ends")
	d.print(d.operator.name, "forces the lock open")
	taken := time.Now()
	if err := takeAway(ctx); err != nil {
		cancel()
		return errors.Join(err, <-stopped)
	}
	if err := <-stopped; !errors.Is(cause, relock.ErrLost) {
		return fmt.Errorf("the holder's context did not end by the loss: %w", err)
	}
	d.print(worker.name, "stopped %v later: %v", ms(time.Since(taken)), cause)
	return nil
}
