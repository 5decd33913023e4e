package relock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestALockPassesBetweenGoroutinesOfOneOwner(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, producer, consumer := locksOn(t, rdb), newActor(t), newActor(t)
		m := c.Mutex(key, WithOwner("job-17"))
		producer.locks(t, m)
		requireOnRedis(t, rdb, key, c.ID()+":job-17", 1)
		consumer.locks(t, c.Mutex(key, WithOwner("job-17")))
		requireOnRedis(t, rdb, key, c.ID()+":job-17", 2)
		require.Equal(t, 2, m.HoldCount())
		require.NoError(t, m.Context(t.Context()).Err())

		require.False(t, producer.tries(t, c.Mutex(key)), "a goroutine is somebody else")
		require.False(t, producer.tries(t, c.Mutex(key, WithOwner("job-18"))), "so is another owner")
		require.ErrorIs(t, c.Mutex(key).Unlock(), ErrNotHeld)

		producer.unlocks(t, m)
		consumer.unlocks(t, m)
		require.ErrorIs(t, m.Unlock(), ErrNotHeld)
		requireFree(t, rdb, key)
		require.Zero(t, gatesOf(c))
	})
}

func TestConcurrentLocksOfOneOwnerAreAllCounted(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		m := c.Mutex(key, WithOwner("job-17"))
		const n = 16
		all := func(f func() error) {
			var wg sync.WaitGroup
			errs := make(chan error, n)
			for range n {
				wg.Go(func() { errs <- f() })
			}
			wg.Wait()
			for range n {
				require.NoError(t, <-errs)
			}
		}
		for range 5 {
			all(func() error { return m.Lock(t.Context()) })
			require.Equal(t, n, m.HoldCount())
			requireOnRedis(t, rdb, key, c.ID()+":job-17", n)
			all(m.Unlock)
			require.Zero(t, m.HoldCount())
			requireFree(t, rdb, key)
		}
		require.Zero(t, gatesOf(c))
	})
}

func TestConcurrentLocksOfOneOwnerAreGrantedTogetherAfterAWait(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		requireLocked(t, c.Mutex(key))
		m := c.Mutex(key, WithOwner("job-17"))
		var waiting []<-chan error
		for range 8 {
			waiting = append(waiting, newActor(t).lock(t.Context(), m))
		}
		awaitCallers(t, c, key, 8)
		require.Equal(t, 1, waitersOn(c.session, key), "one attempt serves them all")
		requireUnlocked(t, c.Mutex(key))
		for _, w := range waiting {
			require.NoError(t, outcomeOf(t, w))
		}
		requireOnRedis(t, rdb, key, c.ID()+":job-17", 8)
		for range waiting {
			requireUnlocked(t, m)
		}
		requireFree(t, rdb, key)
	})
}

// awaitCallers waits until n callers of one fixed owner wait for key.
func awaitCallers(t *testing.T, c *Client, key string, n int) {
	t.Helper()
	eventually(t, "callers", func() bool {
		for _, h := range holdsOn(c.session, key) {
			h.mu.Lock()
			callers := h.sharers.callers
			h.mu.Unlock()
			if callers == n {
				return waitersOn(c.session, key) > 0
			}
		}
		return false
	})
}

func TestAnAttemptGoesOnWhileAnyCallerOfItsOwnerIsThere(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, first, second := locksOn(t, rdb), newActor(t), newActor(t)
		requireLocked(t, c.Mutex(key))
		m := c.Mutex(key, WithOwner("job-17"))
		ctx, cancel := context.WithCancel(t.Context())
		leaves := first.lock(ctx, m)
		awaitCallers(t, c, key, 1)
		stays := second.lock(t.Context(), m)
		awaitCallers(t, c, key, 2)
		behind := newActor(t)
		later := behind.lock(t.Context(), c.Mutex(key))
		awaitWaiters(t, c.session, key, 2)
		cancel()
		require.ErrorIs(t, outcomeOf(t, leaves), context.Canceled)
		goesOn(t, stays)
		requireUnlocked(t, c.Mutex(key))
		require.NoError(t, outcomeOf(t, stays), "the attempt has kept its place")
		requireOnRedis(t, rdb, key, c.ID()+":job-17", 1)
		second.unlocks(t, m)
		require.NoError(t, outcomeOf(t, later))
		behind.unlocks(t, c.Mutex(key))
		requireFree(t, rdb, key)
	})
}

