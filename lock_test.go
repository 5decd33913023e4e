package relock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

func TestLock_ReentryToDepthFiftyByDifferentHandlesIsCounted(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := LocksOn(t, rdb)
		field := locktest.FieldOf(c)
		for n := 1; n <= 50; n++ {
			locktest.RequireLocked(t, c.Mutex(key))
			require.Equal(t, n, c.Mutex(key).HoldCount())
			locktest.RequireOnRedis(t, rdb, key, field, n)
		}
		for n := 49; n >= 0; n-- {
			locktest.RequireUnlocked(t, c.Mutex(key))
			require.Equal(t, n, c.Mutex(key).HoldCount())
			if n > 0 {
				locktest.RequireOnRedis(t, rdb, key, field, n)
			}
		}
		locktest.RequireFree(t, rdb, key)
		require.ErrorIs(t, c.Mutex(key).Unlock(), ErrNotHeld)
		require.Zero(t, NamesOf(c))
	})
}

func TestMutex_HasItsName(t *testing.T) {
	c := LocksOn(t, redistest.Mini(t).Client(t), WithPrefix("app:"))
	require.Equal(t, "orders:42", c.Mutex("orders:42").Name(), "without the prefix")
	require.Equal(t, "b,a,b", c.MultiMutex([]string{"b", "a", "b"}).Name())
}

func TestLock_OtherGoroutineOfTheProcessWaits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := LocksOn(t, rdb)
		m, other := c.Mutex(key), locktest.NewActor(t)
		locktest.RequireLocked(t, m)
		require.NoError(t, other.Call(func() error {
			if n := m.HoldCount(); n != 0 {
				return fmt.Errorf("another goroutine's hold counts %d for it", n)
			}
			return nil
		}))
		require.False(t, other.Tries(t, m))
		waiting := other.Lock(t.Context(), m)
		locktest.GoesOn(t, waiting)
		locktest.RequireOnRedis(t, rdb, key, locktest.FieldOf(c), 1)
		locktest.RequireUnlocked(t, m)
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		require.ErrorIs(t, m.Unlock(), ErrNotHeld, "the other's hold is not ours to release")
		other.Unlocks(t, m)
		locktest.RequireFree(t, rdb, key)
	})
}

func TestLock_ReentryNeverShortensTheLease(t *testing.T) {
	for name, inner := range map[string][]MutexOption{
		"renewed": {WithTTL(time.Second)},
		"fixed":   {WithTTL(time.Second), WithoutRenewal()},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				rdb, key := b.Client(t), redistest.Key(t)
				c := LocksOn(t, rdb)
				locktest.RequireLocked(t, c.Mutex(key, WithTTL(time.Minute)))
				long := func(when string) {
					require.Greater(t, locktest.TTLOf(rdb, key), 40*time.Second, when)
				}
				locktest.RequireLocked(t, c.Mutex(key, inner...))
				long("inside the inner level")
				locktest.RequireUnlocked(t, c.Mutex(key))
				long("after the inner level")
				locktest.RequireUnlocked(t, c.Mutex(key))
			})
		})
	}
}

func TestLock_LongerLevelLengthensTheLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := LocksOn(t, rdb)
		locktest.RequireLocked(t, c.Mutex(key, WithTTL(20*time.Second), WithoutRenewal()))
		locktest.RequireLocked(t, c.Mutex(key, WithTTL(time.Minute), WithoutRenewal()))
		require.Greater(t, locktest.TTLOf(rdb, key), 40*time.Second)
		locktest.RequireUnlocked(t, c.Mutex(key))
		require.Greater(t, locktest.TTLOf(rdb, key), 40*time.Second, "a lease never gets shorter")
		locktest.RequireUnlocked(t, c.Mutex(key))
	})
}

func TestLock_FixedLevelInsideARenewedOneLeavesTheRenewalOn(t *testing.T) {
	t.Parallel()
	locktest.OnEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
		key := redistest.Key(t)
		c := LocksOn(t, rdb, WithTTL(ttl))
		outer, inner := c.Mutex(key), c.Mutex(key, WithoutRenewal(), WithTTL(ttl/2))
		locktest.RequireLocked(t, outer)
		locktest.RequireLocked(t, inner)
		alive := func() bool { return locktest.TTLOf(rdb, key) > 0 && outer.HoldCount() > 0 }
		locktest.Throughout(t, ttl*3/2, alive, "inside both levels")
		locktest.RequireUnlocked(t, inner)
		locktest.Throughout(t, ttl*3/2, alive, "inside the outer level")
		locktest.RequireUnlocked(t, outer)
	})
}

func TestLock_RenewedLevelInsideAFixedOneIsRenewedUntilUnlocked(t *testing.T) {
	t.Parallel()
	locktest.OnEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
		key := redistest.Key(t)
		c := LocksOn(t, rdb, WithTTL(ttl))
		outer, inner := c.Mutex(key, WithoutRenewal()), c.Mutex(key)
		locktest.RequireLocked(t, outer)
		ctx := outer.Context(t.Context())
		locktest.RequireLocked(t, inner)
		locktest.Throughout(t, 2*ttl, func() bool { return locktest.TTLOf(rdb, key) > 0 && ctx.Err() == nil }, "while the renewed level is open")
		locktest.RequireUnlocked(t, inner)
		unlocked := time.Now()
		redistest.Receive(t, ctx.Done())
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		require.Less(t, time.Since(unlocked), ttl+locktest.SoonEnough/10, "nothing renews the fixed lease any more")
		require.ErrorIs(t, outer.Unlock(), ErrLost)
	})
}

