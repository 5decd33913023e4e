package relock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

func TestWait_OfOneProcessIsServedInOrder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := LocksOn(t, rdb)
		m := c.Mutex(key)
		for _, handoffs := range []int{defaultSettings().localHandoffs, 3, 0} {
			locktest.RequireLocked(t, m)
			turns := make(chan int, 20)
			done := LineUp(t, c, c.Mutex(key, WithLocalHandoffs(handoffs)), 20, turns)
			locktest.RequireUnlocked(t, m)
			for i, d := range done {
				require.NoError(t, locktest.OutcomeOf(t, d))
				require.Equal(t, i, <-turns)
			}
			locktest.RequireFree(t, rdb, key)
		}
		require.Zero(t, NamesOf(c))
	})
}

func TestWait_HandOverWithATokenIsOneRoundTrip(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		c := LocksOn(t, rdb, WithLocalHandoffs(1000), WithFencing())
		m := c.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		const n = 50
		turns := make(chan int, n)
		done := LineUp(t, c, m, n, turns)
		locktest.AwaitStillness(t, relay)
		relay.ResetLog()
		locktest.RequireUnlocked(t, m)
		for _, d := range done {
			require.NoError(t, locktest.OutcomeOf(t, d))
		}
		require.LessOrEqual(t, relay.Count(redistest.Scripts), n*12/10)
		require.Equal(t, n, relay.Executed(locktest.RunsOf(protocol.RenameScript).And(locktest.HandsOver)))
		require.Equal(t, 1, relay.Executed(locktest.RunsOf(protocol.ReleaseScript)), "the last one")
	})
}

func TestWait_DrainingThreeHundredCostsAboutOneScriptEach(t *testing.T) {
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		c := LocksOn(t, rdb)
		m := c.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		const n = 300
		done := LineUp(t, c, m, n, make(chan int, n))
		locktest.AwaitStillness(t, relay)
		relay.ResetLog()
		locktest.RequireUnlocked(t, m)
		for _, d := range done {
			require.NoError(t, locktest.OutcomeOf(t, d))
		}
		scripts := relay.Count(redistest.Scripts)
		t.Logf("%d scripts for %d holds: %.3f each", scripts, n, float64(scripts)/n)
		require.LessOrEqual(t, scripts, n*12/10)
	})
}

func TestWait_ThreeHundredCostTheTrafficOfOne(t *testing.T) {
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		direct, key := b.Client(t), redistest.Key(t)
		const poll = 100 * time.Millisecond
		const sleep = 2 * poll / 3 // of one in line: see WithSafetyPoll
		c := LocksOn(t, rdb, WithSafetyPoll(poll))
		locktest.HeldByAnother(t, direct, key, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var waiting sync.WaitGroup
		for range 300 {
			waiting.Go(func() { _ = c.Mutex(key).Lock(ctx) })
		}
		AwaitWaiters(t, c, key, 300)
		AwaitListening(t, c, key)
		locktest.AwaitStillness(t, relay)
		start := time.Now()
		relay.ResetLog()
		locktest.Throughout(t, 4*poll, func() bool { return true }, "")
		polls := int(time.Since(start)/sleep) + 2 // one that was due, and the first, which comes early
		require.LessOrEqual(t, relay.Count(redistest.Any), polls)
		require.NotZero(t, relay.Count(redistest.Scripts), "the safety poll")
		require.Equal(t, 1, locktest.Listeners(t, direct, key))

		relay.ResetLog()
		cancel()
		waiting.Wait()
		require.LessOrEqual(t, relay.Count(redistest.Scripts), 3, "leaving costs nothing, either")
		require.Zero(t, NamesOf(c))
	})
}

func TestWait_EveryReleaseIsPublishedWithoutHandOvers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		c := LocksOn(t, rdb, WithLocalHandoffs(0))
		m := c.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		done := LineUp(t, c, m, 5, make(chan int, 5))
		locktest.RequireUnlocked(t, m)
		for _, d := range done {
			require.NoError(t, locktest.OutcomeOf(t, d))
		}
		require.Zero(t, relay.Count(locktest.RunsOf(protocol.RenameScript)))
		require.Equal(t, 6, relay.Executed(locktest.RunsOf(protocol.ReleaseScript)))
	})
}

func TestWait_AnotherProcessGetsItsTurnAfterSomeHandOvers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		key := redistest.Key(t)
		const handoffs = 4
		var holds atomic.Int64
		crowd := LocksOn(t, b.Client(t), WithLocalHandoffs(handoffs), WithHooks(Hooks{Acquired: func(Event) { holds.Add(1) }}))
		m := crowd.Mutex(key)
		locktest.RequireLocked(t, m)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		for range 8 {
			running.Go(func() {
				for ctx.Err() == nil {
					if m.Lock(ctx) == nil {
						_ = m.Unlock()
					}
				}
			})
		}
		AwaitWaiters(t, crowd, key, 8)
		who, other := locktest.NewActor(t), LocksOn(t, b.Client(t)).Mutex(key)
		waiting := who.Lock(t.Context(), other)
		locktest.AwaitFairQueue(t, b.Client(t), key, 1)
		locktest.RequireUnlocked(t, m)
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		require.LessOrEqual(t, int(holds.Load()), handoffs+1, "with another process in line from the first on")
		locktest.AwaitFairQueue(t, b.Client(t), key, 1) // the crowd is back in line
		who.Unlocks(t, other)
		who.Locks(t, other)
		who.Unlocks(t, other)
		require.Greater(t, int(holds.Load()), handoffs+1, "the crowd has its turns, too")
	})
}

