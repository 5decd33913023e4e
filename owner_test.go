package relock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

func TestOwner_LockPassesBetweenItsGoroutines(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, producer, consumer := relock.LocksOn(t, rdb), locktest.NewActor(t), locktest.NewActor(t)
		m := c.Mutex(key, relock.WithOwner("job-17"))
		producer.Locks(t, m)
		locktest.RequireOnRedis(t, rdb, key, c.ID()+":job-17", 1)
		consumer.Locks(t, c.Mutex(key, relock.WithOwner("job-17")))
		locktest.RequireOnRedis(t, rdb, key, c.ID()+":job-17", 2)
		require.Equal(t, 2, m.HoldCount())
		require.NoError(t, m.Context(t.Context()).Err())

		require.False(t, producer.Tries(t, c.Mutex(key)), "a goroutine is another owner")
		require.False(t, producer.Tries(t, c.Mutex(key, relock.WithOwner("job-18"))), "so is another owner")
		require.ErrorIs(t, c.Mutex(key).Unlock(), relock.ErrNotHeld)

		producer.Unlocks(t, m)
		consumer.Unlocks(t, m)
		require.ErrorIs(t, m.Unlock(), relock.ErrNotHeld)
		locktest.RequireFree(t, rdb, key)
		require.Zero(t, relock.NamesOf(c))
	})
}

func TestOwner_ConcurrentLocksAreAllCounted(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := relock.LocksOn(t, rdb)
		m := c.Mutex(key, relock.WithOwner("job-17"))
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
			locktest.RequireOnRedis(t, rdb, key, c.ID()+":job-17", n)
			all(m.Unlock)
			require.Zero(t, m.HoldCount())
			locktest.RequireFree(t, rdb, key)
		}
		require.Zero(t, relock.NamesOf(c))
	})
}

// awaitQueue waits until a Lock of a fixed owner waits for key, and another one behind it.
func awaitQueue(t *testing.T, c *relock.Client, key string) {
	t.Helper()
	redistest.Eventually(t, "a Lock behind another", func() bool {
		return slices.ContainsFunc(relock.HoldsOn(c, key), func(h relock.HoldView) bool { return h.Waiting && h.Awaited })
	})
}

func TestOwner_ConcurrentLocksQueueBehindEachOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := relock.LocksOn(t, rdb)
		locktest.RequireLocked(t, c.Mutex(key))
		m := c.Mutex(key, relock.WithOwner("job-17"))
		var waiting []<-chan error
		for range 8 {
			waiting = append(waiting, locktest.NewActor(t).Lock(t.Context(), m))
		}
		awaitQueue(t, c, key)
		require.Equal(t, 1, relock.WaitersOn(c, key), "one of them waits for the lock")
		locktest.RequireUnlocked(t, c.Mutex(key))
		for _, w := range waiting {
			require.NoError(t, locktest.OutcomeOf(t, w))
		}
		locktest.RequireOnRedis(t, rdb, key, c.ID()+":job-17", 8)
		for range waiting {
			locktest.RequireUnlocked(t, m)
		}
		locktest.RequireFree(t, rdb, key)
	})
}

func TestOwner_TheNextLockWaitsWhenTheFirstGivesUp(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, first, second := relock.LocksOn(t, rdb), locktest.NewActor(t), locktest.NewActor(t)
		locktest.RequireLocked(t, c.Mutex(key))
		m := c.Mutex(key, relock.WithOwner("job-17"))
		ctx, cancel := context.WithCancel(t.Context())
		leaves := first.Lock(ctx, m)
		relock.AwaitWaiters(t, c, key, 1)
		stays := second.Lock(t.Context(), m)
		awaitQueue(t, c, key)
		cancel()
		require.ErrorIs(t, locktest.OutcomeOf(t, leaves), context.Canceled)
		relock.AwaitWaiters(t, c, key, 1)
		locktest.GoesOn(t, stays)
		locktest.RequireUnlocked(t, c.Mutex(key))
		require.NoError(t, locktest.OutcomeOf(t, stays))
		locktest.RequireOnRedis(t, rdb, key, c.ID()+":job-17", 1)
		second.Unlocks(t, m)
		locktest.RequireFree(t, rdb, key)
	})
}

