package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock"
)

const jobTTL = 1500 * time.Millisecond

// outliveTTL shows that a lock stays its holder's for as long as the holder works.
func (d *demo) outliveTTL(ctx context.Context) error {
	return d.longJob(ctx, relock.WithTTL(jobTTL))
}

func (d *demo) longJob(ctx context.Context, opts ...relock.MutexOption) error {
	var renewals atomic.Int32
	opts = append(opts, relock.WithHooks(relock.Hooks{
		Renewed: func(relock.Event) { renewals.Add(1) },
	}))
	worker, rival := d.workers[0], d.workers[1]
	began := time.Now()
	err := worker.mutex(jobLock, opts...).Do(ctx, func(ctx context.Context) error {
		d.print(worker.name, "holds the lock with a TTL of %v", jobTTL)
		for range 2 {
			if err := pause(ctx, jobTTL); err != nil {
				return err
			}
			if err := d.expectBusy(ctx, rival); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	d.print(worker.name, "done after %v and %d renewals", ms(time.Since(began)), renewals.Load())
	if renewals.Load() == 0 {
		return errors.New("the lock was never renewed")
	}
	return nil
}

// expectBusy checks that rival cannot get the lock of the long job.
func (d *demo) expectBusy(ctx context.Context, rival *service) error {
	lock := rival.mutex(jobLock)
	got, err := lock.TryLock(ctx)
	if err != nil {
		return err
	}
	if got {
		return errors.Join(errors.New("the rival got the lock"), lock.Unlock())
	}
	state, err := lock.State(ctx)
	if err != nil {
		return err
	}
	if state.Count == 0 {
		return errors.New("nobody holds the lock on Redis")
	}
	d.print(rival.name, "TryLock: false, the key has %v left", state.TTL)
	return nil
}