func TestWait_EndsWithTheWaitTimeout(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		locktest.HeldByAnother(t, rdb, key, time.Minute)
		c := LocksOn(t, rdb, WithWaitTimeout(30*time.Millisecond))
		// A wait that ends before Redis has answered cannot name the holder.
		redistest.Eventually(t, "an error that says who was in the way", func() bool {
			start := time.Now()
			err := c.Mutex(key).Lock(t.Context())
			require.ErrorIs(t, err, ErrTimeout)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, key)
			require.GreaterOrEqual(t, time.Since(start), 30*time.Millisecond)
			return strings.Contains(err.Error(), "another:1")
		})

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		err := c.Mutex(key, WithWaitTimeout(time.Hour)).Lock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, ErrTimeout)
		locktest.RequireOnRedis(t, rdb, key, "another:1", 1)
	})
}

// The message of a release is lost, or a foreign program deletes the key without one.
func TestWait_SafetyPollFindsAMissedMessage(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		key, waiter := redistest.Key(t), locktest.NewActor(t)
		c := LocksOn(t, rdb, WithSafetyPoll(4*time.Second))
		locktest.HeldByAnother(t, rdb, key, 0)
		waiting := waiter.Lock(t.Context(), c.Mutex(key))
		time.Sleep(time.Minute + time.Millisecond)
		require.NoError(t, rdb.Del(t.Context(), key).Err())
		start := time.Now()
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		require.LessOrEqual(t, time.Since(start), 4*time.Second)
		waiter.Unlocks(t, c.Mutex(key))
	})
}

func TestWait_ExpiredLeaseIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key, waiter := b.Client(t), redistest.Key(t), locktest.NewActor(t)
		c := LocksOn(t, rdb, WithSafetyPoll(time.Hour))
		locktest.HeldByAnother(t, rdb, key, 200*time.Millisecond)
		require.NoError(t, locktest.OutcomeOf(t, waiter.Lock(t.Context(), c.Mutex(key))))
		waiter.Unlocks(t, c.Mutex(key))
	})
}

func TestWait_MessageEndsAnySleep(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key, waiter := b.Client(t), redistest.Key(t), locktest.NewActor(t)
		c, holder := LocksOn(t, rdb, WithSafetyPoll(time.Hour)), LocksOn(t, rdb)
		m := holder.Mutex(key, WithTTL(time.Hour))
		for range 5 {
			locktest.RequireLocked(t, m)
			waiting := waiter.Lock(t.Context(), c.Mutex(key))
			AwaitListening(t, c, key)
			locktest.RequireUnlocked(t, m)
			require.NoError(t, locktest.OutcomeOf(t, waiting))
			waiter.Unlocks(t, c.Mutex(key))
		}
	})
}

// A wake-up that comes while the waiter asks is not lost between the answer and the sleep.
func TestWait_MessageDuringATryIsRemembered(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		direct, key, waiter := b.Client(t), redistest.Key(t), locktest.NewActor(t)
		c := LocksOn(t, rdb, WithSafetyPoll(time.Hour))
		locktest.HeldByAnother(t, direct, key, 0)
		waiting := waiter.Lock(t.Context(), c.Mutex(key))
		AwaitListening(t, c, key)
		locktest.AwaitStillness(t, relay)
		relay.After(locktest.RunsOf(protocol.LinePollScript), func(redistest.Command, string) {
			// "Busy" is on its way while the lock is released.
			q := &holdsOn(c.session, key)[0].queueEntries[0].gate.line().polls
			before := q.Wakes()
			_ = direct.Del(context.Background(), key).Err()
			_ = direct.Publish(context.Background(), locktest.ChannelOf(key), "0").Err()
			for end := time.Now().Add(locktest.SoonEnough); q.Wakes() == before && time.Now().Before(end); {
				time.Sleep(locktest.LookEvery)
			}
		})
		locktest.Publishes(t, direct, key)
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		waiter.Unlocks(t, c.Mutex(key))
	})
}