func TestOwner_NothingIsLeftWhenAllItsLocksGiveUp(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := relock.LocksOn(t, rdb)
		locktest.RequireLocked(t, c.Mutex(key))
		m := c.Mutex(key, relock.WithOwner("job-17"))
		var leave []<-chan error
		ctx, cancel := context.WithCancel(t.Context())
		for range 3 {
			leave = append(leave, locktest.NewActor(t).Lock(ctx, m))
		}
		awaitQueue(t, c, key)
		cancel()
		for _, w := range leave {
			require.ErrorIs(t, locktest.OutcomeOf(t, w), context.Canceled)
		}
		redistest.Eventually(t, "the attempt to end", func() bool { return relock.WaitersOn(c, key) == 0 })
		locktest.RequireUnlocked(t, c.Mutex(key))
		locktest.RequireFree(t, rdb, key)
		require.Zero(t, relock.NamesOf(c))
	})
}

func TestOwner_UnlockRacingLockCountsExactly(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, rival := relock.LocksOn(t, rdb), locktest.NewActor(t)
		m := c.Mutex(key, relock.WithOwner("job-17"))
		locktest.RequireLocked(t, m)
		rounds := 1000
		if !b.Real { // it is slow, and no better at racing
			rounds = 200
		}
		for i := range rounds {
			locked := rival.Lock(t.Context(), m)
			locktest.RequireUnlocked(t, m)
			require.NoError(t, locktest.OutcomeOf(t, locked))
			if i%50 == 0 {
				locktest.RequireOnRedis(t, rdb, key, c.ID()+":job-17", 1)
			}
			require.Equal(t, 1, m.HoldCount())
		}
		locktest.RequireUnlocked(t, m)
		locktest.RequireFree(t, rdb, key)
		require.Zero(t, relock.NamesOf(c))
	})
}

func TestOwner_TwoClientsWithTheSameOneExcludeEachOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		mine := relock.LocksOn(t, rdb).Mutex(key, relock.WithOwner("job-17"))
		theirs := relock.LocksOn(t, rdb).Mutex(key, relock.WithOwner("job-17"), relock.WithWaitTimeout(20*time.Millisecond))
		locktest.RequireLocked(t, mine)
		held, err := theirs.TryLock(t.Context())
		require.NoError(t, err)
		require.False(t, held)
		require.ErrorIs(t, theirs.Lock(t.Context()), relock.ErrTimeout)
		require.ErrorIs(t, theirs.Unlock(), relock.ErrNotHeld)
		require.Equal(t, 1, mine.HoldCount())
		locktest.RequireUnlocked(t, mine)
		locktest.RequireLocked(t, theirs)
		locktest.RequireUnlocked(t, theirs)
	})
}

