package relock_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// What has bitten the users of other lock libraries, one test for each.

func TestPromise_ExpiredHolderDoesNotDeleteTheNextHoldersLock(t *testing.T) {
	t.Parallel()
	locktest.OnEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
		c, next, key := relock.LocksOn(t, rdb), locktest.NewActor(t), redistest.Key(t)
		for _, rival := range []*relock.Client{relock.LocksOn(t, rdb), c} { // another process, and the same
			m := c.Mutex(key, relock.WithTTL(ttl), relock.WithoutRenewal())
			locktest.RequireLocked(t, m)
			require.NoError(t, locktest.OutcomeOf(t, next.Lock(t.Context(), rival.Mutex(key))))
			s, err := m.State(t.Context())
			require.NoError(t, err)
			require.ErrorIs(t, m.Unlock(), relock.ErrLost)
			locktest.Throughout(t, locktest.AWhile/2, func() bool { return locktest.OnRedis(t, rdb, key)[s.Owner] == "1" }, "deleted")
			require.ErrorIs(t, m.Unlock(), relock.ErrNotHeld)
			next.Unlocks(t, rival.Mutex(key))
			locktest.RequireFree(t, rdb, key)
		}
	})
}

func TestPromise_CrashedHolderFreesTheLockWithinOneTTL(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		key, waiter := redistest.Key(t), locktest.NewActor(t)
		const ttl = 2 * time.Second
		crashed := relock.LocksOn(t, rdb, relock.WithTTL(ttl)).Mutex(key)
		locktest.RequireLocked(t, crashed)
		c := relock.LocksOn(t, b.Client(t), relock.WithSafetyPoll(time.Hour))
		waiting := waiter.Lock(t.Context(), c.Mutex(key))
		relock.AwaitListening(t, c, key)
		relay.BlackHole(true) // nothing that it does reaches Redis
		start := time.Now()
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		require.Less(t, time.Since(start), ttl+2*time.Second, "a poll would come in an hour")
		waiter.Unlocks(t, c.Mutex(key))
		require.ErrorIs(t, crashed.Unlock(), relock.ErrLost)
		relay.BlackHole(false)
	})
}

func TestPromise_OneOfManyContendersWinsAfterAnExpiry(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		locktest.HeldByAnother(t, rdb, key, 150*time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var contenders sync.WaitGroup
		won, errs := make(chan *relock.Mutex, 24), make(chan error, 24)
		for range 3 {
			m := relock.LocksOn(t, rdb).Mutex(key)
			for range 8 {
				contenders.Go(func() {
					if m.Lock(ctx) != nil {
						return
					}
					won <- m
					<-ctx.Done() // and keeps it
					errs <- m.Unlock()
				})
			}
		}
		redistest.Receive(t, won)
		select {
		case <-won:
			require.Fail(t, "two holders")
		case <-time.After(locktest.AWhile):
		}
		require.Len(t, locktest.OnRedis(t, rdb, key), 1)
		cancel()
		contenders.Wait()
		close(errs) // a second contender may have been granted the lock when the first let go
		for err := range errs {
			require.NoError(t, err)
		}
		redistest.Eventually(t, "the key to go", func() bool { return rdb.Exists(t.Context(), key).Val() == 0 })
	})
}

func TestPromise_EndOfTheLeaseIsReportedToTheHolder(t *testing.T) {
	t.Parallel()
	locktest.OnEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
		events := &chronicle{}
		c := relock.LocksOn(t, rdb, relock.WithTTL(ttl), relock.WithoutRenewal(), relock.WithHooks(events.Hooks()))
		m := c.Mutex(redistest.Key(t))
		err := m.Do(t.Context(), func(ctx context.Context) error {
			redistest.Receive(t, ctx.Done())
			require.ErrorIs(t, context.Cause(ctx), relock.ErrLost)
			require.ErrorIs(t, m.Lock(t.Context()), relock.ErrLost)
			require.Zero(t, m.HoldCount())
			return nil
		})
		require.ErrorIs(t, err, relock.ErrLost)
		redistest.Eventually(t, "the hook", func() bool { return len(events.Of("lost")) == 1 })
	})
}