func TestAnAttemptEndsWithTheLastCallerOfItsOwner(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		requireLocked(t, c.Mutex(key))
		m := c.Mutex(key, WithOwner("job-17"))
		var leave []<-chan error
		ctx, cancel := context.WithCancel(t.Context())
		for range 3 {
			leave = append(leave, newActor(t).lock(ctx, m))
		}
		awaitCallers(t, c, key, 3)
		cancel()
		for _, w := range leave {
			require.ErrorIs(t, outcomeOf(t, w), context.Canceled)
		}
		eventually(t, "the attempt to end", func() bool { return waitersOn(c.session, key) == 0 })
		requireUnlocked(t, c.Mutex(key))
		requireFree(t, rdb, key)
		require.Zero(t, gatesOf(c))
	})
}

// The last caller goes when the lock has just been granted: nobody holds what there is.
func TestAGrantForAnOwnerWhoseCallersHaveGoneIsGivenBack(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		relay, relayed := relayedTo(t, b)
		relay.Latency(3 * time.Millisecond)
		c, caller := locksOn(t, relayed), newActor(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		gone, cancelled := make(chan struct{}), make(chan time.Time, 1)
		m := c.Mutex(key, WithOwner("job-17"), WithHooks(Hooks{Acquired: func(Event) {
			cancelled <- time.Now()
			cancel()
			<-gone
		}}))
		err := outcomeOf(t, caller.lock(ctx, m))
		left := rdb.Exists(t.Context(), key).Val()
		if time.Since(<-cancelled) < undoGrace {
			require.Zero(t, left, "Lock has returned, and the key is there")
		}
		close(gone)
		require.ErrorIs(t, err, context.Canceled)
		eventually(t, "the key to go", func() bool { return rdb.Exists(t.Context(), key).Val() == 0 })
		eventually(t, "the hold to go", func() bool { return gatesOf(c) == 0 })
		require.ErrorIs(t, m.Unlock(), ErrNotHeld)
	})
}

func TestUnlockRacingLockOfOneOwnerCountsExactly(t *testing.T) {
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, rival := locksOn(t, rdb), newActor(t)
		m := c.Mutex(key, WithOwner("job-17"))
		requireLocked(t, m)
		rounds := 1000
		if !b.Real { // it is slow, and no better at racing
			rounds = 200
		}
		for i := range rounds {
			locked := rival.lock(t.Context(), m)
			requireUnlocked(t, m)
			require.NoError(t, outcomeOf(t, locked))
			if i%50 == 0 {
				requireOnRedis(t, rdb, key, c.ID()+":job-17", 1)
			}
			require.Equal(t, 1, m.HoldCount())
		}
		requireUnlocked(t, m)
		requireFree(t, rdb, key)
		require.Zero(t, gatesOf(c))
	})
}

func TestTwoClientsWithTheSameOwnerExcludeEachOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		mine := locksOn(t, rdb).Mutex(key, WithOwner("job-17"))
		theirs := locksOn(t, rdb).Mutex(key, WithOwner("job-17"), WithWaitTimeout(20*time.Millisecond))
		requireLocked(t, mine)
		held, err := theirs.TryLock(t.Context())
		require.NoError(t, err)
		require.False(t, held)
		require.ErrorIs(t, theirs.Lock(t.Context()), ErrTimeout)
		require.ErrorIs(t, theirs.Unlock(), ErrNotHeld)
		require.Equal(t, 1, mine.HoldCount())
		requireUnlocked(t, mine)
		requireLocked(t, theirs)
		requireUnlocked(t, theirs)
	})
}

