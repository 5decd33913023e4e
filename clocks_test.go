package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/election"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// jumpBeyondLease is how far the clock is set forward: the default TTL is over then.
const jumpBeyondLease = time.Hour

// The wall clock goes on while the machine is suspended, and the lease with it. Whichever method is
// asked next finds out, whether or not the watchdog has run.
func TestClocks_WallClockBeyondTheLeaseIsALossForEveryCall(t *testing.T) {
	asked := map[string]func(t *testing.T, m *relock.Mutex, ctx context.Context){
		"Err": func(t *testing.T, _ *relock.Mutex, ctx context.Context) {
			require.ErrorIs(t, ctx.Err(), context.Canceled)
		},
		"Deadline": func(t *testing.T, m *relock.Mutex, _ context.Context) {
			_, held := m.Deadline()
			require.False(t, held)
		},
		"HoldCount": func(t *testing.T, m *relock.Mutex, _ context.Context) { require.Zero(t, m.HoldCount()) },
		"Lock": func(t *testing.T, m *relock.Mutex, _ context.Context) {
			require.ErrorIs(t, m.Lock(t.Context()), relock.ErrLost)
		},
		"Unlock": func(t *testing.T, m *relock.Mutex, _ context.Context) { require.ErrorIs(t, m.Unlock(), relock.ErrLost) },
		"Context": func(t *testing.T, m *relock.Mutex, _ context.Context) {
			require.ErrorIs(t, context.Cause(m.Context(t.Context())), relock.ErrLost)
		},
		"TryLock": func(t *testing.T, m *relock.Mutex, _ context.Context) {
			_, err := m.TryLock(t.Context())
			require.ErrorIs(t, err, relock.ErrLost)
		},
	}
	for name, ask := range asked {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				c, clocks := relock.LocksWithClock(t, b.Client(t))
				m := c.Mutex(redistest.Key(t))
				locktest.RequireLocked(t, m)
				locktest.RequireLocked(t, m)
				ctx := m.Context(t.Context())
				require.NoError(t, ctx.Err())
				clocks.Set(jumpBeyondLease)
				ask(t, m, ctx)
				require.ErrorIs(t, context.Cause(ctx), relock.ErrLost)
				require.Zero(t, m.HoldCount())
				require.ErrorIs(t, m.Unlock(), relock.ErrLost)
				_ = m.Unlock()
			})
		})
	}
}

// A machine is suspended before it has the answer to a re-entry. The Lock that fails has left no level for which there is
// no Unlock: its owner could never lock the name again.
func TestClocks_LockInsideAHoldLostMeanwhileLeavesNoLevel(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		c, clocks := relock.LocksWithClock(t, rdb)
		m := c.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		relay.After(locktest.RunsOf(protocol.ReenterScript), func(redistest.Command, string) { clocks.Set(jumpBeyondLease) })
		require.ErrorIs(t, m.Lock(t.Context()), relock.ErrLost)
		require.ErrorIs(t, m.Unlock(), relock.ErrLost)
		require.ErrorIs(t, m.Unlock(), relock.ErrNotHeld)
		locktest.RequireLocked(t, m)
		locktest.RequireUnlocked(t, m)
	})
}

func TestClocks_ContextOfDoChecksThem(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		c, clocks := relock.LocksWithClock(t, b.Client(t))
		err := c.Mutex(redistest.Key(t)).Do(t.Context(), func(ctx context.Context) error {
			require.NoError(t, ctx.Err())
			clocks.Set(jumpBeyondLease)
			require.Error(t, ctx.Err())
			require.ErrorIs(t, context.Cause(ctx), relock.ErrLost)
			return nil
		})
		require.ErrorIs(t, err, relock.ErrLost)
	})
}

func TestClocks_ContextOfALeaderChecksThem(t *testing.T) {
	for name, opts := range map[string][]election.Option{"plain": nil, "WithYield": {election.WithYield(time.Minute)}} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				c, clocks := relock.LocksWithClock(t, b.Client(t))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				err := election.Run(ctx, c.Mutex(redistest.Key(t)), func(term context.Context, _ int64) error {
					defer cancel()
					require.NoError(t, term.Err())
					clocks.Set(jumpBeyondLease)
					require.Error(t, term.Err())
					require.ErrorIs(t, context.Cause(term), relock.ErrLost)
					return nil
				}, opts...)
				require.ErrorIs(t, err, relock.ErrLost)
			})
		})
	}
}