func TestOwner_WaitTimeoutIsItsOwn(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, patient := relock.LocksOn(t, rdb), locktest.NewActor(t)
		locktest.RequireLocked(t, c.Mutex(key))
		impatient := locktest.NewActor(t).Lock(t.Context(), c.Mutex(key, relock.WithOwner("job-17"), relock.WithWaitTimeout(time.Second)))
		relock.AwaitWaiters(t, c, key, 1)
		waiting := patient.Lock(t.Context(), c.Mutex(key, relock.WithOwner("job-17")))
		err := locktest.OutcomeOf(t, impatient)
		require.ErrorIs(t, err, relock.ErrTimeout)
		require.False(t, errors.Is(err, context.DeadlineExceeded), "the caller's own context is alive")
		locktest.RequireUnlocked(t, c.Mutex(key))
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		patient.Unlocks(t, c.Mutex(key, relock.WithOwner("job-17")))
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

// Its caller has gone before the acquisition begins; or before it looks, and then has the lock.
func TestOwner_LockMayEndBeforeItHasBegun(t *testing.T) {
	t.Parallel()
	c, key := relock.LocksOn(t, redistest.Mini(t).Client(t)), redistest.Key(t)
	for range 200 {
		ctx, m := &endsAtOnce{Context: t.Context()}, c.Mutex(key, relock.WithOwner("job"))
		if err := m.Lock(ctx); err != nil {
			require.ErrorIs(t, err, context.Canceled)
			continue
		}
		locktest.RequireUnlocked(t, m)
	}
	redistest.Eventually(t, "nothing is left", func() bool { return relock.NamesOf(c) == 0 })
}

func TestOwner_OfAContextIsTheSameInEveryGoroutine(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, one, another := relock.LocksOn(t, rdb), locktest.NewActor(t), locktest.NewActor(t)
		ctx := relock.NewOwner(t.Context())
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		m, same := c.Mutex(key, relock.WithOwnerFrom(ctx)), c.Mutex(key, relock.WithOwnerFrom(child))
		one.Locks(t, m)
		another.Locks(t, same)
		require.Equal(t, 2, m.HoldCount())
		one.Unlocks(t, same)
		another.Unlocks(t, m)
		require.ErrorIs(t, m.Unlock(), relock.ErrNotHeld)
		locktest.RequireFree(t, rdb, key)
	})
}

func TestOwner_OfDifferentContextsExcludeEachOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		c, key := relock.LocksOn(t, b.Client(t)), redistest.Key(t)
		outer := relock.NewOwner(t.Context())
		m := c.Mutex(key, relock.WithOwnerFrom(outer))
		locktest.RequireLocked(t, m)
		for name, other := range map[string]*relock.Mutex{
			"of another context":                c.Mutex(key, relock.WithOwnerFrom(relock.NewOwner(t.Context()))),
			"of a child with an owner":          c.Mutex(key, relock.WithOwnerFrom(relock.NewOwner(outer))),
			"the goroutine":                     c.Mutex(key),
			"with the same context, of another": relock.LocksOn(t, b.Client(t)).Mutex(key, relock.WithOwnerFrom(outer)),
		} {
			held, err := other.TryLock(t.Context())
			require.NoError(t, err, name)
			require.False(t, held, name)
			require.ErrorIs(t, other.Unlock(), relock.ErrNotHeld, name)
		}
		locktest.RequireUnlocked(t, m)
	})
}

// Fixed owners follow one another in a batch as goroutines do: none waits for Redis before it holds the lock.
func TestOwner_FollowsBeforeItsNameIsOnRedis(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		c, key := relock.LocksOn(t, rdb), redistest.Key(t)
		var locks []*relock.Mutex
		for _, owner := range []relock.MutexOption{
			relock.WithOwner("job-1"), relock.WithOwner("job-2"), relock.WithOwnerFrom(relock.NewOwner(t.Context())),
		} {
			locks = append(locks, c.Mutex(key, owner))
		}
		locktest.RequireLocked(t, locks[0])
		var waiting []<-chan error
		for i, m := range locks[1:] {
			waiting = append(waiting, locktest.NewActor(t).Lock(t.Context(), m))
			relock.AwaitWaiters(t, c, key, i+1)
		}
		stopped := relay.Block(locktest.RunsOf(protocol.RenameScript)).Always()
		var unlocked []<-chan error
		for i, m := range locks[:2] {
			unlocked = append(unlocked, locktest.NewActor(t).Begin(m.Unlock))
			if i == 0 {
				stopped.Wait(t) // a command about the lock is under way from here on
			}
			require.NoError(t, locktest.OutcomeOf(t, waiting[i]), "it waits for Redis")
		}
		stopped.Release()
		for _, u := range unlocked {
			require.NoError(t, locktest.OutcomeOf(t, u))
		}
		locktest.RequireUnlocked(t, locks[2])
		locktest.RequireFree(t, rdb, key)
	})
}
