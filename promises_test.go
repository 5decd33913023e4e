package relock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// What has bitten the users of other lock libraries, one test for each.

func TestAnExpiredHolderDoesNotDeleteTheNextHoldersLock(t *testing.T) {
	t.Parallel()
	onEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
		c, next, key := locksOn(t, rdb), newActor(t), redistest.Key(t)
		for _, rival := range []*Client{locksOn(t, rdb), c} { // another process, and the same
			m := c.Mutex(key, WithTTL(ttl), WithoutRenewal())
			requireLocked(t, m)
			require.NoError(t, outcomeOf(t, next.lock(t.Context(), rival.Mutex(key))))
			s, err := m.State(t.Context())
			require.NoError(t, err)
			require.ErrorIs(t, m.Unlock(), ErrLost)
			throughout(t, aWhile/2, func() bool { return onRedis(t, rdb, key)[s.Owner] == "1" }, "deleted")
			require.ErrorIs(t, m.Unlock(), ErrNotHeld)
			next.unlocks(t, rival.Mutex(key))
			requireFree(t, rdb, key)
		}
	})
}

func TestACrashedHolderFreesTheLockWithinOneTTL(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		t.Parallel()
		relay, rdb := relayedTo(t, b)
		key, waiter := redistest.Key(t), newActor(t)
		const ttl = 2 * time.Second
		crashed := locksOn(t, rdb, WithTTL(ttl)).Mutex(key)
		requireLocked(t, crashed)
		c := locksOn(t, b.Client(t), WithSafetyPoll(time.Hour))
		waiting := waiter.lock(t.Context(), c.Mutex(key))
		awaitListening(t, c.session, key)
		relay.BlackHole(true) // nothing that it does reaches anybody
		start := time.Now()
		require.NoError(t, outcomeOf(t, waiting))
		require.Less(t, time.Since(start), ttl+2*time.Second, "a poll would come in an hour")
		waiter.unlocks(t, c.Mutex(key))
		require.ErrorIs(t, crashed.Unlock(), ErrLost)
		relay.BlackHole(false)
	})
}

func TestAfterAnExpiryExactlyOneOfManyContendersWins(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		heldByStranger(t, rdb, key, 150*time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var contenders sync.WaitGroup
		won, errs := make(chan *Mutex, 24), make(chan error, 24)
		for range 3 {
			m := locksOn(t, rdb).Mutex(key)
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
		receives(t, won)
		select {
		case <-won:
			require.Fail(t, "two holders")
		case <-time.After(aWhile):
		}
		require.Len(t, onRedis(t, rdb, key), 1)
		cancel()
		contenders.Wait()
		close(errs) // a second contender may have been granted the lock when the first let go
		for err := range errs {
			require.NoError(t, err)
		}
		eventually(t, "the key to go", func() bool { return rdb.Exists(t.Context(), key).Val() == 0 })
	})
}

func TestAHolderWhoseLeaseEndedIsTold(t *testing.T) {
	t.Parallel()
	onEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
		events := &chronicle{}
		c := locksOn(t, rdb, WithTTL(ttl), WithoutRenewal(), WithHooks(events.hooks()))
		m := c.Mutex(redistest.Key(t))
		err := m.Do(t.Context(), func(ctx context.Context) error {
			receives(t, ctx.Done())
			require.ErrorIs(t, context.Cause(ctx), ErrLost)
			require.ErrorIs(t, m.Lock(t.Context()), ErrLost)
			require.Zero(t, m.HoldCount())
			return nil
		})
		require.ErrorIs(t, err, ErrLost)
		eventually(t, "the hook", func() bool { return len(events.of("lost")) == 1 })
	})
}

func TestAnAcquireWhoseReplyWasLostIsReleased(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		direct, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		m := c.Mutex(key)

		// One copy is lost: the next finds what it did.
		relay.DropReply(runsOf(protocol.AcquireScript))
		before := c.ID()
		requireLocked(t, m)
		requireOnRedis(t, direct, key, fmt.Sprintf("%s:%s", before, ownerOf(m)), 1)
		require.NotEqual(t, before, c.ID(), "a name in doubt is not used again")
		requireUnlocked(t, m)
		requireFree(t, direct, key)

		// All of them are lost: the caller holds nothing, and neither does Redis for long.
		lost := relay.DropReply(runsOf(protocol.AcquireScript)).Always()
		require.Error(t, m.Lock(t.Context()))
		lost.Wait(t)
		require.Zero(t, m.HoldCount())
		eventually(t, "the undo", func() bool { return direct.Exists(t.Context(), key).Val() == 0 })
		lost.Remove()
		requireLocked(t, m)
		requireUnlocked(t, m)
		require.Zero(t, gatesOf(c))
	})
}

func ownerOf(m *Mutex) string { return m.owner().String() }

func TestAWaiterThatGivesUpLeavesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, holder := locksOn(t, rdb), newActor(t)
		stays := locksOn(t, rdb).Mutex(key)
		holder.locks(t, stays)
		s, err := stays.State(t.Context())
		require.NoError(t, err)

		require.ErrorIs(t, c.Mutex(key, WithWaitTimeout(30*time.Millisecond)).Lock(t.Context()), ErrTimeout)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, c.Mutex(key).Lock(ctx), context.DeadlineExceeded)
		require.ErrorIs(t, c.Mutex(key, WithOwner("job-17"), WithWaitTimeout(30*time.Millisecond)).Lock(t.Context()), ErrTimeout)
		require.Zero(t, c.Mutex(key).HoldCount())
		eventually(t, "nothing to be left", func() bool { return gatesOf(c) == 0 })
		requireOnRedis(t, rdb, key, s.Owner, 1)
		holder.unlocks(t, stays)
		throughout(t, 50*time.Millisecond, func() bool { return rdb.Exists(t.Context(), key).Val() == 0 }, "taken by nobody")
	})
}

