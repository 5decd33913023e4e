// Package asynqlock has tasks of asynq that must not run at the same time run one after another.
package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"

	"github.com/relock-go/relock"
)

// ErrBusy is the error of a task that was not run because another one has its lock.
var ErrBusy = errors.New("another task has the lock")

// Exclusive returns a middleware that runs a task under the lock that name gives it. If that is
// held, the task is not run now, but tried again: see IsFailure and RetryDelay. Without a lock asynq
// runs a task twice at once when it takes a worker for dead, or gives up on one at shutdown.
//
// The handler has to return soon after its context has ended: another worker may have the lock
// then.
func Exclusive(locks *relock.Client, name func(*asynq.Task) string) asynq.MiddlewareFunc {
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) (err error) {
			ctx = relock.NewOwner(ctx) // of this run
			m := locks.Mutex(name(task), relock.WithOwnerFrom(ctx))
			switch held, err := m.TryLock(ctx); {
			case err != nil:
				return err
			case !held:
				return fmt.Errorf("%w: %q", ErrBusy, m.Name())
			}
			defer func() {
				// Another error is no reason to run the task again: it was done under the lock.
				if unlocked := m.Unlock(); errors.Is(unlocked, relock.ErrLost) {
					err = errors.Join(err, unlocked)
				}
			}()
			return next.ProcessTask(m.Context(ctx), task)
		})
	}
}

// IsFailure is for asynq.Config: a task that was busy has not failed, so that uses up no retry. One
// that has none (MaxRetry(0), or none left) is archived all the same.
func IsFailure(err error) bool { return !errors.Is(err, ErrBusy) }

// RetryDelay is for asynq.Config: a task that was busy comes again soon.
func RetryDelay(n int, err error, task *asynq.Task) time.Duration {
	if errors.Is(err, ErrBusy) {
		return time.Second + rand.N(time.Second)
	}
	return asynq.DefaultRetryDelayFunc(n, err, task)
}