func TestAnOwnerKeepsItsWaitTimeoutToItself(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, patient := locksOn(t, rdb), newActor(t)
		requireLocked(t, c.Mutex(key))
		impatient := newActor(t).lock(t.Context(), c.Mutex(key, WithOwner("job-17"), WithWaitTimeout(time.Second)))
		awaitCallers(t, c, key, 1)
		waiting := patient.lock(t.Context(), c.Mutex(key, WithOwner("job-17")))
		err := outcomeOf(t, impatient)
		require.ErrorIs(t, err, ErrTimeout)
		require.False(t, errors.Is(err, context.DeadlineExceeded), "the caller's own context is alive")
		requireUnlocked(t, c.Mutex(key))
		require.NoError(t, outcomeOf(t, waiting))
		patient.unlocks(t, c.Mutex(key, WithOwner("job-17")))
	})
}

// endsAtOnce is a context that ends when it has been looked at once.
type endsAtOnce struct {
	context.Context
	looked atomic.Bool
}

func (c *endsAtOnce) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func (c *endsAtOnce) Err() error {
	if c.looked.Swap(true) {
		return context.Canceled
	}
	return nil
}

// Its caller has gone before the acquisition begins, which runs on another goroutine; or before it
// looks, and then has the lock.
func TestALockOfAFixedOwnerMayEndBeforeItHasBegun(t *testing.T) {
	t.Parallel()
	c, key := locksOn(t, redistest.Mini(t).Client(t)), redistest.Key(t)
	for range 200 {
		ctx, m := &endsAtOnce{Context: t.Context()}, c.Mutex(key, WithOwner("job"))
		if err := m.Lock(ctx); err != nil {
			require.ErrorIs(t, err, context.Canceled)
			continue
		}
		requireUnlocked(t, m)
	}
	eventually(t, "nothing is left", func() bool { return gatesOf(c) == 0 })
}

func TestTheOwnerOfAContextIsTheSameInEveryGoroutine(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, one, another := locksOn(t, rdb), newActor(t), newActor(t)
		ctx := NewOwner(t.Context())
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		m, same := c.Mutex(key, WithOwnerFrom(ctx)), c.Mutex(key, WithOwnerFrom(child))
		one.locks(t, m)
		another.locks(t, same)
		require.Equal(t, 2, m.HoldCount())
		one.unlocks(t, same)
		another.unlocks(t, m)
		require.ErrorIs(t, m.Unlock(), ErrNotHeld)
		requireFree(t, rdb, key)
	})
}

func TestOwnersOfDifferentContextsExcludeEachOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		c, key := locksOn(t, b.Client(t)), redistest.Key(t)
		outer := NewOwner(t.Context())
		m := c.Mutex(key, WithOwnerFrom(outer))
		requireLocked(t, m)
		for name, other := range map[string]*Mutex{
			"of another context":                c.Mutex(key, WithOwnerFrom(NewOwner(t.Context()))),
			"of a child with an owner":          c.Mutex(key, WithOwnerFrom(NewOwner(outer))),
			"the goroutine":                     c.Mutex(key),
			"with the same context, of another": locksOn(t, b.Client(t)).Mutex(key, WithOwnerFrom(outer)),
		} {
			held, err := other.TryLock(t.Context())
			require.NoError(t, err, name)
			require.False(t, held, name)
			require.ErrorIs(t, other.Unlock(), ErrNotHeld, name)
		}
		requireUnlocked(t, m)
	})
}

func TestAContextWithoutAnOwnerIsRefused(t *testing.T) {
	locks := clientOn(t, offline(t))
	var none context.Context
	require.Nil(t, NewOwner(none))
	unusable(t, locks.Mutex("orders", WithOwnerFrom(t.Context())), ErrInvalidOption, "NewOwner")
	unusable(t, locks.Mutex("orders", WithOwnerFrom(none)), ErrInvalidOption, "nil context")
	unusable(t, locks.Mutex("orders", WithOwnerFrom(NewOwner(none))), ErrInvalidOption, "nil context")
	require.ErrorIs(t, locks.RWMutex("orders", WithOwnerFrom(t.Context())).RLock(t.Context()), ErrInvalidOption)
}