func TestOnlyOneWaiterOfAProcessIsWokenByARelease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		key := redistest.Key(t)
		direct := b.Client(t)
		heldByStranger(t, direct, key, 0)
		ctx, cancel := context.WithCancel(t.Context())
		var relays []*redistest.Relay
		var waiting sync.WaitGroup
		won, stop := make(chan struct{}, 30), make(chan struct{})
		for range 3 {
			relay, rdb := relayedTo(t, b)
			c := locksOn(t, rdb, WithSafetyPoll(time.Hour))
			for range 10 {
				waiting.Go(func() {
					if c.Mutex(key).Lock(ctx) == nil {
						won <- struct{}{}
						<-stop
						_ = c.Mutex(key).Unlock()
					}
				})
			}
			awaitWaiters(t, c.session, key, 10)
			awaitListening(t, c.session, key)
			awaitAsleep(t, relay, key)
			relay.ResetLog()
			relays = append(relays, relay)
		}
		require.NoError(t, direct.Del(t.Context(), key).Err())
		publishes(t, direct, key)
		receives(t, won)
		for _, relay := range relays {
			eventually(t, "a try", func() bool { return relay.Count(redistest.Scripts) >= 1 })
			awaitStillness(t, relay)
			require.Equal(t, 1, relay.Count(redistest.Scripts), "by each process")
		}
		require.Empty(t, won)
		cancel()
		close(stop)
		waiting.Wait()
	})
}

func TestReleaseByAStrangerIsRefused(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, other := locksOn(t, rdb), newActor(t)
		m := c.Mutex(key)
		requireLocked(t, m)
		require.ErrorIs(t, other.call(m.Unlock), ErrNotHeld, "another goroutine")
		require.ErrorIs(t, locksOn(t, rdb).Mutex(key).Unlock(), ErrNotHeld, "another client")
		require.ErrorIs(t, c.Mutex(key, WithOwner("job-17")).Unlock(), ErrNotHeld, "another owner")
		requireOnRedis(t, rdb, key, fieldOf(c), 1)

		// Redis has given the key to somebody else: it is not ours to release.
		require.NoError(t, rdb.Del(t.Context(), key).Err())
		heldByStranger(t, rdb, key, time.Minute)
		require.ErrorIs(t, m.Unlock(), ErrLost)
		throughout(t, 50*time.Millisecond, func() bool { return onRedis(t, rdb, key)["stranger:1"] == "1" }, "deleted")
	})
}

// A foreign program, or a crash between two commands of one, has left a lock for ever.
func TestALockWithoutExpiryMakesWaitersNeitherSpinNorSleepForEver(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		direct, key, waiter := b.Client(t), redistest.Key(t), newActor(t)
		const poll = 60 * time.Millisecond
		c := locksOn(t, rdb, WithSafetyPoll(poll))
		heldByStranger(t, direct, key, 0)
		start := time.Now()
		waiting := waiter.lock(t.Context(), c.Mutex(key))
		eventually(t, "five polls", func() bool { return relay.Count(redistest.Scripts) >= 7 })
		// The first try, the one after the confirmation, and the polls: half of one apart at least.
		require.GreaterOrEqual(t, time.Since(start), 4*poll/2, "%s", trafficOf(relay, start))
		require.NoError(t, direct.Del(t.Context(), key).Err()) // without a message
		require.NoError(t, outcomeOf(t, waiting))
		waiter.unlocks(t, c.Mutex(key))
		requireFree(t, direct, key)
	})
}

func TestALeaseGivenExplicitlySwitchesTheWatchdogOff(t *testing.T) {
	inBubble(t, func(t *testing.T, rdb *redis.Client) {
		key, events := redistest.Key(t), &chronicle{}
		m := locksOn(t, rdb, WithHooks(events.hooks())).Mutex(key, WithTTL(10*time.Second), WithoutRenewal())
		requireLocked(t, m)
		for left := 9; left > 0; left-- {
			time.Sleep(time.Second)
			require.Equal(t, time.Duration(left)*time.Second, ttlOf(rdb, key))
			require.Equal(t, 1, m.HoldCount())
		}
		time.Sleep(time.Second)
		requireFree(t, rdb, key)
		require.Empty(t, events.of("renewed"))
		require.Len(t, events.of("lost"), 1)
		require.ErrorIs(t, m.Unlock(), ErrLost)
	})
}

func TestFineGrainedNamesDoNotBlockEachOther(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, holder := locksOn(t, rdb), newActor(t)
		holder.locks(t, c.Mutex(key+":1"))
		waiting := newActor(t).lock(t.Context(), c.Mutex(key+":1", WithWaitTimeout(time.Minute)))
		awaitWaiters(t, c.session, key+":1", 1)
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
		goesOn(t, waiting)
		holder.unlocks(t, c.Mutex(key+":1"))
		require.NoError(t, outcomeOf(t, waiting))
	})
}
