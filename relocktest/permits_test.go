package relocktest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/relocktest"
)

func acquired(t *testing.T, s *relock.Semaphore, weight int) *relock.Permit {
	t.Helper()
	p, err := s.AcquireN(t.Context(), weight)
	require.NoError(t, err)
	return p
}

func inUse(t *testing.T, s *relock.Semaphore) int {
	t.Helper()
	state, err := s.State(t.Context())
	require.NoError(t, err)
	return state.InUse
}

func TestLose_EndsEachPermitAtOnce(t *testing.T) {
	onEachClock(t, func(t *testing.T) {
		c := relocktest.New(t, relock.WithPrefix("app:"), relock.WithFencing())
		s := c.Semaphore("name", 5)
		permits := []*relock.Permit{acquired(t, s, 3), acquired(t, s, 1)}
		var contexts []context.Context
		for _, p := range permits {
			contexts = append(contexts, p.Context(t.Context()))
		}
		relocktest.Lose(t, c, "name")
		for i, p := range permits {
			require.ErrorIs(t, context.Cause(contexts[i]), relock.ErrLost)
			require.ErrorIs(t, p.Release(), relock.ErrLost)
		}
		require.Zero(t, inUse(t, s))
		require.NoError(t, acquired(t, s, 5).Release())
	})
}

func TestLose_NextWaitersGetTheirPermits(t *testing.T) {
	onEachClock(t, func(t *testing.T) {
		hooks, waits := contended()
		c := relocktest.New(t, hooks)
		s := c.Semaphore("name", 2)
		lost := acquired(t, s, 2)
		var waiting []<-chan error
		for range 2 {
			waiting = append(waiting, begin(func() error {
				return s.Do(t.Context(), func(ctx context.Context) error { return ctx.Err() })
			}))
			redistest.Receive(t, waits)
		}
		relocktest.Lose(t, c, "name")
		for _, w := range waiting {
			require.NoError(t, redistest.Receive(t, w), "only what was in use is lost")
		}
		require.ErrorIs(t, lost.Release(), relock.ErrLost)
	})
}

func TestHoldPermitsElsewhere_AreAwaitedUntilTheirRelease(t *testing.T) {
	onEachClock(t, func(t *testing.T) {
		hooks, waits := contended()
		c := relocktest.New(t, hooks, relock.WithPrefix("app:"))
		s := c.Semaphore("name", 3)
		release := relocktest.HoldPermitsElsewhere(t, c, "name", 2)
		one := acquired(t, s, 1)
		require.Equal(t, 3, inUse(t, s))
		_, ok, err := s.TryAcquire(t.Context())
		require.NoError(t, err)
		require.False(t, ok)
		waiting := begin(func() error {
			return s.Do(t.Context(), func(ctx context.Context) error { return ctx.Err() })
		})
		redistest.Receive(t, waits)
		require.Empty(t, waiting)
		release()
		require.NoError(t, redistest.Receive(t, waiting))
		require.Equal(t, 1, inUse(t, s))
		release() // to no effect
		require.NoError(t, one.Release())
	})
}

func TestHoldPermitsElsewhere_MayBeMoreThanTheLimit(t *testing.T) {
	c := relocktest.New(t)
	s := c.Semaphore("name", 3)
	one := acquired(t, s, 1)
	release := relocktest.HoldPermitsElsewhere(t, c, "name", 4)
	require.Equal(t, 5, inUse(t, s))
	require.NoError(t, one.Release())
	relocktest.Lose(t, c, "name") // those of the other process, too
	release()                     // which is no error then
	require.NoError(t, acquired(t, s, 3).Release())
}

func TestHoldPermitsElsewhere_LastAsLongAsTheTest(t *testing.T) {
	redistest.Slow(t)
	for name, opts := range optionsOfLeases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := relocktest.New(t, opts...)
				s := c.Semaphore("name", 2)
				release := relocktest.HoldPermitsElsewhere(t, c, "name", 2)
				time.Sleep(time.Hour)
				relocktest.Outage(t, c, time.Hour)
				time.Sleep(2 * time.Hour)
				_, ok, err := s.TryAcquire(t.Context())
				require.NoError(t, err)
				require.False(t, ok)
				release()
				require.NoError(t, acquired(t, s, 2).Release())
			})
		})
	}
}
