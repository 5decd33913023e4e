package relockgocron_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/relockgocron"
	"github.com/relock-go/relock/relocktest"
)

const nodes = 3

func TestLocker_OneOfSeveralSchedulersMakesEachRun(t *testing.T) {
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		name := redistest.Key(t)
		begun, end := make(chan int, nodes), make(chan struct{})
		var jobs []gocron.Job
		var refused []<-chan error
		for n := range nodes {
			locker := lockerOf(t, locksOn(t, b.Client(t)), relockgocron.KeepFor(0))
			j, r := addJob(t, started(t, gocron.WithDistributedLocker(locker)), never(), name, func() {
				begun <- n
				select {
				case <-end:
				case <-t.Context().Done():
				}
			})
			jobs, refused = append(jobs, j), append(refused, r)
		}
		operator := locksOn(t, b.Client(t))
		for range 10 {
			for _, j := range jobs {
				require.NoError(t, j.RunNow())
			}
			runner := redistest.Receive(t, begun)
			for n, r := range refused {
				if n != runner {
					require.ErrorIs(t, redistest.Receive(t, r), relockgocron.ErrHeldElsewhere)
				}
			}
			require.Empty(t, begun, "two at once")
			end <- struct{}{}
			awaitFree(t, operator, name)
		}
	})
}

// By the clock of the machine, which may stall: what must hold then, too, is that runs are apart.
func TestLocker_ScheduledRunsDoNotOverlapAndKeepTheirDistance(t *testing.T) {
	t.Parallel()
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		t.Parallel()
		name := redistest.Key(t)
		var running atomic.Int32
		var last time.Time // guarded by the lock
		runs, wrong := make(chan time.Time, 1000), make(chan string, 1000)
		for range nodes {
			locker := lockerOf(t, locksOn(t, b.Client(t)))
			addJob(t, started(t, gocron.WithDistributedLocker(locker)), everySecond(), name, func() {
				now := time.Now()
				defer running.Add(-1)
				switch {
				case running.Add(1) != 1:
					wrong <- "two at once"
				case now.Sub(last) < relockgocron.DefaultKeep-100*time.Millisecond: // it is kept from the call of Lock on
					wrong <- "again after " + now.Sub(last).String()
				}
				last = now
				runs <- now
			})
		}
		for range 4 {
			redistest.Receive(t, runs)
		}
		require.Empty(t, wrong)
	})
}

// lateClock is the clock of a node that is behind.
type lateClock struct {
	clockwork.Clock
	by time.Duration
}

func (c lateClock) Now() time.Time { return c.Clock.Now().Add(-c.by) }

// runsInAnHour counts the runs of a job that is due each minute, on nodes whose clocks differ.
func runsInAnHour(t *testing.T, opts ...relockgocron.LockerOption) (perMinute map[time.Time]int) {
	t.Helper()
	perMinute = make(map[time.Time]int)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(30 * time.Second) // the clock of a bubble begins on a full minute
		here := relocktest.New(t)
		var mu sync.Mutex
		for _, late := range []time.Duration{0, 100 * time.Millisecond, 400 * time.Millisecond} {
			locker := lockerOf(t, locksOn(t, relocktest.Redis(t, here)), opts...)
			s := started(t, gocron.WithDistributedLocker(locker), gocron.WithClock(lateClock{clockwork.NewRealClock(), late}))
			addJob(t, s, gocron.CronJob("* * * * *", false), "nightly", func() {
				mu.Lock()
				defer mu.Unlock()
				perMinute[time.Now().Truncate(time.Minute)]++
			})
		}
		time.Sleep(time.Hour)
	})
	return perMinute
}

func TestLocker_EachRunHappensOnceThoughClocksDiffer(t *testing.T) {
	runs := runsInAnHour(t)
	require.Len(t, runs, 60)
	for minute, n := range runs {
		require.Equal(t, 1, n, minute)
	}
}

func TestLocker_WithoutKeepForALateNodeRepeatsAShortJob(t *testing.T) {
	for minute, n := range runsInAnHour(t, relockgocron.KeepFor(0)) {
		require.Equal(t, nodes, n, minute)
	}
}

