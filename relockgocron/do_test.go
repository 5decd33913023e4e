package relockgocron_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/relockgocron"
	"github.com/relock-go/relock/relocktest"
)

func TestRun_ContextEndsWithALossAndTheRunFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := relocktest.New(t)
		locker := lockerOf(t, locks)
		begun, failed := make(chan context.Context, 1), make(chan error, 1)
		var gocrons context.Context // which is not cancelled by the loss
		job, _ := addJob(t, started(t, gocron.WithDistributedLocker(locker)), never(), "nightly", func(ctx context.Context) error {
			return locker.Do(ctx, func(held context.Context) error {
				gocrons = ctx
				begun <- held
				<-held.Done()
				return nil // as if it were done
			})
		}, gocron.WithEventListeners(gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { failed <- err })))
		require.NoError(t, job.RunNow())
		held := redistest.Receive(t, begun)
		time.Sleep(10 * time.Minute)
		require.NoError(t, held.Err(), "it is renewed")
		relocktest.Lose(t, locks, "nightly")
		require.ErrorIs(t, redistest.Receive(t, failed), relock.ErrLost)
		require.ErrorIs(t, context.Cause(held), relock.ErrLost)
		require.NoError(t, gocrons.Err())
	})
}

// The context of gocron does not distinguish them: it belongs to the job.
func TestRun_LostOneAndTheNextFindTheirOwnLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := relocktest.New(t)
		locker := lockerOf(t, locks)
		begun, again, found := make(chan context.Context, 2), make(chan struct{}), make(chan error, 2)
		job, _ := addJob(t, started(t, gocron.WithDistributedLocker(locker)), never(), "nightly", func(ctx context.Context) {
			begun <- ctx
			select {
			case <-again:
				found <- locker.Do(ctx, nothing)
			case <-t.Context().Done():
			}
		})
		require.NoError(t, job.RunNow())
		first := redistest.Receive(t, begun)
		relocktest.Lose(t, locks, "nightly")
		require.NoError(t, job.RunNow())
		require.True(t, first == redistest.Receive(t, begun))
		close(again)
		one, other := redistest.Receive(t, found), redistest.Receive(t, found)
		if one == nil {
			one, other = other, one
		}
		require.ErrorIs(t, one, relock.ErrLost)
		require.NoError(t, other)
	})
}

func TestDo_ReturnsTheResultOfWork(t *testing.T) {
	locks := relocktest.New(t)
	locker := lockerOf(t, locks)
	_, err := locker.Lock(t.Context(), "nightly")
	require.NoError(t, err)
	broken := errors.New("broken")
	var held context.Context
	for _, want := range []error{nil, broken, context.Canceled} {
		require.Equal(t, want, locker.Do(t.Context(), func(ctx context.Context) error {
			held = ctx
			return want
		}))
		require.ErrorIs(t, held.Err(), context.Canceled, "it ends with work, and is not kept")
	}

	ended, cancel := context.WithCancelCause(t.Context())
	require.Equal(t, broken, locker.Do(ended, func(ctx context.Context) error {
		cancel(errors.New("enough"))
		return broken
	}))
	require.EqualError(t, locker.Do(ended, nothing), "enough")

	err = locker.Do(t.Context(), func(context.Context) error {
		relocktest.Lose(t, locks, "nightly")
		return broken
	})
	require.ErrorIs(t, err, broken)
	require.ErrorIs(t, err, relock.ErrLost)
	require.ErrorIs(t, locker.Do(t.Context(), func(context.Context) error {
		t.Error("work runs without the lock")
		return nil
	}), relock.ErrLost)
}

// The run is found by its goroutine, so each way in which gocron makes one is tried.
func TestRun_IsFoundHoweverGocronMakesIt(t *testing.T) {
	type way struct {
		scheduler []gocron.SchedulerOption
		job       func(*relockgocron.Locker) gocron.JobOption
	}
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	for name, w := range map[string]way{
		"a plain job": {},
		"a singleton that reschedules": {job: func(*relockgocron.Locker) gocron.JobOption {
			return gocron.WithSingletonMode(gocron.LimitModeReschedule)
		}},
		"a singleton that waits": {job: func(*relockgocron.Locker) gocron.JobOption {
			return gocron.WithSingletonMode(gocron.LimitModeWait)
		}},
		"a limit that reschedules": {scheduler: []gocron.SchedulerOption{gocron.WithLimitConcurrentJobs(1, gocron.LimitModeReschedule)}},
		"a limit that waits":       {scheduler: []gocron.SchedulerOption{gocron.WithLimitConcurrentJobs(1, gocron.LimitModeWait)}},
		"a locker of the job": {job: func(l *relockgocron.Locker) gocron.JobOption {
			return gocron.WithDistributedJobLocker(l)
		}},
		"a context of the job": {job: func(*relockgocron.Locker) gocron.JobOption { return gocron.WithContext(parent) }},
		"an interval from completion": {job: func(*relockgocron.Locker) gocron.JobOption {
			return gocron.WithIntervalFromCompletion()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			locker := lockerOf(t, relocktest.New(t), relockgocron.KeepFor(0))
			opts, jobOpts := w.scheduler, []gocron.JobOption(nil)
			if name != "a locker of the job" {
				opts = append(opts, gocron.WithDistributedLocker(locker))
			}
			if w.job != nil {
				jobOpts = append(jobOpts, w.job(locker))
			}
			found := make(chan error, 1)
			job, _ := addJob(t, started(t, opts...), never(), "nightly", func(ctx context.Context) {
				found <- locker.Do(ctx, nothing)
			}, jobOpts...)
			for range 3 {
				redistest.Eventually(t, "a run", func() bool { // the run before may not have given the lock back
					require.NoError(t, job.RunNow())
					select {
					case err := <-found:
						require.NoError(t, err)
						return true
					case <-time.After(20 * time.Millisecond):
						return false
					}
				})
			}
		})
	}
}