func TestWait_PollsWithoutPermissionToSubscribe(t *testing.T) {
	t.Parallel()
	b := redistest.Redis(t)
	admin := b.Client(t)
	key := redistest.Key(t)
	user := strings.ToLower(strings.ReplaceAll(key, "_", "-"))
	require.NoError(t, admin.Do(t.Context(), "acl", "setuser", user, "on", ">secret", "~*", "resetchannels",
		"+@all", "-subscribe", "-psubscribe").Err())
	t.Cleanup(func() { _ = admin.Do(context.Background(), "acl", "deluser", user).Err() })
	rdb := redis.NewClient(&redis.Options{Addr: b.Addr, Username: user, Password: "secret"})
	t.Cleanup(func() { _ = rdb.Close() })

	c, waiter := LocksOn(t, rdb, WithSafetyPoll(time.Hour)), locktest.NewActor(t)
	holder := LocksOn(t, admin).Mutex(key)
	for range 2 {
		locktest.RequireLocked(t, holder)
		waiting := waiter.Lock(t.Context(), c.Mutex(key))
		AwaitWaiters(t, c, key, 1)
		require.Zero(t, locktest.Listeners(t, admin, key))
		locktest.RequireUnlocked(t, holder)
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		waiter.Unlocks(t, c.Mutex(key))
	}
	locktest.RequireFree(t, admin, key)
}

func TestTryLock_NeitherWaitsNorBarges(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		direct, key := b.Client(t), redistest.Key(t)
		c, waiter, passer := LocksOn(t, rdb, WithSafetyPoll(time.Hour)), locktest.NewActor(t), locktest.NewActor(t)
		m := c.Mutex(key)
		locktest.HeldByAnother(t, direct, key, 0)
		require.False(t, passer.Tries(t, m))
		require.Equal(t, 1, relay.Executed(redistest.Scripts), "one round trip")
		require.Zero(t, relay.Count(redistest.Named("subscribe")))

		relay.ResetLog()
		waiting := waiter.Lock(t.Context(), m)
		AwaitListening(t, c, key)
		locktest.AwaitAsleep(t, relay, key)
		require.NoError(t, direct.Del(t.Context(), key).Err()) // the waiter is not notified yet
		relay.ResetLog()
		require.False(t, passer.Tries(t, m), "another goroutine of this process was first")
		require.Zero(t, relay.Count(redistest.Any))
		locktest.Publishes(t, direct, key)
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		require.False(t, passer.Tries(t, m))
		waiter.Unlocks(t, m)
		require.True(t, passer.Tries(t, m))
		require.True(t, passer.Tries(t, m), "a re-entry")
		passer.Unlocks(t, m)
		passer.Unlocks(t, m)
		locktest.RequireFree(t, direct, key)
		require.Zero(t, NamesOf(c))
	})
}

func TestWait_ManyNamesDoNotBlockEachOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := LocksOn(t, rdb)
		var all sync.WaitGroup
		var held sync.WaitGroup
		const n = 100
		held.Add(n)
		errs := make(chan error, 2*n)
		for i := range n {
			all.Go(func() {
				m := c.Mutex(fmt.Sprintf("%s-%d", key, i))
				errs <- m.Lock(t.Context())
				held.Done()
				held.Wait() // all of them at once
				errs <- m.Unlock()
			})
		}
		all.Wait()
		for range 2 * n {
			require.NoError(t, <-errs)
		}
		require.Zero(t, NamesOf(c), "nothing is kept for a name")
	})
}

// The channel is still subscribed to from an earlier wait, so no confirmation will wake who
// subscribes to it now.
func TestWait_ReleaseBetweenAnswerAndSubscriptionIsNotMissed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		direct, key, waiter := b.Client(t), redistest.Key(t), locktest.NewActor(t)
		c := LocksOn(t, rdb, WithSafetyPoll(time.Hour))
		events := make(chan struct{}, 8)
		lingering := c.session.hub.Subscribe(locktest.ChannelOf(key), func() { events <- struct{}{} })
		t.Cleanup(lingering.Close)
		redistest.Receive(t, events)
		locktest.HeldByAnother(t, direct, key, 0)
		relay.After(locktest.RunsOf(protocol.AcquireScript), func(redistest.Command, string) {
			_ = direct.Del(context.Background(), key).Err()
			_ = direct.Publish(context.Background(), locktest.ChannelOf(key), "0").Err()
			<-events
		})
		waiter.Locks(t, c.Mutex(key))
		waiter.Unlocks(t, c.Mutex(key))
	})
}

// Only a MultiMutex of a fixed owner may have to, if another goroutine unlocks meanwhile what it was to add to.
func TestWait_GoesOnForALockThatStartsOver(t *testing.T) {
	var r chronicle
	m := clientOn(t, offline(t)).Mutex("orders", WithOwner("job"), WithHooks(r.Hooks()))
	first := newRecord(t.Context(), m)
	first.contended()
	first.again()
	first.contended()
	require.Len(t, r.Of("contended"), 1)
	var e Event
	first.acquired(&e, m.session.now())
	require.True(t, e.Waited)
	first.ended(false, ErrLost)
	require.Equal(t, []string{"contended"}, r.Names())

	first.again() // after it has got the rest, and lost what it had
	first.contended()
	first.again()
	first.ended(true, nil) // by a level on what another goroutine has got
	require.Equal(t, []string{"contended", "failed"}, r.Names())
	require.Len(t, r.Of("contended"), 2)
	require.True(t, r.Of("failed")[0].Waited)
	require.Equal(t, OutcomeBusy, r.Of("failed")[0].Outcome)
}