func TestClocks_WallClockBeyondTheLeaseIsNoticedUnasked(t *testing.T) {
	redistest.InTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		c, clocks := relock.LocksWithClock(t, b.Client(t))
		renewed, fixed := c.Mutex(redistest.Key(t)), c.Mutex(redistest.Key(t), relock.WithoutRenewal())
		locktest.RequireLocked(t, renewed)
		locktest.RequireLocked(t, fixed)
		a, z := renewed.Context(t.Context()), fixed.Context(t.Context())
		clocks.Set(jumpBeyondLease)
		jumped := time.Now()
		redistest.Receive(t, a.Done())
		redistest.Receive(t, z.Done())
		require.Less(t, time.Since(jumped), 5*time.Second, "no other timer is due for ten")
		require.ErrorIs(t, context.Cause(a), relock.ErrLost)
		require.ErrorIs(t, context.Cause(z), relock.ErrLost)
		require.ErrorIs(t, renewed.Unlock(), relock.ErrLost)
		require.ErrorIs(t, fixed.Unlock(), relock.ErrLost)
	})
}

// The watchdog does not come to look at it.
func TestClocks_WallClockBeyondTheLeaseIsNoticedDuringAHook(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	c, clocks := relock.LocksWithClock(t, redistest.Mini(t).Client(t), relock.WithRenewInterval(20*time.Millisecond))
	hook, entered := locktest.HookThatStays[relock.Event](t)
	m := c.Mutex(redistest.Key(t), relock.WithHooks(relock.Hooks{Renewed: hook}))
	locktest.RequireLocked(t, m)
	ctx := m.Context(t.Context())
	redistest.Receive(t, entered)
	clocks.Set(jumpBeyondLease)
	jumped := time.Now()
	redistest.Receive(t, ctx.Done())
	require.Less(t, time.Since(jumped), 5*time.Second, "the timer is due after thirty")
	require.ErrorIs(t, m.Unlock(), relock.ErrLost)
}

// The watchdog is in a hook when the wall clock jumps, and the lease ends after that.
func TestClocks_LeaseThatEndsSoonAfterAJumpIsNoticedDuringAHook(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		c, clocks := relock.LocksWithClock(t, rdb, relock.WithRenewInterval(10*time.Second))
		hook, entered := locktest.HookThatStays[relock.Event](t)
		m := c.Mutex(redistest.Key(t), relock.WithHooks(relock.Hooks{Renewed: hook}))
		locktest.RequireLocked(t, m)
		ctx := m.Context(t.Context())
		<-entered
		at, held := m.Deadline()
		require.True(t, held)
		const left = 5 * time.Second
		clocks.Set(time.Until(at) - left)
		jumped := time.Now()
		<-ctx.Done()
		require.InDelta(t, left, time.Since(jumped), float64(time.Second))
		require.ErrorIs(t, m.Unlock(), relock.ErrLost)
	})
}

func TestClocks_WallClockSetBackLosesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, events := b.Client(t), &chronicle{}
		c, clocks := relock.LocksWithClock(t, rdb, relock.WithTTL(10*time.Second), relock.WithRenewInterval(20*time.Millisecond), relock.WithHooks(events.Hooks()))
		m := c.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		ctx := m.Context(t.Context())
		clocks.Set(-jumpBeyondLease)
		locktest.Throughout(t, locktest.AWhile, func() bool { return m.HoldCount() == 1 && ctx.Err() == nil }, "held")
		n := len(events.Of("renewed"))
		redistest.Eventually(t, "renewals", func() bool { return len(events.Of("renewed")) > n+1 })
		locktest.RequireLocked(t, m)
		locktest.RequireUnlocked(t, m)
		locktest.RequireUnlocked(t, m)
		require.Empty(t, events.Of("lost"))
		locktest.RequireFree(t, rdb, m.Name())
	})
}

