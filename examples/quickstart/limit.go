package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock"
)

const (
	callLimit = 2 // calls at a time, over all services
	callTime  = 200 * time.Millisecond
)

// limitCalls shows a semaphore: every worker calls a provider, and the others wait for a permit.
func (d *demo) limitCalls(ctx context.Context) error { return d.callProvider(ctx, callLimit) }

func (d *demo) callProvider(ctx context.Context, limit int) error {
	var calls atomic.Int32 // under way
	failed := make(chan error, len(d.workers))
	for _, w := range d.workers {
		go func() {
			failed <- w.locks.Semaphore(callPermits, limit).Do(ctx, func(ctx context.Context) error {
				n := calls.Add(1)
				defer calls.Add(-1)
				if n > callLimit {
					return fmt.Errorf("%d calls at a time: at most %d are allowed", n, callLimit)
				}
				d.print(w.name, "calls the provider: %d of %d", n, callLimit)
				return pause(ctx, callTime)
			})
		}()
	}
	var errs []error
	for range d.workers {
		errs = append(errs, <-failed)
	}
	err := errors.Join(errs...)
	if errors.Is(err, relock.ErrUnsupported) { // on a quorum
		d.print("check", "%v", errs[0])
		return nil
	}
	return err
}