func TestUnlock_WithoutAHoldAsksNobody(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		key, other := redistest.Key(t), locktest.NewActor(t)
		c := LocksOn(t, rdb)
		m := c.Mutex(key)
		require.ErrorIs(t, m.Unlock(), ErrNotHeld)
		require.ErrorIs(t, c.Mutex(key, WithOwner("job-17")).Unlock(), ErrNotHeld)
		require.Zero(t, relay.Accepted())

		other.Locks(t, m)
		relay.ResetLog()
		err := m.Unlock()
		require.ErrorIs(t, err, ErrNotHeld)
		require.ErrorContains(t, err, key)
		require.Zero(t, relay.Count(redistest.Any))
		other.Unlocks(t, m)
		require.ErrorIs(t, m.Unlock(), ErrNotHeld)
	})
}

func TestLock_SecondOneWithoutReentrancyIsRefused(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := LocksOn(t, rdb)
		m := c.Mutex(key, WithoutReentrancy())
		locktest.RequireLocked(t, m)
		require.ErrorIs(t, m.Lock(t.Context()), ErrReentrant)
		held, err := m.TryLock(t.Context())
		require.ErrorIs(t, err, ErrReentrant)
		require.False(t, held)
		require.Equal(t, 1, m.HoldCount())
		locktest.RequireOnRedis(t, rdb, key, locktest.FieldOf(c), 1)
		locktest.RequireUnlocked(t, m)
		locktest.RequireFree(t, rdb, key)
	})
}

func TestLock_DoneContextSendsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		m := LocksOn(t, rdb).Mutex(redistest.Key(t))
		reason := fmt.Errorf("the shop is closed")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(reason)

		err := m.Lock(ctx)
		require.ErrorIs(t, err, reason)
		require.ErrorIs(t, err, context.Canceled)
		_, err = m.TryLock(ctx)
		require.ErrorIs(t, err, reason)
		_, err = m.State(ctx)
		require.ErrorIs(t, err, reason)
		_, err = m.ForceUnlock(ctx)
		require.ErrorIs(t, err, reason)
		require.Zero(t, relay.Accepted())

		locktest.RequireLocked(t, m)
		relay.ResetLog()
		require.ErrorIs(t, m.Lock(ctx), reason, "a re-entry is no exception")
		require.Equal(t, 1, m.HoldCount())
		require.Zero(t, relay.Count(redistest.Any))
		locktest.RequireUnlocked(t, m)
	})
}

func TestUnlock_DoesNotDependOnTheContextOfLock(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		m := LocksOn(t, rdb).Mutex(key)
		ctx, cancel := context.WithCancel(t.Context())
		require.NoError(t, m.Lock(ctx))
		require.NoError(t, m.Lock(ctx))
		cancel()
		require.Equal(t, 2, m.HoldCount(), "the hold does not end with the context of Lock")
		locktest.RequireUnlocked(t, m)
		locktest.RequireUnlocked(t, m)
		locktest.RequireFree(t, rdb, key)
	})
}

func TestTokens_RiseFromHoldToHold(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		first, second := LocksOn(t, rdb), LocksOn(t, rdb)
		last := int64(0)
		for i := range 20 {
			m := []*Client{first, second}[i%2].Mutex(key, WithFencing())
			locktest.RequireLocked(t, m)
			token := m.FencingToken()
			require.Greater(t, token, last)
			locktest.RequireLocked(t, m)
			require.Equal(t, token, m.FencingToken(), "re-entry keeps the token")
			locktest.RequireUnlocked(t, m)
			locktest.RequireUnlocked(t, m)
			require.Zero(t, m.FencingToken())
			last = token
		}
		state, err := first.Mutex(key).State(t.Context())
		require.NoError(t, err)
		require.Equal(t, State{FencingToken: last}, state)

		plain := first.Mutex(key)
		locktest.RequireLocked(t, plain)
		require.Zero(t, plain.FencingToken(), "none was wished")
		locktest.RequireLocked(t, first.Mutex(key, WithFencing()))
		require.Greater(t, plain.FencingToken(), last, "an inner level may wish for one")
		locktest.RequireUnlocked(t, plain)
		locktest.RequireUnlocked(t, plain)
	})
}

func TestTokens_CounterExpiresUnlessShared(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		m := LocksOn(t, rdb).Mutex(key, WithFencing())
		locktest.RequireLocked(t, m)
		locktest.RequireUnlocked(t, m)
		counter := locktest.CounterOf(key)
		require.InDelta(t, 24*time.Hour, locktest.TTLOf(rdb, counter), float64(time.Minute))

		m = LocksOn(t, rdb).Mutex(key, WithSharedFencing())
		locktest.RequireLocked(t, m)
		locktest.RequireUnlocked(t, m)
		require.Less(t, locktest.TTLOf(rdb, counter), time.Duration(0), "Java's counters have no expiry")
		require.EqualValues(t, 1, rdb.Exists(t.Context(), counter).Val())
		require.NoError(t, rdb.Del(t.Context(), counter).Err())
	})
}
