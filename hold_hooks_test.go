package relock

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

func TestUnlock_DoesNotWaitForARenewalHook(t *testing.T) {
	redistest.InTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		c := LocksOn(t, b.Client(t), WithRenewInterval(20*time.Millisecond))
		hook, entered := locktest.HookThatStays[Event](t)
		m := c.Mutex(redistest.Key(t), WithUnlockTimeout(5*time.Second), WithHooks(Hooks{Renewed: hook}))
		locktest.RequireLocked(t, m)
		redistest.Receive(t, entered)
		began := time.Now()
		locktest.RequireLocked(t, m)
		locktest.RequireUnlocked(t, m)
		locktest.RequireUnlocked(t, m)
		require.Less(t, time.Since(began), 2*time.Second)
	})
}

func TestLost_DoesNotWaitForARenewalHook(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		hook, entered := locktest.HookThatStays[Event](t)
		c := LocksOn(t, rdb, WithTTL(time.Second))
		m := c.Mutex(key, WithHooks(Hooks{Renewed: hook}))
		locktest.RequireLocked(t, m)
		ctx := m.Context(t.Context())
		redistest.Receive(t, entered)
		rival, theirs := LocksOn(t, rdb).Mutex(key), locktest.NewActor(t)
		theirs.Locks(t, rival)
		require.ErrorIs(t, context.Cause(ctx), ErrLost, "another owner has the lock")
		theirs.Unlocks(t, rival)
		require.ErrorIs(t, m.Unlock(), ErrLost)
	})
}

// A lease that is not renewed is over then.
func TestHooks_OutlastingAFixedLeaseLosesTheLock(t *testing.T) {
	t.Parallel()
	for _, opts := range [][]MutexOption{nil, {WithOwner("job")}} {
		locktest.OnEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
			events := &chronicle{}
			hooks := events.Hooks()
			count := hooks.Acquired
			hooks.Acquired = func(e Event) {
				count(e)
				time.Sleep(ttl * 3 / 2) // it is what is tested
			}
			c := LocksOn(t, rdb, WithTTL(ttl), WithoutRenewal())
			m := c.Mutex(redistest.Key(t), append(opts, WithHooks(hooks))...)
			require.NoError(t, m.Lock(t.Context()))
			err := m.Unlock()
			require.ErrorIs(t, err, ErrLost)
			require.ErrorContains(t, err, "WithoutRenewal")
			require.ErrorIs(t, m.Unlock(), ErrNotHeld)
			require.Equal(t, []string{"acquired", "lost"}, events.Names())
		})
	}
}

func TestHooks_MayOutlastARenewedLease(t *testing.T) {
	t.Parallel()
	for _, opts := range [][]MutexOption{nil, {WithOwner("job")}, {WithOwner("job"), WithMaxHold(time.Hour)}} {
		locktest.OnEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
			c, times := LocksOn(t, rdb, WithTTL(ttl)), 0
			m := c.Mutex(redistest.Key(t), append(opts, WithHooks(Hooks{Acquired: func(Event) {
				times++
				time.Sleep(ttl * 3 / 2) // it is what is tested
			}}))...)
			locktest.RequireLocked(t, m)
			require.Equal(t, 1, times)
			locktest.RequireUnlocked(t, m)
		})
	}
}
