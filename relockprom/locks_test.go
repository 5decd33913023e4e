package relockprom_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/relocktest"
)

// inBubble runs a test in a bubble of testing/synctest, with locks whose metrics can be gathered.
func inBubble(t *testing.T, test func(t *testing.T, locks *relock.Client, registry *prometheus.Registry)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		collector, registry := registered(t)
		test(t, relocktest.New(t, relock.WithHooks(collector.Hooks())), registry)
	})
}

func TestLocks_LossIsCountedByItsCause(t *testing.T) {
	for _, s := range sorts {
		for cause, lose := range map[string]func(t *testing.T, b *redistest.Backend, c *relock.Client, key string, l lock){
			"expired": func(*testing.T, *redistest.Backend, *relock.Client, string, lock) {},
			"gone": func(t *testing.T, b *redistest.Backend, _ *relock.Client, key string, _ lock) {
				require.NoError(t, b.Client(t).Del(t.Context(), key).Err())
			},
			"forced": func(t *testing.T, _ *redistest.Backend, _ *relock.Client, _ string, l lock) {
				forced, err := l.ForceUnlock(t.Context())
				require.NoError(t, err)
				require.True(t, forced)
			},
		} {
			t.Run(s.kind+s.side+"/"+cause, func(t *testing.T) {
				redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
					collector, registry := registered(t)
					opts := []relock.ClientOption{relock.WithHooks(collector.Hooks()), relock.WithRenewInterval(10 * time.Millisecond)}
					if cause == "expired" {
						opts = append(opts[:1], relock.WithTTL(100*time.Millisecond), relock.WithoutRenewal())
					}
					c, names := locksOn(t, b.Client(t), opts...), []string{redistest.Key(t), redistest.Key(t)}
					l := s.make(c, names)
					require.NoError(t, l.Lock(t.Context()))
					require.Equal(t, 1.0, gathered(t, registry).sum("relock_held"))
					lose(t, b, c, s.key(names), l)
					poll(func() bool { return gathered(t, registry).sum("relock_held") == 0 }) // which the hook counts last
					require.ErrorIs(t, l.Unlock(), relock.ErrLost)
					now := gathered(t, registry)
					require.Equal(t, 1.0, now.sum("relock_losses_total"))
					require.Equal(t, 1.0, now.sum("relock_losses_total", `cause="`+cause+`"`, `kind="`+s.kind+`"`))
					require.Equal(t, 1.0, now.sum("relock_hold_seconds", `end="lost"`))
					require.Zero(t, now.sum("relock_hold_seconds", `end="released"`))
					require.Zero(t, now.sum("relock_held"))
				})
			})
		}
	}
}

func TestLocks_WaitIsSeenWhileItLasts(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *relock.Client, registry *prometheus.Registry) {
		release := relocktest.HoldElsewhere(t, locks, "orders:42")
		const waiters = 3
		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan error, waiters)
		for range waiters {
			go func() {
				m := locks.Mutex("orders:42")
				err := m.Lock(ctx)
				if err == nil {
					err = m.Unlock()
				}
				results <- err
			}()
		}
		time.Sleep(time.Minute)
		now := gathered(t, registry)
		require.EqualValues(t, waiters, now.sum("relock_waiting"))
		require.EqualValues(t, waiters, now.sum("relock_contended_total"))
		require.Zero(t, now.sum("relock_acquisitions_total"))

		release()
		for range waiters {
			require.NoError(t, <-results)
		}
		now = gathered(t, registry)
		require.Zero(t, now.sum("relock_waiting"))
		require.EqualValues(t, waiters, now.sum("relock_acquisitions_total", `result="acquired"`))
		require.GreaterOrEqual(t, secondsOf(t, registry, "relock_wait_seconds"), 60.0*waiters)

		relocktest.HoldElsewhere(t, locks, "orders:42")
		go func() { results <- locks.Mutex("orders:42").Lock(ctx) }()
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, gathered(t, registry).sum("relock_waiting"))
		cancel()
		require.ErrorIs(t, <-results, context.Canceled)
		now = gathered(t, registry)
		require.Zero(t, now.sum("relock_waiting"))
		require.EqualValues(t, 1, now.sum("relock_acquisitions_total", `result="cancelled"`))
		require.Zero(t, now.sum("relock_held"))
	})
}

