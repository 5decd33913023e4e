package relockgocron_test

import (
	"context"
	"sync"
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

func TestConcurrency_SoManySchedulersMakeARunAndNoMore(t *testing.T) {
	const most = 2
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		name := redistest.Key(t)
		begun, end := make(chan int, nodes), make(chan struct{})
		var jobs []gocron.Job
		var refused []<-chan error
		for n := range nodes {
			locker := lockerOf(t, locksOn(t, b.Client(t)), relockgocron.KeepFor(0), relockgocron.WithConcurrency(most))
			j, r := addJob(t, started(t, gocron.WithDistributedLocker(locker)), never(), name, func() {
				begun <- n
				select {
				case <-end:
				case <-t.Context().Done():
				}
			})
			jobs, refused = append(jobs, j), append(refused, r)
		}
		s := locksOn(t, b.Client(t)).Semaphore(name, most)
		for range 10 {
			for _, j := range jobs {
				require.NoError(t, j.RunNow())
			}
			idle := nodes * (nodes - 1) / 2 // less the runners, the node that makes no run
			for range most {
				idle -= redistest.Receive(t, begun)
			}
			require.ErrorIs(t, redistest.Receive(t, refused[idle]), relockgocron.ErrHeldElsewhere)
			require.Empty(t, begun)
			for range most {
				end <- struct{}{}
			}
			redistest.Eventually(t, "all permits are free", func() bool {
				state, err := s.State(t.Context())
				return err == nil && state.InUse == 0
			})
		}
	})
}

// On one node the runs of a job may overlap, too.
func TestConcurrency_EachRunHasItsOwnPermit(t *testing.T) {
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		name := redistest.Key(t)
		l := lockerOf(t, locksOn(t, b.Client(t), relock.WithFencing()), relockgocron.KeepFor(0), relockgocron.WithConcurrency(2))
		begin := func() (run gocron.Lock, err error) { // on a goroutine of its own, as gocron does
			var done sync.WaitGroup
			done.Go(func() { run, err = l.Lock(t.Context(), name) })
			done.Wait()
			return run, err
		}
		first, err := l.Lock(t.Context(), name)
		require.NoError(t, err)
		require.Zero(t, l.FencingToken(), "runs at the same time have no order")
		second, err := begin()
		require.NoError(t, err)
		_, err = begin()
		require.ErrorIs(t, err, relockgocron.ErrHeldElsewhere)
		require.EqualError(t, err, `relockgocron: job "`+name+`" is not run here: the lock is held elsewhere`)
		unlock(t, second)
		require.ErrorIs(t, second.Unlock(t.Context()), relock.ErrNotHeld, "a second time")
		third, err := begin()
		require.NoError(t, err)
		unlock(t, third)
		unlock(t, first)
	})
}

// At most so many begin in the time of KeepFor, whatever the clocks of the nodes are.
func TestConcurrency_KeepsAPermitFromTheBeginningOfItsRun(t *testing.T) {
	perMinute := make(map[time.Time]int)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(30 * time.Second) // the clock of a bubble begins on a full minute
		here := relocktest.New(t)
		var mu sync.Mutex
		for _, late := range []time.Duration{0, 100 * time.Millisecond, 400 * time.Millisecond} {
			locker := lockerOf(t, locksOn(t, relocktest.Redis(t, here)), relockgocron.WithConcurrency(2))
			s := started(t, gocron.WithDistributedLocker(locker), gocron.WithClock(lateClock{clockwork.NewRealClock(), late}))
			addJob(t, s, gocron.CronJob("* * * * *", false), "nightly", func() {
				mu.Lock()
				defer mu.Unlock()
				perMinute[time.Now().Truncate(time.Minute)]++
			})
		}
		time.Sleep(time.Hour)
	})
	require.Len(t, perMinute, 60)
	for minute, n := range perMinute {
		require.Equal(t, 2, n, minute)
	}
}

func TestConcurrency_RunNoticesThatItsPermitIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := relocktest.New(t)
		locker := lockerOf(t, locks, relockgocron.WithConcurrency(3), relockgocron.KeepFor(time.Hour))
		begun, ended := make(chan context.Context, 1), make(chan error, 1)
		job, _ := addJob(t, started(t, gocron.WithDistributedLocker(locker)), never(), "drain", func(ctx context.Context) {
			ended <- locker.Do(ctx, func(held context.Context) error {
				begun <- held
				<-held.Done()
				return nil // as if it were done
			})
		})
		require.NoError(t, job.RunNow())
		held := redistest.Receive(t, begun)
		time.Sleep(10 * time.Minute)
		require.NoError(t, held.Err(), "it is renewed")
		relocktest.Lose(t, locks, "drain")
		require.ErrorIs(t, redistest.Receive(t, ended), relock.ErrLost)
		require.ErrorIs(t, context.Cause(held), relock.ErrLost)
	})
}

func TestConcurrency_LockAndPermitsOfOneJobRefuseEachOther(t *testing.T) {
	locks := relocktest.New(t)
	before := lockerOf(t, locks, relockgocron.KeepFor(0))
	after := lockerOf(t, locks, relockgocron.KeepFor(0), relockgocron.WithConcurrency(1))
	for _, order := range [][]*relockgocron.Locker{{before, after}, {after, before}} {
		run, err := order[0].Lock(t.Context(), "nightly")
		require.NoError(t, err)
		_, err = order[1].Lock(t.Context(), "nightly")
		require.ErrorIs(t, err, relock.ErrInvalidName)
		unlock(t, run)
		next, err := order[1].Lock(t.Context(), "nightly")
		require.NoError(t, err)
		unlock(t, next)
	}
}
