package relock

import (
	"context"
	"errors"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// hookThatStays is a hook that does not return before it is let go.
func hookThatStays(t *testing.T) (hook func(Event), entered chan struct{}) {
	entered, letGo := make(chan struct{}, 16), make(chan struct{})
	t.Cleanup(func() { close(letGo) })
	return func(Event) {
		select {
		case entered <- struct{}{}:
		default:
		}
		<-letGo
	}, entered
}

func TestAnUnlockDoesNotWaitForAHookOfARenewal(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		c := locksOn(t, b.Client(t), WithRenewInterval(20*time.Millisecond))
		hook, entered := hookThatStays(t)
		m := c.Mutex(redistest.Key(t), WithUnlockTimeout(5*time.Second), WithHooks(Hooks{Renewed: hook}))
		requireLocked(t, m)
		receives(t, entered)
		began := time.Now()
		requireLocked(t, m)
		requireUnlocked(t, m)
		requireUnlocked(t, m)
		require.Less(t, time.Since(began), 2*time.Second)
	})
}

func TestALossDoesNotWaitForAHookOfARenewal(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		hook, entered := hookThatStays(t)
		c := locksOn(t, rdb, WithTTL(time.Second))
		m := c.Mutex(key, WithHooks(Hooks{Renewed: hook}))
		requireLocked(t, m)
		ctx := m.Context(t.Context())
		receives(t, entered)
		rival, theirs := locksOn(t, rdb).Mutex(key), newActor(t)
		theirs.locks(t, rival)
		require.ErrorIs(t, context.Cause(ctx), ErrLost, "somebody else has the lock")
		theirs.unlocks(t, rival)
		require.ErrorIs(t, m.Unlock(), ErrLost)
	})
}

func TestDoDoesNotRunItsFunctionOnAHoldThatIsLost(t *testing.T) {
	c, clocks := locksWithClock(t, redistest.Mini(t).Client(t))
	m := c.Mutex(redistest.Key(t), WithHooks(Hooks{Acquired: func(Event) { clocks.set(time.Hour) }}))
	ran := false
	require.ErrorIs(t, m.Do(t.Context(), func(context.Context) error { ran = true; return nil }), ErrLost)
	require.False(t, ran)
}

func TestDoDoesNotRunItsFunctionOnAHoldThatCloseHasEnded(t *testing.T) {
	c := locksOn(t, redistest.Mini(t).Client(t))
	m := c.Mutex(redistest.Key(t), WithHooks(Hooks{Acquired: func(Event) { require.NoError(t, c.Close()) }}))
	ran := false
	require.ErrorIs(t, m.Do(t.Context(), func(context.Context) error { ran = true; return nil }), ErrClosed)
	require.False(t, ran)
}

// severalErrors cannot be compared.
type severalErrors []error

func (s severalErrors) Error() string { return errors.Join(s...).Error() }

type oddContext struct{ context.Context }

func (oddContext) Err() error { return severalErrors{context.Canceled} }

func TestAContextMayEndWithAnErrorThatCannotBeCompared(t *testing.T) {
	c := locksOn(t, redistest.Mini(t).Client(t))
	require.ErrorContains(t, c.Mutex(redistest.Key(t)).Lock(oddContext{t.Context()}), "context canceled")
}

// That is what an errgroup makes of the first error.
func TestACauseThatIsAnotherLocksErrorDoesNotPassForTheOwn(t *testing.T) {
	b := redistest.Mini(t)
	c, key := locksOn(t, b.Client(t)), redistest.Key(t)
	heldByStranger(t, b.Client(t), key+"-held", time.Minute)
	ended, end := context.WithCancel(t.Context())
	end()
	for name, first := range map[string]error{
		"cancelled": c.Mutex(key).Lock(ended),
		"timed out": c.Mutex(key+"-held", WithWaitTimeout(20*time.Millisecond)).Lock(t.Context()),
	} {
		t.Run(name, func(t *testing.T) {
			group, cancel := context.WithCancelCause(t.Context())
			m := c.Mutex(key + "-held")
			waiting := newActor(t).lock(group, m)
			awaitWaiters(t, c.session, m.Name(), 1)
			cancel(first)
			for _, err := range []error{outcomeOf(t, waiting), c.Mutex(key).Lock(group)} {
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, err, first)
			}
		})
	}
}