func TestLocker_KeepsALockFromTheBeginningOfItsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := relocktest.New(t)
		l := lockerOf(t, locks, relockgocron.KeepFor(time.Minute))
		short, err := l.Lock(t.Context(), "job")
		require.NoError(t, err)
		time.Sleep(20 * time.Second)
		unlock(t, short)
		time.Sleep(40*time.Second - time.Millisecond)
		require.False(t, isFree(t, locks, "job"))
		_, err = l.Lock(t.Context(), "job")
		require.ErrorIs(t, err, relockgocron.ErrHeldElsewhere)
		time.Sleep(2 * time.Millisecond)
		require.True(t, isFree(t, locks, "job"))

		long, err := l.Lock(t.Context(), "job")
		require.NoError(t, err)
		time.Sleep(10 * time.Minute)
		unlock(t, long)
		require.True(t, isFree(t, locks, "job"))
	})
}

func TestLocker_EachRunIsAnOwner(t *testing.T) {
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		name := redistest.Key(t)
		l := lockerOf(t, locksOn(t, b.Client(t)), relockgocron.KeepFor(0))
		ctx := relock.NewOwner(t.Context()) // an owner of the job has no part in it
		first, err := l.Lock(ctx, name)
		require.NoError(t, err)
		_, err = l.Lock(ctx, name)
		require.ErrorIs(t, err, relockgocron.ErrHeldElsewhere)
		require.EqualError(t, err, `relockgocron: job "`+name+`" is not run here: the lock is held elsewhere`)

		unlocked := make(chan error, 1)
		ended, cancel := context.WithCancel(t.Context())
		cancel() // as at the end of a scheduler
		go func() { unlocked <- first.Unlock(ended) }()
		require.NoError(t, redistest.Receive(t, unlocked), "in another goroutine")
		require.ErrorIs(t, first.Unlock(t.Context()), relock.ErrNotHeld, "a second time")
		second, err := l.Lock(ctx, name)
		require.NoError(t, err)
		require.ErrorIs(t, first.Unlock(t.Context()), relock.ErrNotHeld, "nor the lock of a later run")
		unlock(t, second)
	})
}

func TestLocker_IsolatedInstanceStopsAndOthersGoOnAfterTheTTL(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		t.Parallel()
		const ttl = time.Second
		name, relay := redistest.Key(t), redistest.NewRelay(t, b.Addr)
		t.Cleanup(func() { relay.BlackHole(false) })
		reached := &redistest.Backend{Name: b.Name, Addr: relay.Addr}

		cutOff := make(stay, 1000)
		locker := lockerOf(t, locksOn(t, reached.Client(t), relock.WithTTL(ttl)))
		addJob(t, started(t, gocron.WithDistributedLocker(locker)), everySecond(), name, cutOff.in(locker.Do))
		run := redistest.Receive(t, cutOff)

		others := make(stay, 1000)
		var refused []<-chan error
		for range nodes - 1 {
			locker := lockerOf(t, locksOn(t, b.Client(t), relock.WithTTL(ttl)))
			_, r := addJob(t, started(t, gocron.WithDistributedLocker(locker)), everySecond(), name, others.in(locker.Do))
			refused = append(refused, r)
		}
		for _, r := range refused {
			for range 2 { // ticks, longer than the lease: it is renewed
				require.ErrorIs(t, redistest.Receive(t, r), relockgocron.ErrHeldElsewhere)
			}
		}
		require.NoError(t, run.Err())

		relay.BlackHole(true)
		next := redistest.Receive(t, others)
		require.ErrorIs(t, context.Cause(run), relock.ErrLost, "it has to be stopped by then")
		require.NoError(t, next.Err())
		require.Empty(t, others)
	})
}

func TestLocker_ClosedInstanceStopsAndOthersGoOnAtOnce(t *testing.T) {
	t.Parallel()
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		t.Parallel()
		name, begun := redistest.Key(t), make(stay, 1000)
		closing := locksOn(t, b.Client(t))
		for n := range nodes {
			locks := closing
			if n > 0 {
				locks = locksOn(t, b.Client(t))
			}
			locker := lockerOf(t, locks)
			addJob(t, started(t, gocron.WithDistributedLocker(locker)), everySecond(), name, begun.in(locker.Do))
			if n == 0 {
				run := redistest.Receive(t, begun)
				defer func() { require.ErrorIs(t, context.Cause(run), relock.ErrClosed) }()
			}
		}
		require.NoError(t, closing.Close())
		require.NoError(t, redistest.Receive(t, begun).Err()) // with a TTL of 30 s
	})
}