func TestDo_OutsideARunDoesNoWork(t *testing.T) {
	locker := lockerOf(t, relocktest.New(t))
	err := locker.Do(t.Context(), nothing)
	require.ErrorIs(t, err, relock.ErrNotHeld)
	require.ErrorContains(t, err, "call Do in the task itself")
	require.Zero(t, locker.FencingToken())

	lock, err := locker.Lock(t.Context(), "nightly")
	require.NoError(t, err)
	require.NoError(t, locker.Do(t.Context(), nothing))
	elsewhere := make(chan error, 1)
	go func() { elsewhere <- locker.Do(t.Context(), nothing) }()
	require.ErrorIs(t, redistest.Receive(t, elsewhere), relock.ErrNotHeld, "on another goroutine")
	unlock(t, lock)
	require.ErrorIs(t, locker.Do(t.Context(), nothing), relock.ErrNotHeld, "after the run, though the lock is kept")
}

func TestRun_DoesNotExistBesideAnElector(t *testing.T) {
	locks := relocktest.New(t)
	locker := lockerOf(t, locks)
	elector, err := relockgocron.NewElector(locks, "leader")
	require.NoError(t, err)
	elector.Start()
	defer elector.Stop()
	awaitLead(t, elector)
	s := started(t, gocron.WithDistributedLocker(locker), gocron.WithDistributedElector(elector))
	found := make(chan error, 1)
	job, _ := addJob(t, s, never(), "nightly", func(ctx context.Context) { found <- locker.Do(ctx, nothing) })
	require.NoError(t, job.RunNow())
	require.ErrorIs(t, redistest.Receive(t, found), relock.ErrNotHeld)
}

func TestRun_FencingTokenRises(t *testing.T) {
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		name, last := redistest.Key(t), int64(0)
		for range nodes {
			l := lockerOf(t, locksOn(t, b.Client(t), relock.WithFencing()), relockgocron.KeepFor(0))
			lock, err := l.Lock(t.Context(), name)
			require.NoError(t, err)
			require.Greater(t, l.FencingToken(), last)
			last = l.FencingToken()
			unlock(t, lock)
		}
	})
}

func TestRun_LostOneReportsItAndIsNotKept(t *testing.T) {
	locks := relocktest.New(t)
	l := lockerOf(t, locks, relockgocron.KeepFor(time.Hour))
	lock, err := l.Lock(t.Context(), "nightly")
	require.NoError(t, err)
	relocktest.Lose(t, locks, "nightly")
	require.ErrorIs(t, lock.Unlock(t.Context()), relock.ErrLost)
}

func TestShutdown_InARunEndsItsContextAndReleasesTheLock(t *testing.T) {
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		name, begun := redistest.Key(t), make(stay, 1)
		locks := locksOn(t, b.Client(t))
		locker := lockerOf(t, locks, relockgocron.KeepFor(0))
		s := started(t, gocron.WithDistributedLocker(locker))
		job, _ := addJob(t, s, never(), name, begun.in(locker.Do))
		require.NoError(t, job.RunNow())
		run := redistest.Receive(t, begun)
		require.NoError(t, s.Shutdown())
		require.ErrorIs(t, run.Err(), context.Canceled)
		require.NotErrorIs(t, context.Cause(run), relock.ErrLost)
		require.True(t, isFree(t, locks, name))
	})
}

func TestShutdown_StubbornTaskKeepsItsLock(t *testing.T) {
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		name := redistest.Key(t)
		begun, end := make(chan struct{}), make(chan struct{})
		locks := locksOn(t, b.Client(t))
		s := started(t, gocron.WithDistributedLocker(lockerOf(t, locks, relockgocron.KeepFor(0))), gocron.WithStopTimeout(50*time.Millisecond))
		job, _ := addJob(t, s, never(), name, func() {
			close(begun)
			select {
			case <-end:
			case <-t.Context().Done():
			}
		})
		require.NoError(t, job.RunNow())
		redistest.Receive(t, begun)
		require.ErrorIs(t, s.Shutdown(), gocron.ErrStopJobsTimedOut)
		_, err := lockerOf(t, locksOn(t, b.Client(t))).Lock(t.Context(), name)
		require.ErrorIs(t, err, relockgocron.ErrHeldElsewhere)
		close(end)
		awaitFree(t, locks, name)
	})
}

func TestRun_PanicReleasesTheLock(t *testing.T) {
	locks := relocktest.New(t)
	s := started(t, gocron.WithDistributedLocker(lockerOf(t, locks, relockgocron.KeepFor(0))))
	panicked := make(chan any, 1)
	job, err := s.NewJob(never(), gocron.NewTask(func() { panic(errors.New("broken")) }), gocron.WithName("nightly"),
		gocron.WithEventListeners(gocron.AfterJobRunsWithPanic(func(_ uuid.UUID, _ string, v any) { panicked <- v })))
	require.NoError(t, err)
	require.NoError(t, job.RunNow())
	redistest.Receive(t, panicked)
	awaitFree(t, locks, "nightly")
}