// The TTL is 30 s, so a renewal is due every ten.
func TestLocks_RenewalsAreCountedUntilTheLoss(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *relock.Client, registry *prometheus.Registry) {
		m := locks.Mutex("orders:42")
		require.NoError(t, m.Lock(t.Context()))
		time.Sleep(105 * time.Second)
		now := gathered(t, registry)
		require.EqualValues(t, 10, now.sum("relock_renewals_total", `result="renewed"`))
		require.Zero(t, now.sum("relock_renewals_total", `result="failed"`))
		require.EqualValues(t, 1, now.sum("relock_held"))

		relocktest.Outage(t, locks, time.Hour)
		time.Sleep(time.Minute)
		now = gathered(t, registry)
		require.EqualValues(t, 10, now.sum("relock_renewals_total", `result="renewed"`))
		require.Positive(t, now.sum("relock_renewals_total", `result="failed"`))
		require.Equal(t, now.sum("relock_renewals_total"), now.sum("relock_renew_seconds"))
		require.EqualValues(t, 1, now.sum("relock_losses_total", `cause="expired"`))
		require.Zero(t, now.sum("relock_held"))
		require.InDelta(t, 125, secondsOf(t, registry, "relock_hold_seconds"), 11)
		require.ErrorIs(t, m.Unlock(), relock.ErrLost)
	})
}

// secondsOf returns the sum of all observations of a histogram.
func secondsOf(t *testing.T, registry *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, metric := range family.Metric {
			if family.GetName() == name {
				sum += metric.Histogram.GetSampleSum()
			}
		}
	}
	return sum
}

// The hooks of a handle replace its client's hooks: joined, both are called.
func TestLocks_HandleWithHooksIsCountedIfTheyAreJoined(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *relock.Client, registry *prometheus.Registry) {
		collector, own := registered(t)
		acquired := 0
		hooks := relock.JoinHooks(collector.Hooks(), relock.Hooks{Acquired: func(relock.Event) { acquired++ }})
		m := locks.Mutex("orders:42", relock.WithHooks(hooks))
		require.NoError(t, m.Lock(t.Context()))
		require.NoError(t, m.Unlock())
		require.Equal(t, 1, acquired)
		require.EqualValues(t, 1, gathered(t, own).sum("relock_acquisitions_total"))
		require.Empty(t, gathered(t, registry))
	})
}

func TestLocks_PermitsInUseAreThoseOfTheProcess(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *relock.Client, registry *prometheus.Registry) {
		inUse := func() float64 { return gathered(t, registry).sum("relock_permits", `kind="semaphore"`) }
		relocktest.HoldPermitsElsewhere(t, locks, "llm", 4)
		calls := locks.Semaphore("llm", 10)
		large, err := calls.AcquireN(t.Context(), 5)
		require.NoError(t, err)
		small, err := calls.Acquire(t.Context())
		require.NoError(t, err)
		_, acquired, err := calls.TryAcquire(t.Context())
		require.NoError(t, err)
		require.False(t, acquired)
		now := gathered(t, registry)
		require.EqualValues(t, 6, inUse())
		require.EqualValues(t, 2, now.sum("relock_held", `kind="semaphore"`))
		require.EqualValues(t, 1, now.sum("relock_acquisitions_total", `kind="semaphore"`, `result="busy"`))

		require.NoError(t, small.Release())
		require.EqualValues(t, 5, inUse())
		relocktest.Lose(t, locks, "llm")
		require.ErrorIs(t, large.Release(), relock.ErrLost)
		require.Zero(t, inUse())
		now = gathered(t, registry)
		require.EqualValues(t, 1, now.sum("relock_losses_total", `cause="forced"`, `kind="semaphore"`))
		require.EqualValues(t, 1, now.sum("relock_hold_seconds", `end="released"`, `kind="semaphore"`))
	})
}
