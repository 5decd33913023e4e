package relock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestReentryToDepthFiftyThroughDifferentHandlesIsCountedOnRedis(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		field := fieldOf(c)
		for n := 1; n <= 50; n++ {
			requireLocked(t, c.Mutex(key))
			require.Equal(t, n, c.Mutex(key).HoldCount())
			requireOnRedis(t, rdb, key, field, n)
		}
		for n := 49; n >= 0; n-- {
			requireUnlocked(t, c.Mutex(key))
			require.Equal(t, n, c.Mutex(key).HoldCount())
			if n > 0 {
				requireOnRedis(t, rdb, key, field, n)
			}
		}
		requireFree(t, rdb, key)
		require.ErrorIs(t, c.Mutex(key).Unlock(), ErrNotHeld)
		require.Zero(t, gatesOf(c))
	})
}

func TestANameGivesTheHandleItsName(t *testing.T) {
	c := locksOn(t, redistest.Mini(t).Client(t), WithPrefix("app:"))
	require.Equal(t, "orders:42", c.Mutex("orders:42").Name(), "without the prefix")
	require.Equal(t, "b,a,b", c.MultiMutex([]string{"b", "a", "b"}).Name())
}

func TestAnotherGoroutineOfTheSameProcessWaits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		m, other := c.Mutex(key), newActor(t)
		requireLocked(t, m)
		require.NoError(t, other.call(func() error {
			if n := m.HoldCount(); n != 0 {
				return fmt.Errorf("another goroutine's hold counts %d for it", n)
			}
			return nil
		}))
		require.False(t, other.tries(t, m))
		waiting := other.lock(t.Context(), m)
		goesOn(t, waiting)
		requireOnRedis(t, rdb, key, fieldOf(c), 1)
		requireUnlocked(t, m)
		require.NoError(t, outcomeOf(t, waiting))
		require.ErrorIs(t, m.Unlock(), ErrNotHeld, "the other's hold is not ours to release")
		other.unlocks(t, m)
		requireFree(t, rdb, key)
	})
}

func TestReentryNeverShortensTheLease(t *testing.T) {
	for name, inner := range map[string][]MutexOption{
		"renewed": {WithTTL(time.Second)},
		"fixed":   {WithTTL(time.Second), WithoutRenewal()},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				rdb, key := b.Client(t), redistest.Key(t)
				c := locksOn(t, rdb)
				requireLocked(t, c.Mutex(key, WithTTL(time.Minute)))
				long := func(when string) {
					require.Greater(t, ttlOf(rdb, key), 40*time.Second, when)
				}
				requireLocked(t, c.Mutex(key, inner...))
				long("inside the inner level")
				requireUnlocked(t, c.Mutex(key))
				long("after the inner level")
				requireUnlocked(t, c.Mutex(key))
			})
		})
	}
}

func TestALongerLevelLengthensTheLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		requireLocked(t, c.Mutex(key, WithTTL(20*time.Second), WithoutRenewal()))
		requireLocked(t, c.Mutex(key, WithTTL(time.Minute), WithoutRenewal()))
		require.Greater(t, ttlOf(rdb, key), 40*time.Second)
		requireUnlocked(t, c.Mutex(key))
		require.Greater(t, ttlOf(rdb, key), 40*time.Second, "a lease never gets shorter")
		requireUnlocked(t, c.Mutex(key))
	})
}

func TestAFixedLevelInsideARenewedOneLeavesTheRenewalOn(t *testing.T) {
	t.Parallel()
	onEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
		key := redistest.Key(t)
		c := locksOn(t, rdb, WithTTL(ttl))
		outer, inner := c.Mutex(key), c.Mutex(key, WithoutRenewal(), WithTTL(ttl/2))
		requireLocked(t, outer)
		requireLocked(t, inner)
		alive := func() bool { return ttlOf(rdb, key) > 0 && outer.HoldCount() > 0 }
		throughout(t, ttl*3/2, alive, "inside both levels")
		requireUnlocked(t, inner)
		throughout(t, ttl*3/2, alive, "inside the outer level")
		requireUnlocked(t, outer)
	})
}

func TestARenewedLevelInsideAFixedOneIsRenewedUntilItIsUnlocked(t *testing.T) {
	t.Parallel()
	onEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
		key := redistest.Key(t)
		c := locksOn(t, rdb, WithTTL(ttl))
		outer, inner := c.Mutex(key, WithoutRenewal()), c.Mutex(key)
		requireLocked(t, outer)
		ctx := outer.Context(t.Context())
		requireLocked(t, inner)
		throughout(t, 2*ttl, func() bool { return ttlOf(rdb, key) > 0 && ctx.Err() == nil }, "while the renewed level is open")
		requireUnlocked(t, inner)
		unlocked := time.Now()
		receives(t, ctx.Done())
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		require.Less(t, time.Since(unlocked), ttl+soonEnough/10, "nothing renews the fixed lease any more")
		require.ErrorIs(t, outer.Unlock(), ErrLost)
	})
}

