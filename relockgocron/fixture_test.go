package relockgocron_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/relockgocron"
)

// everySecond is for what runs by the clock. Each job takes one of its own: gocron writes to it.
func everySecond() gocron.JobDefinition { return gocron.CronJob("* * * * * *", true) }

// never is for what a test runs by itself.
func never() gocron.JobDefinition { return gocron.DurationJob(1000 * time.Hour) }

func locksOn(t *testing.T, rdb redis.UniversalClient, opts ...relock.ClientOption) *relock.Client {
	t.Helper()
	c, err := relock.New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func lockerOf(t *testing.T, locks *relock.Client, opts ...relockgocron.LockerOption) *relockgocron.Locker {
	t.Helper()
	l, err := relockgocron.NewLocker(locks, opts...)
	require.NoError(t, err)
	return l
}

// started returns a scheduler that runs, and is shut down when the test is over.
func started(t *testing.T, opts ...gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	s, err := gocron.NewScheduler(opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Shutdown() })
	s.Start()
	return s
}

// addJob adds a job, and returns it with the errors of its AfterLockError.
func addJob(t *testing.T, s gocron.Scheduler, when gocron.JobDefinition, name string, task any, opts ...gocron.JobOption) (gocron.Job, <-chan error) {
	t.Helper()
	refused := make(chan error, 1000)
	listen := gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, job string, err error) {
		if job != name {
			err = errors.New("notified of another job: " + job)
		}
		refused <- err
	}))
	job, err := s.NewJob(when, gocron.NewTask(task), append([]gocron.JobOption{gocron.WithName(name), listen}, opts...)...)
	require.NoError(t, err)
	return job, refused
}

// doing is the Do of a Locker or an Elector.
type doing = func(ctx context.Context, work func(ctx context.Context) error) error

// stay is work that sends its context, and lasts until the context ends.
type stay chan context.Context

func (s stay) in(do doing) func(context.Context) error {
	return func(ctx context.Context) error {
		return do(ctx, func(ctx context.Context) error {
			s <- ctx
			<-ctx.Done()
			return ctx.Err()
		})
	}
}

// nothing is work that takes no time, and fails if its context has ended.
func nothing(ctx context.Context) error { return ctx.Err() }

func isFree(t *testing.T, locks *relock.Client, name string) bool {
	t.Helper()
	state, err := locks.Mutex(name).State(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	return state.Owner == ""
}

func awaitFree(t *testing.T, locks *relock.Client, name string) {
	t.Helper()
	redistest.Eventually(t, "the lock is free", func() bool { return isFree(t, locks, name) })
}

// unlock ends a run that gocron has not begun.
func unlock(t *testing.T, l gocron.Lock) {
	t.Helper()
	require.NoError(t, l.Unlock(t.Context()))
}