func TestPromise_AcquisitionWithALostReplyIsReleased(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		direct, key := b.Client(t), redistest.Key(t)
		c := relock.LocksOn(t, rdb)
		m := c.Mutex(key)

		// One copy is lost: the next finds what it did.
		relay.DropReply(locktest.RunsOf(protocol.AcquireScript))
		before := c.ID()
		locktest.RequireLocked(t, m)
		locktest.RequireOnRedis(t, direct, key, fmt.Sprintf("%s:%d", before, goroutine.ID()), 1)
		require.NotEqual(t, before, c.ID(), "a name in doubt is not used again")
		locktest.RequireUnlocked(t, m)
		locktest.RequireFree(t, direct, key)

		// All of them are lost: the caller holds nothing, and neither does Redis for long.
		lost := relay.DropReply(locktest.RunsOf(protocol.AcquireScript)).Always()
		require.Error(t, m.Lock(t.Context()))
		lost.Wait(t)
		require.Zero(t, m.HoldCount())
		redistest.Eventually(t, "the undo", func() bool { return direct.Exists(t.Context(), key).Val() == 0 })
		lost.Remove()
		locktest.RequireLocked(t, m)
		locktest.RequireUnlocked(t, m)
		require.Zero(t, relock.NamesOf(c))
	})
}

func TestPromise_WaiterThatGivesUpLeavesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, holder := relock.LocksOn(t, rdb), locktest.NewActor(t)
		stays := relock.LocksOn(t, rdb).Mutex(key)
		holder.Locks(t, stays)
		s, err := stays.State(t.Context())
		require.NoError(t, err)

		require.ErrorIs(t, c.Mutex(key, relock.WithWaitTimeout(30*time.Millisecond)).Lock(t.Context()), relock.ErrTimeout)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, c.Mutex(key).Lock(ctx), context.DeadlineExceeded)
		require.ErrorIs(t, c.Mutex(key, relock.WithOwner("job-17"), relock.WithWaitTimeout(30*time.Millisecond)).Lock(t.Context()), relock.ErrTimeout)
		require.Zero(t, c.Mutex(key).HoldCount())
		redistest.Eventually(t, "nothing to be left", func() bool { return relock.NamesOf(c) == 0 })
		locktest.RequireOnRedis(t, rdb, key, s.Owner, 1)
		holder.Unlocks(t, stays)
		locktest.Throughout(t, 50*time.Millisecond, func() bool { return rdb.Exists(t.Context(), key).Val() == 0 }, "taken by nobody")
	})
}

// In real time a poll that keeps an entry alive may come at any moment.
func TestPromise_ReleaseWakesOneWaiterOfAProcess(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		key := redistest.Key(t)
		direct := b.Client(t)
		locktest.HeldByAnother(t, direct, key, 0)
		ctx, cancel := context.WithCancel(t.Context())
		var relays []*redistest.Relay
		var waiting sync.WaitGroup
		won, stop := make(chan struct{}, 30), make(chan struct{})
		for range 3 {
			relay, rdb := locktest.RelayedTo(t, b)
			c := relock.LocksOn(t, rdb, relock.WithSafetyPoll(time.Hour))
			for range 10 {
				waiting.Go(func() {
					if c.Mutex(key).Lock(ctx) == nil {
						won <- struct{}{}
						<-stop
						_ = c.Mutex(key).Unlock()
					}
				})
			}
			relock.AwaitWaiters(t, c, key, 10)
			relock.AwaitListening(t, c, key)
			relock.AwaitEntries(t, c, key, 1)
			relays = append(relays, relay)
		}
		for _, relay := range relays {
			locktest.AwaitStillness(t, relay)
			relay.ResetLog()
		}
		require.NoError(t, direct.Del(t.Context(), key).Err())
		locktest.Publishes(t, direct, key)
		redistest.Receive(t, won)
		for _, relay := range relays {
			redistest.Eventually(t, "a try", func() bool { return relay.Count(redistest.Scripts) >= 1 })
			locktest.AwaitStillness(t, relay)
			require.Equal(t, 1, relay.Count(redistest.Scripts), "by each process")
		}
		require.Empty(t, won)
		cancel()
		close(stop)
		waiting.Wait()
	})
}

