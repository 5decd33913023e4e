// Package asynqlock is a middleware for asynq: tasks with the same lock do not run at the same time.
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

// ErrBusy is the error of a task that did not run because another task has its lock.
var ErrBusy = errors.New("another task has the lock")

// Exclusive returns a middleware that runs each task under a lock. name returns the name of the lock
// for a task. If the lock is held, the task does not run, and asynq tries it again later: see
// [IsFailure] and [RetryDelay]. Without a lock, asynq runs a task twice at once if it wrongly takes a
// worker for dead, or gives up on a worker at shutdown.
//
// The handler has to return soon after its context has ended, because another worker may have the lock
// by then. After a loss the error wraps relock.ErrLost, even if the handler succeeded.
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

// IsFailure is for asynq.Config. It makes a busy task not count as failed, so that it does not use up a
// retry. If a task has no retries left (or MaxRetry(0)), asynq archives it all the same.
func IsFailure(err error) bool { return !errors.Is(err, ErrBusy) }

// RetryDelay is for asynq.Config. A busy task is tried again after 1 to 2 s.
func RetryDelay(n int, err error, task *asynq.Task) time.Duration {
	if errors.Is(err, ErrBusy) {
		return time.Second + rand.N(time.Second)
	}
	return asynq.DefaultRetryDelayFunc(n, err, task)
}