// Of the two clocks the one counts that has less left of the lease.
func TestClocks_DeadlineIsInWallTime(t *testing.T) {
	c, clocks := relock.LocksWithClock(t, redistest.Mini(t).Client(t), relock.WithoutRenewal())
	m := c.Mutex(redistest.Key(t))
	locktest.RequireLocked(t, m)
	at, held := m.Deadline()
	require.True(t, held)
	clocks.Set(5 * time.Second)
	after, held := m.Deadline()
	require.True(t, held)
	require.WithinDuration(t, at, after, time.Millisecond, "the wall clock is what ends it") // they are not read at once
	clocks.Set(-jumpBeyondLease)
	after, held = m.Deadline()
	require.True(t, held)
	require.WithinDuration(t, at.Add(5*time.Second-jumpBeyondLease), after, time.Second, "the monotonic clock is what ends it")
	locktest.RequireUnlocked(t, m)
}

func TestClocks_RenewalMovesTheDeadline(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		m := relock.LocksOn(t, b.Client(t), relock.WithRenewInterval(20*time.Millisecond)).Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		first, _ := m.Deadline()
		redistest.Eventually(t, "a later deadline", func() bool {
			at, held := m.Deadline()
			return held && at.After(first)
		})
		locktest.RequireUnlocked(t, m)
	})
}

// A clock that was set back must not make a lease look longer than it is.
func TestClocks_LeaseEndsInTimeAfterTheWallClockWasSetBack(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		const ttl = 500 * time.Millisecond
		c, clocks := relock.LocksWithClock(t, b.Client(t), relock.WithTTL(ttl))
		m := c.Mutex(redistest.Key(t), relock.WithoutRenewal())
		locktest.RequireLocked(t, m)
		locked := time.Now()
		clocks.Set(-jumpBeyondLease)
		redistest.Eventually(t, "the loss", func() bool { return m.HoldCount() == 0 })
		require.Less(t, time.Since(locked), ttl+time.Second)
		require.ErrorIs(t, m.Unlock(), relock.ErrLost)
	})
}

func TestClocks_SmallStepLosesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		c, clocks := relock.LocksWithClock(t, b.Client(t))
		m := c.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		clocks.Set(5 * time.Second)
		require.Equal(t, 1, m.HoldCount())
		require.NoError(t, m.Context(t.Context()).Err())
		locktest.RequireUnlocked(t, m)
	})
}

func TestClocks_LostHoldIsNeverHeldAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb := b.Client(t)
		c, clocks := relock.LocksWithClock(t, rdb)
		m := c.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		ctx := m.Context(t.Context())
		clocks.Set(jumpBeyondLease)
		require.Error(t, ctx.Err())
		clocks.Set(-jumpBeyondLease) // the step was a mistake
		require.Error(t, ctx.Err())
		require.Zero(t, m.HoldCount())
		require.ErrorIs(t, m.Lock(t.Context()), relock.ErrLost)
		require.ErrorIs(t, m.Unlock(), relock.ErrLost)
		locktest.RequireLocked(t, m)
		require.NoError(t, m.Context(t.Context()).Err())
		locktest.RequireUnlocked(t, m)
		redistest.Eventually(t, "the key to go", func() bool { return rdb.Exists(t.Context(), m.Name()).Val() == 0 })
	})
}

// A context derived from the contexts of several holds ends with any of them, and asks for all.
func TestClocks_ContextOfSeveralHoldsChecksThemForAll(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		c, clocks := relock.LocksWithClock(t, b.Client(t))
		key := redistest.Key(t)
		short, long := c.Mutex(key), c.Mutex(key+"-long", relock.WithTTL(24*time.Hour))
		locktest.RequireLocked(t, short)
		locktest.RequireLocked(t, long)
		above, cancel := context.WithTimeout(short.Context(t.Context()), 24*time.Hour)
		defer cancel()
		ctx := long.Context(above)
		require.NoError(t, ctx.Err())
		clocks.Set(jumpBeyondLease)
		require.Error(t, ctx.Err())
		require.ErrorIs(t, context.Cause(ctx), relock.ErrLost)
		require.ErrorContains(t, context.Cause(ctx), key)
		require.Equal(t, 1, long.HoldCount())
		require.ErrorIs(t, short.Unlock(), relock.ErrLost)
		locktest.RequireUnlocked(t, long)
	})
}