func TestPromise_OtherClientCannotRelease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, other := relock.LocksOn(t, rdb), locktest.NewActor(t)
		m := c.Mutex(key)
		locktest.RequireLocked(t, m)
		require.ErrorIs(t, other.Call(m.Unlock), relock.ErrNotHeld, "another goroutine")
		require.ErrorIs(t, relock.LocksOn(t, rdb).Mutex(key).Unlock(), relock.ErrNotHeld, "another client")
		require.ErrorIs(t, c.Mutex(key, relock.WithOwner("job-17")).Unlock(), relock.ErrNotHeld, "another owner")
		locktest.RequireOnRedis(t, rdb, key, locktest.FieldOf(c), 1)

		// Redis has given the key to another owner: it is not ours to release.
		require.NoError(t, rdb.Del(t.Context(), key).Err())
		locktest.HeldByAnother(t, rdb, key, time.Minute)
		require.ErrorIs(t, m.Unlock(), relock.ErrLost)
		locktest.Throughout(t, 50*time.Millisecond, func() bool { return locktest.OnRedis(t, rdb, key)["another:1"] == "1" }, "deleted")
	})
}

// A foreign program, or a crash between two commands of one, has left a lock for ever.
func TestPromise_LockWithoutExpiryMakesWaitersNeitherSpinNorSleepForever(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		direct, key, waiter := b.Client(t), redistest.Key(t), locktest.NewActor(t)
		// A place, and the lease that comes with it, lives for 600 ms.
		c := relock.LocksOn(t, rdb, relock.WithSafetyPoll(300*time.Millisecond))
		poll := c.Mutex(key).Terms().EntryPoll()
		locktest.HeldByAnother(t, direct, key, 0)
		start := time.Now()
		waiting := waiter.Lock(t.Context(), c.Mutex(key))
		redistest.Eventually(t, "four polls", func() bool { return relay.Count(redistest.Scripts) >= 6 })
		// The try, the request for a place, a poll when the subscriptions are confirmed, one at a random time, and
		// two in their time.
		require.GreaterOrEqual(t, time.Since(start), 2*poll, "%s", locktest.TrafficOf(relay, start))
		require.NoError(t, direct.Del(t.Context(), key).Err()) // without a message
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		waiter.Unlocks(t, c.Mutex(key))
		locktest.RequireFree(t, direct, key)
	})
}

func TestPromise_ExplicitLeaseDisablesTheWatchdog(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		key, events := redistest.Key(t), &chronicle{}
		m := relock.LocksOn(t, rdb, relock.WithHooks(events.Hooks())).Mutex(key, relock.WithTTL(10*time.Second), relock.WithoutRenewal())
		locktest.RequireLocked(t, m)
		for left := 9; left > 0; left-- {
			time.Sleep(time.Second)
			require.Equal(t, time.Duration(left)*time.Second, locktest.TTLOf(rdb, key))
			require.Equal(t, 1, m.HoldCount())
		}
		time.Sleep(time.Second)
		locktest.RequireFree(t, rdb, key)
		require.Empty(t, events.Of("renewed"))
		require.Len(t, events.Of("lost"), 1)
		require.ErrorIs(t, m.Unlock(), relock.ErrLost)
	})
}

func TestPromise_DifferentNamesDoNotBlockEachOther(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, holder := relock.LocksOn(t, rdb), locktest.NewActor(t)
		holder.Locks(t, c.Mutex(key+":1"))
		waiting := locktest.NewActor(t).Lock(t.Context(), c.Mutex(key+":1", relock.WithWaitTimeout(time.Minute)))
		relock.AwaitWaiters(t, c, key+":1", 1)
		var others sync.WaitGroup
		var done atomic.Int64
		for i := range 20 {
			others.Go(func() {
				m := c.Mutex(fmt.Sprintf("%s:%d", key, i+2))
				for range 5 {
					if held, err := m.TryLock(t.Context()); err == nil && held && m.Unlock() == nil {
						done.Add(1)
					}
				}
			})
		}
		others.Wait()
		require.EqualValues(t, 100, done.Load())
		locktest.GoesOn(t, waiting)
		holder.Unlocks(t, c.Mutex(key+":1"))
		require.NoError(t, locktest.OutcomeOf(t, waiting))
	})
}