func TestUnlockByAnOwnerThatHoldsNothingAsksNobody(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		key, other := redistest.Key(t), newActor(t)
		c := locksOn(t, rdb)
		m := c.Mutex(key)
		require.ErrorIs(t, m.Unlock(), ErrNotHeld)
		require.ErrorIs(t, c.Mutex(key, WithOwner("job-17")).Unlock(), ErrNotHeld)
		require.Zero(t, relay.Accepted())

		other.locks(t, m)
		relay.ResetLog()
		err := m.Unlock()
		require.ErrorIs(t, err, ErrNotHeld)
		require.ErrorContains(t, err, key)
		require.Zero(t, relay.Count(redistest.Any))
		other.unlocks(t, m)
		require.ErrorIs(t, m.Unlock(), ErrNotHeld)
	})
}

func TestASecondLockWithoutReentrancyIsRefused(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		m := c.Mutex(key, WithoutReentrancy())
		requireLocked(t, m)
		require.ErrorIs(t, m.Lock(t.Context()), ErrReentrant)
		held, err := m.TryLock(t.Context())
		require.ErrorIs(t, err, ErrReentrant)
		require.False(t, held)
		require.Equal(t, 1, m.HoldCount())
		requireOnRedis(t, rdb, key, fieldOf(c), 1)
		requireUnlocked(t, m)
		requireFree(t, rdb, key)
	})
}

func TestALockWithADoneContextSendsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		m := locksOn(t, rdb).Mutex(redistest.Key(t))
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

		requireLocked(t, m)
		relay.ResetLog()
		require.ErrorIs(t, m.Lock(ctx), reason, "a re-entry is no exception")
		require.Equal(t, 1, m.HoldCount())
		require.Zero(t, relay.Count(redistest.Any))
		requireUnlocked(t, m)
	})
}

func TestUnlockDoesNotDependOnTheContextOfLock(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		m := locksOn(t, rdb).Mutex(key)
		ctx, cancel := context.WithCancel(t.Context())
		require.NoError(t, m.Lock(ctx))
		require.NoError(t, m.Lock(ctx))
		cancel()
		require.Equal(t, 2, m.HoldCount(), "the hold does not end with the context of Lock")
		requireUnlocked(t, m)
		requireUnlocked(t, m)
		requireFree(t, rdb, key)
	})
}

func TestFencingTokensRiseFromHoldToHold(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		first, second := locksOn(t, rdb), locksOn(t, rdb)
		last := int64(0)
		for i := range 20 {
			m := []*Client{first, second}[i%2].Mutex(key, WithFencing())
			requireLocked(t, m)
			token := m.FencingToken()
			require.Greater(t, token, last)
			requireLocked(t, m)
			require.Equal(t, token, m.FencingToken(), "re-entry keeps the token")
			requireUnlocked(t, m)
			requireUnlocked(t, m)
			require.Zero(t, m.FencingToken())
			last = token
		}
		state, err := first.Mutex(key).State(t.Context())
		require.NoError(t, err)
		require.Equal(t, State{FencingToken: last}, state)

		plain := first.Mutex(key)
		requireLocked(t, plain)
		require.Zero(t, plain.FencingToken(), "none was wished")
		requireLocked(t, first.Mutex(key, WithFencing()))
		require.Greater(t, plain.FencingToken(), last, "an inner level may wish for one")
		requireUnlocked(t, plain)
		requireUnlocked(t, plain)
	})
}

func TestAFencingCounterExpiresUnlessItIsShared(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		m := locksOn(t, rdb).Mutex(key, WithFencing())
		requireLocked(t, m)
		requireUnlocked(t, m)
		counter := counterOf(key)
		require.InDelta(t, 24*time.Hour, ttlOf(rdb, counter), float64(time.Minute))

		m = locksOn(t, rdb).Mutex(key, WithSharedFencing())
		requireLocked(t, m)
		requireUnlocked(t, m)
		require.Less(t, ttlOf(rdb, counter), time.Duration(0), "Java's counters have no expiry")
		require.EqualValues(t, 1, rdb.Exists(t.Context(), counter).Val())
		require.NoError(t, rdb.Del(t.Context(), counter).Err())
	})
}
