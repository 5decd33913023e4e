package cronlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/recipes/cronlock"
	"github.com/relock-go/relock/relocktest"
)

// log passes on its messages.
type log chan error

func newLog() log { return make(log, 1000) }

func (l log) Info(text string, kv ...any)             { l <- fmt.Errorf("%s %v", text, kv) }
func (l log) Error(err error, text string, kv ...any) { l <- fmt.Errorf("%s %v: %w", text, kv, err) }

func TestCron_OneOfSeveralNodesMakesEachRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here := relocktest.New(t)
		var mu sync.Mutex
		perMinute := make(map[time.Time]int)
		logged := newLog()
		for range 3 {
			locks, err := relock.New(relocktest.Redis(t, here))
			require.NoError(t, err)
			defer locks.Close()
			c := cron.New(cron.WithChain(cronlock.OnOneNode(t.Context(), locks, "nightly", logged)))
			_, err = c.AddJob("* * * * *", cronlock.Job(func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				perMinute[time.Now().Truncate(time.Minute)]++
				return nil
			}))
			require.NoError(t, err)
			c.Start()
			defer func() { <-c.Stop().Done() }()
		}
		time.Sleep(time.Hour + time.Second)
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, perMinute, 60)
		for minute, n := range perMinute {
			require.Equal(t, 1, n, minute)
		}
		require.Len(t, logged, 2*60)
		require.EqualError(t, redistest.Receive(t, logged), "run elsewhere [job nightly]")
	})
}

func TestCron_RunsOfRealNodesDoNotOverlap(t *testing.T) {
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		name, logged := redistest.Key(t), newLog()
		var running atomic.Int32
		runs := make(chan int32, 1000)
		for range 3 {
			locks, err := relock.New(b.Client(t))
			require.NoError(t, err)
			defer locks.Close()
			c := cron.New(cron.WithSeconds(), cron.WithChain(cronlock.OnOneNode(t.Context(), locks, name, logged)))
			_, err = c.AddFunc("* * * * * *", func() { // a job without a context
				runs <- running.Add(1)
				running.Add(-1)
			})
			require.NoError(t, err)
			c.Start()
			defer func() { <-c.Stop().Done() }()
		}
		for range 3 {
			require.EqualValues(t, 1, redistest.Receive(t, runs))
		}
	})
}

// runOnce makes a run, as cron does.
func runOnce(ctx context.Context, locks *relock.Client, l log, name string, job cron.Job) {
	cron.NewChain(cron.Recover(l), cronlock.OnOneNode(ctx, locks, name, l)).Then(job).Run()
}

func TestCron_LossEndsTheJobsContextAndIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, logged := relocktest.New(t), newLog()
		runOnce(t.Context(), locks, logged, "nightly", cronlock.Job(func(ctx context.Context) error {
			time.Sleep(10 * time.Minute)
			require.NoError(t, ctx.Err(), "it is renewed")
			relocktest.Lose(t, locks, "nightly")
			redistest.Receive(t, ctx.Done())
			return context.Cause(ctx)
		}))
		require.ErrorIs(t, redistest.Receive(t, logged), relock.ErrLost)
		err := redistest.Receive(t, logged)
		require.ErrorIs(t, err, relock.ErrLost)
		require.ErrorContains(t, err, "unlock [job nightly]")
	})
}

func TestCron_OwnerIsThatOfTheRun(t *testing.T) {
	locks, logged := relocktest.New(t), newLog()
	runOnce(t.Context(), locks, logged, "nightly", cronlock.Job(func(ctx context.Context) error {
		held, err := locks.Mutex("nightly").TryLock(ctx)
		require.NoError(t, err)
		require.False(t, held, "nor the goroutine")
		return locks.Mutex("nightly", relock.WithOwnerFrom(ctx)).Do(ctx, func(context.Context) error { return nil })
	}))
	require.Empty(t, logged)
}

func TestCron_FailuresAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, logged := relocktest.New(t), newLog()
		broken := errors.New("broken")
		runOnce(t.Context(), locks, logged, "nightly", cronlock.Job(func(context.Context) error { return broken }))
		require.ErrorIs(t, redistest.Receive(t, logged), broken)

		runOnce(t.Context(), locks, logged, "nightly", cronlock.Job(func(context.Context) error { panic(broken) }))
		require.ErrorIs(t, redistest.Receive(t, logged), broken)

		never := cronlock.Job(func(context.Context) error {
			t.Error("the job was run")
			return nil
		})
		runOnce(t.Context(), locks, logged, "a{b", never)
		require.ErrorIs(t, redistest.Receive(t, logged), relock.ErrInvalidName)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		runOnce(ended, locks, logged, "nightly", never)
		require.ErrorIs(t, redistest.Receive(t, logged), context.Canceled)
		relocktest.Outage(t, locks, time.Hour)
		runOnce(t.Context(), locks, logged, "nightly", never)
		require.ErrorContains(t, redistest.Receive(t, logged), "not run [job nightly]")
		require.Empty(t, logged)
	})
}

func TestCron_EndOfTheProgramEndsARunAndItsMinHold(t *testing.T) {
	locks, logged := relocktest.New(t), newLog()
	ctx, cancel := context.WithCancel(t.Context())
	began := time.Now()
	runOnce(ctx, locks, logged, "nightly", cronlock.Job(func(ctx context.Context) error {
		cancel()
		redistest.Receive(t, ctx.Done())
		return nil
	}))
	require.Less(t, time.Since(began), 400*time.Millisecond)
	require.Empty(t, logged)
}
