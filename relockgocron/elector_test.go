package relockgocron_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/relockgocron"
	"github.com/relock-go/relock/relocktest"
)

func electorOf(t *testing.T, locks *relock.Client, name string, opts ...relockgocron.ElectorOption) *relockgocron.Elector {
	t.Helper()
	e, err := relockgocron.NewElector(locks, name, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.Stop() })
	return e
}

func awaitLead(t *testing.T, e *relockgocron.Elector) {
	t.Helper()
	redistest.Eventually(t, "it leads", func() bool { return e.IsLeader(t.Context()) == nil })
}

// answered counts the answers of an Elector to its scheduler.
type answered struct {
	*relockgocron.Elector
	times atomic.Int64
}

func (a *answered) IsLeader(ctx context.Context) error {
	defer a.times.Add(1)
	return a.Elector.IsLeader(ctx)
}

func TestElector_OneOfSeveralLeadsAndMakesAllRuns(t *testing.T) {
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		lead, name := redistest.Key(t), redistest.Key(t)
		ran := make(chan int, 1000)
		var electors []*relockgocron.Elector
		var answers []*answered
		var jobs []gocron.Job
		for n := range nodes {
			e := electorOf(t, locksOn(t, b.Client(t)), lead)
			a := &answered{Elector: e}
			j, _ := addJob(t, started(t, gocron.WithDistributedElector(a)), never(), name, func() { ran <- n })
			electors, answers, jobs = append(electors, e), append(answers, a), append(jobs, j)
			require.ErrorIs(t, e.IsLeader(t.Context()), relockgocron.ErrNotLeader, "before Start")
		}
		electors[1].Start()
		awaitLead(t, electors[1])
		electors[0].Start()
		electors[2].Start()
		electors[1].Start() // does nothing
		for n := range 5 {
			for _, j := range jobs {
				require.NoError(t, j.RunNow())
			}
			require.Equal(t, 1, redistest.Receive(t, ran))
			// A scheduler that asks later may ask the next leader.
			redistest.Eventually(t, "all have asked", func() bool {
				return !slices.ContainsFunc(answers, func(a *answered) bool { return a.times.Load() <= int64(n) })
			})
		}
		require.NoError(t, electors[1].Stop())
		require.ErrorIs(t, electors[1].IsLeader(t.Context()), relockgocron.ErrNotLeader)
		redistest.Eventually(t, "another one leads", func() bool {
			return electors[0].IsLeader(t.Context()) == nil || electors[2].IsLeader(t.Context()) == nil
		})
		require.Empty(t, ran)
		for _, j := range jobs {
			require.NoError(t, j.RunNow())
		}
		require.Contains(t, []int{0, 2}, redistest.Receive(t, ran))

		electors[1].Start() // again, after Stop
		require.NoError(t, electors[0].Stop())
		require.NoError(t, electors[2].Stop())
		awaitLead(t, electors[1])
		require.NoError(t, electors[0].Stop(), "a second time")
	})
}

func TestElector_IsolatedLeaderStopsAndAnotherLeadsAfterTheTTL(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		t.Parallel()
		lead, name, relay := redistest.Key(t), redistest.Key(t), redistest.NewRelay(t, b.Addr)
		reached := &redistest.Backend{Name: b.Name, Addr: relay.Addr}
		t.Cleanup(func() { relay.BlackHole(false) })
		newNode := func(b *redistest.Backend) (*relockgocron.Elector, stay) {
			begun := make(stay, 1000)
			e := electorOf(t, locksOn(t, b.Client(t), relock.WithTTL(time.Second), relock.WithFencing()), lead)
			addJob(t, started(t, gocron.WithDistributedElector(e)), everySecond(), name, begun.in(e.Do),
				gocron.WithSingletonMode(gocron.LimitModeReschedule))
			e.Start()
			return e, begun
		}
		cutOff, runs := newNode(reached)
		run := redistest.Receive(t, runs)
		token := cutOff.FencingToken()
		require.Positive(t, token)
		other, others := newNode(b)

		relay.BlackHole(true)
		next := redistest.Receive(t, others)
		require.ErrorIs(t, context.Cause(run), relock.ErrLost, "it has to be stopped by then")
		require.ErrorIs(t, cutOff.IsLeader(t.Context()), relockgocron.ErrNotLeader)
		require.NoError(t, next.Err())
		require.Greater(t, other.FencingToken(), token)
	})
}

func TestElector_LeaderThatLosesTheLockLeadsAgainAndReportsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		setbacks := make(chan error, 10)
		locks := relocktest.New(t)
		e := electorOf(t, locks, "leader", relockgocron.OnSetback(func(err error) { setbacks <- err }))
		e.Start()
		synctest.Wait()
		err := e.Do(t.Context(), func(ctx context.Context) error {
			relocktest.Lose(t, locks, "leader")
			require.ErrorIs(t, context.Cause(ctx), relock.ErrLost)
			return nil
		})
		require.ErrorIs(t, err, relock.ErrLost)
		require.ErrorIs(t, redistest.Receive(t, setbacks), relock.ErrLost)
		err = e.IsLeader(t.Context())
		require.ErrorIs(t, err, relockgocron.ErrNotLeader)
		require.ErrorIs(t, err, relock.ErrLost)
		require.ErrorContains(t, err, `of "leader"; last setback 0s ago: `)
		time.Sleep(time.Second)
		require.NoError(t, e.IsLeader(t.Context()))
		require.NoError(t, e.Do(t.Context(), nothing))
		require.NoError(t, e.Stop())
		require.ErrorIs(t, e.Do(t.Context(), nothing), relockgocron.ErrNotLeader)
		require.EqualError(t, e.IsLeader(t.Context()), `relockgocron: not the leader of "leader": the elector is not started`)

		relocktest.HoldElsewhere(t, locks, "leader")
		e.Start()
		time.Sleep(time.Minute)
		require.EqualError(t, e.IsLeader(t.Context()), `relockgocron: not the leader of "leader"`, "it has led since the loss")
	})
}

func TestElector_StopsWhileAnotherLeadsAndDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := relocktest.New(t)
		release := relocktest.HoldElsewhere(t, locks, "leader")
		e := electorOf(t, locks, "leader")
		e.Start()
		time.Sleep(time.Minute)
		require.EqualError(t, e.IsLeader(t.Context()), `relockgocron: not the leader of "leader"`)
		require.NoError(t, e.Stop())

		release()
		relocktest.Outage(t, locks, time.Hour)
		e.Start()
		time.Sleep(time.Minute)
		require.ErrorContains(t, e.IsLeader(t.Context()), "; last setback ")
		require.NoError(t, e.Stop())
	})
}

func TestElector_StopReportsAFailedRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := relocktest.New(t)
		e := electorOf(t, locks, "leader")
		e.Start()
		synctest.Wait()
		require.NoError(t, e.IsLeader(t.Context()))
		var stopped error
		require.NoError(t, e.Do(t.Context(), func(ctx context.Context) error {
			relocktest.Outage(t, locks, time.Hour)
			stopped = e.Stop()
			require.ErrorIs(t, context.Cause(ctx), relock.ErrReleased)
			return nil
		}))
		require.ErrorContains(t, stopped, `"leader"`)
		require.ErrorContains(t, stopped, "connection refused")
	})
}