func TestAHookThatEndsItsGoroutineIsNoLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		heldByStranger(t, rdb, key, time.Minute)
		c := locksOn(t, rdb)
		m := c.Mutex(key, WithOwner("job"), WithHooks(Hooks{Contended: func(Event) { runtime.Goexit() }}))
		require.ErrorIs(t, m.Lock(t.Context()), errHookEnded)
		require.Zero(t, m.HoldCount())
		require.Empty(t, holdsOn(c.session, key))
	})
}

// A lease that is not renewed is over then. Who locks for a fixed owner learns of it at once.
func TestAHookThatTakesLongerThanAFixedLeaseLosesTheLock(t *testing.T) {
	t.Parallel()
	for _, opts := range [][]MutexOption{nil, {WithOwner("job")}} {
		onEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
			events := &chronicle{}
			hooks := events.hooks()
			count := hooks.Acquired
			hooks.Acquired = func(e Event) {
				count(e)
				time.Sleep(ttl * 3 / 2) // it is what is tested
			}
			c := locksOn(t, rdb, WithTTL(ttl), WithoutRenewal())
			m := c.Mutex(redistest.Key(t), append(opts, WithHooks(hooks))...)
			err := m.Lock(t.Context())
			if opts == nil {
				require.NoError(t, err)
				err = m.Unlock()
			}
			require.ErrorIs(t, err, ErrLost)
			require.ErrorContains(t, err, "WithoutRenewal")
			require.ErrorIs(t, m.Unlock(), ErrNotHeld)
			require.Equal(t, []string{"acquired", "lost"}, events.names())
		})
	}
}

func TestAHookMayTakeLongerThanTheLease(t *testing.T) {
	t.Parallel()
	for _, opts := range [][]MutexOption{nil, {WithOwner("job")}, {WithOwner("job"), WithMaxHold(time.Hour)}} {
		onEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
			c, times := locksOn(t, rdb, WithTTL(ttl)), 0
			m := c.Mutex(redistest.Key(t), append(opts, WithHooks(Hooks{Acquired: func(Event) {
				times++
				time.Sleep(ttl * 3 / 2) // it is what is tested
			}}))...)
			requireLocked(t, m)
			require.Equal(t, 1, times)
			requireUnlocked(t, m)
		})
	}
}

func TestAnUnlockByAnOwnerThatOnlyWaitsSaysThatItHoldsNothing(t *testing.T) {
	b := redistest.Mini(t)
	rdb, key := b.Client(t), redistest.Key(t)
	heldByStranger(t, rdb, key, time.Minute)
	c := locksOn(t, rdb)
	m := c.Mutex(key, WithOwner("job"))
	ctx, cancel := context.WithCancel(t.Context())
	waiting := newActor(t).lock(ctx, m)
	awaitWaiters(t, c.session, key, 1)
	err := m.Unlock()
	require.ErrorIs(t, err, ErrNotHeld)
	require.NotContains(t, err.Error(), "other names")
	cancel()
	require.ErrorIs(t, outcomeOf(t, waiting), context.Canceled)
}

func TestDurationsWithoutBoundAreUnderstood(t *testing.T) {
	c, clocks := locksWithClock(t, redistest.Mini(t).Client(t))
	require.Equal(t, 5*time.Second, c.FairMutex("orders", WithSafetyPoll(math.MaxInt64)).settings.EntryLease())
	m := c.Mutex(redistest.Key(t), WithMaxHold(math.MaxInt64))
	requireLocked(t, m)
	clocks.set(-time.Second)
	require.True(t, holdsOn(c.session, m.Name())[0].levels[0].renewedAt(c.session.now()))
	requireUnlocked(t, m)
}
