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

	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// lineUp has n actors wait for m one after the other; each reports its number in turns when
// it has the lock, and unlocks.
func lineUp(t *testing.T, c *Client, m *Mutex, n int, turns chan<- int) []<-chan error {
	t.Helper()
	before := waitersOn(c.session, m.Name())
	var done []<-chan error
	for i := range n {
		done = append(done, newActor(t).begin(func() error {
			if err := m.Lock(t.Context()); err != nil {
				return err
			}
			turns <- i
			return m.Unlock()
		}))
		awaitWaiters(t, c.session, m.Name(), before+i+1)
	}
	return done
}

func TestWaitersOfOneProcessAreServedInTheOrderInWhichTheyCame(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		m := c.Mutex(key)
		for _, handoffs := range []int{defaultLocalHandoffs, 3, 0} {
			requireLocked(t, m)
			turns := make(chan int, 20)
			done := lineUp(t, c, c.Mutex(key, WithLocalHandoffs(handoffs)), 20, turns)
			requireUnlocked(t, m)
			for i, d := range done {
				require.NoError(t, outcomeOf(t, d))
				require.Equal(t, i, <-turns)
			}
			requireFree(t, rdb, key)
		}
		require.Zero(t, gatesOf(c))
	})
}

func TestAHandOverWithATokenIsOneRoundTrip(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		c := locksOn(t, rdb, WithLocalHandoffs(1000), WithFencing())
		m := c.Mutex(redistest.Key(t))
		requireLocked(t, m)
		const n = 50
		turns := make(chan int, n)
		done := lineUp(t, c, m, n, turns)
		awaitStillness(t, relay)
		relay.ResetLog()
		requireUnlocked(t, m)
		for _, d := range done {
			require.NoError(t, outcomeOf(t, d))
		}
		require.LessOrEqual(t, relay.Count(redistest.Scripts), n*12/10)
		require.Equal(t, n, relay.Executed(runsOf(protocol.HandoffScript)))
		require.Equal(t, 1, relay.Executed(runsOf(protocol.ReleaseScript)), "the last one")
	})
}

func TestDrainingThreeHundredWaitersCostsAboutOneScriptEach(t *testing.T) {
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		c := locksOn(t, rdb)
		m := c.Mutex(redistest.Key(t))
		requireLocked(t, m)
		const n = 300
		done := lineUp(t, c, m, n, make(chan int, n))
		awaitStillness(t, relay)
		relay.ResetLog()
		requireUnlocked(t, m)
		for _, d := range done {
			require.NoError(t, outcomeOf(t, d))
		}
		scripts := relay.Count(redistest.Scripts)
		t.Logf("%d scripts for %d holds: %.3f each", scripts, n, float64(scripts)/n)
		require.LessOrEqual(t, scripts, n*12/10)
	})
}

// awaitStillness waits until no script has been sent for a while.
func awaitStillness(t *testing.T, relay *redistest.Relay) {
	t.Helper()
	last, since := -1, time.Now()
	eventually(t, "stillness", func() bool {
		if n := relay.Count(redistest.Scripts); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > 30*time.Millisecond
	})
}

// awaitAsleep waits until the first waiter of a client has been told twice that key is taken:
// before it had a subscription, and with it. Everything else in the log of relay has to be of
// other keys. Only a message, a poll or the end of a lease has it ask again.
func awaitAsleep(t *testing.T, relay *redistest.Relay, key string) {
	t.Helper()
	asks := redistest.Scripts.And(redistest.With(key))
	eventually(t, "asleep", func() bool { return answered(relay, asks) >= 2 })
	awaitStillness(t, relay)
}

// answered is the number of matching commands in the log that have a reply.
func answered(relay *redistest.Relay, match redistest.Match) int {
	n := 0
	for _, e := range relay.Log() {
		if e.Reply != "" && match(e.Command) {
			n++
		}
	}
	return n
}

func TestThreeHundredWaitersCostOneWaitersTraffic(t *testing.T) {
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		direct, key := b.Client(t), redistest.Key(t)
		const poll = 100 * time.Millisecond
		c := locksOn(t, rdb, WithSafetyPoll(poll))
		heldByStranger(t, direct, key, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var waiting sync.WaitGroup
		for range 300 {
			waiting.Go(func() { _ = c.Mutex(key).Lock(ctx) })
		}
		awaitWaiters(t, c.session, key, 300)
		awaitListening(t, c.session, key)
		awaitStillness(t, relay)
		start := time.Now()
		relay.ResetLog()
		throughout(t, 4*poll, func() bool { return true }, "")
		polls := int(time.Since(start)/poll) + 2 // one that was due, and the first, which comes early
		require.LessOrEqual(t, relay.Count(redistest.Any), polls)
		require.NotZero(t, relay.Count(redistest.Scripts), "the safety poll")
		require.Equal(t, 1, listeners(t, direct, key))

		relay.ResetLog()
		cancel()
		waiting.Wait()
		require.LessOrEqual(t, relay.Count(redistest.Scripts), 3, "leaving costs nothing, either")
		require.Zero(t, gatesOf(c))
	})
}

func TestWithoutHandOversEveryReleaseIsPublic(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		c := locksOn(t, rdb, WithLocalHandoffs(0))
		m := c.Mutex(redistest.Key(t))
		requireLocked(t, m)
		done := lineUp(t, c, m, 5, make(chan int, 5))
		requireUnlocked(t, m)
		for _, d := range done {
			require.NoError(t, outcomeOf(t, d))
		}
		require.Zero(t, relay.Count(runsOf(protocol.HandoffScript)))
		require.Equal(t, 6, relay.Executed(runsOf(protocol.ReleaseScript)))
	})
}

func TestAfterSoManyHandOversAnotherProcessGetsItsTurn(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		key := redistest.Key(t)
		const handoffs = 4
		var holds atomic.Int64
		crowd := locksOn(t, b.Client(t), WithLocalHandoffs(handoffs), WithHooks(Hooks{Acquired: func(Event) { holds.Add(1) }}))
		m := crowd.Mutex(key)
		requireLocked(t, m)
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
		awaitWaiters(t, crowd.session, key, 8)
		who, other := newActor(t), locksOn(t, b.Client(t)).Mutex(key)
		waiting := who.lock(t.Context(), other)
		awaitFairQueue(t, b.Client(t), key, 1)
		requireUnlocked(t, m)
		require.NoError(t, outcomeOf(t, waiting))
		require.LessOrEqual(t, int(holds.Load()), handoffs+1, "with another process in line from the first on")
		who.unlocks(t, other)
		for range 5 {
			who.locks(t, other)
			who.unlocks(t, other)
		}
		require.Greater(t, int(holds.Load()), handoffs+1, "the crowd has its turns, too")
	})
}

func TestTheWaitTimeoutEndsAWait(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		heldByStranger(t, rdb, key, time.Minute)
		c := locksOn(t, rdb, WithWaitTimeout(30*time.Millisecond))
		// A wait that ends before Redis has answered cannot tell.
		eventually(t, "an error that says who was in the way", func() bool {
			start := time.Now()
			err := c.Mutex(key).Lock(t.Context())
			require.ErrorIs(t, err, ErrTimeout)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, key)
			require.GreaterOrEqual(t, time.Since(start), 30*time.Millisecond)
			return strings.Contains(err.Error(), "stranger:1")
		})

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		err := c.Mutex(key, WithWaitTimeout(time.Hour)).Lock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, ErrTimeout)
		requireOnRedis(t, rdb, key, "stranger:1", 1)
	})
}

// The message of a release is lost, or a foreign program deletes the key without one.
func TestAMissedMessageIsFoundByTheSafetyPoll(t *testing.T) {
	inBubble(t, func(t *testing.T, rdb *redis.Client) {
		key, waiter := redistest.Key(t), newActor(t)
		c := locksOn(t, rdb, WithSafetyPoll(4*time.Second))
		heldByStranger(t, rdb, key, 0)
		waiting := waiter.lock(t.Context(), c.Mutex(key))
		time.Sleep(time.Minute + time.Millisecond)
		require.NoError(t, rdb.Del(t.Context(), key).Err())
		start := time.Now()
		require.NoError(t, outcomeOf(t, waiting))
		require.LessOrEqual(t, time.Since(start), 4*time.Second)
		waiter.unlocks(t, c.Mutex(key))
	})
}

func TestALeaseThatRunsOutIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key, waiter := b.Client(t), redistest.Key(t), newActor(t)
		c := locksOn(t, rdb, WithSafetyPoll(time.Hour))
		heldByStranger(t, rdb, key, 200*time.Millisecond)
		require.NoError(t, outcomeOf(t, waiter.lock(t.Context(), c.Mutex(key))))
		waiter.unlocks(t, c.Mutex(key))
	})
}

func TestAMessageEndsASleepOfAnyLength(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key, waiter := b.Client(t), redistest.Key(t), newActor(t)
		c, holder := locksOn(t, rdb, WithSafetyPoll(time.Hour)), locksOn(t, rdb)
		m := holder.Mutex(key, WithTTL(time.Hour))
		for range 5 {
			requireLocked(t, m)
			waiting := waiter.lock(t.Context(), c.Mutex(key))
			awaitListening(t, c.session, key)
			requireUnlocked(t, m)
			require.NoError(t, outcomeOf(t, waiting))
			waiter.unlocks(t, c.Mutex(key))
		}
	})
}

// A wake-up that comes while the waiter asks is not lost between the answer and the sleep.
func TestAMessageThatComesDuringATryIsRemembered(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		direct, key, waiter := b.Client(t), redistest.Key(t), newActor(t)
		c := locksOn(t, rdb, WithSafetyPoll(time.Hour))
		heldByStranger(t, direct, key, 0)
		waiting := waiter.lock(t.Context(), c.Mutex(key))
		awaitListening(t, c.session, key)
		awaitStillness(t, relay)
		relay.After(runsOf(protocol.FairPollScript), func(redistest.Command, string) {
			// "Busy" is on its way while the lock is released.
			q := &holdsOn(c.session, key)[0].places[0].Gate.Line().Queue
			before := q.Wakes()
			_ = direct.Del(context.Background(), key).Err()
			_ = direct.Publish(context.Background(), channelOf(key), "0").Err()
			for end := time.Now().Add(soonEnough); q.Wakes() == before && time.Now().Before(end); {
				time.Sleep(lookEvery)
			}
		})
		publishes(t, direct, key)
		require.NoError(t, outcomeOf(t, waiting))
		waiter.unlocks(t, c.Mutex(key))
	})
}

func TestAWaiterThatMayNotSubscribePolls(t *testing.T) {
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

	c, waiter := locksOn(t, rdb, WithSafetyPoll(time.Hour)), newActor(t)
	holder := locksOn(t, admin).Mutex(key)
	for range 2 {
		requireLocked(t, holder)
		waiting := waiter.lock(t.Context(), c.Mutex(key))
		awaitWaiters(t, c.session, key, 1)
		require.Zero(t, listeners(t, admin, key))
		requireUnlocked(t, holder)
		require.NoError(t, outcomeOf(t, waiting))
		waiter.unlocks(t, c.Mutex(key))
	}
	requireFree(t, admin, key)
}

func TestTryLockNeitherWaitsNorBarges(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		direct, key := b.Client(t), redistest.Key(t)
		c, waiter, passer := locksOn(t, rdb, WithSafetyPoll(time.Hour)), newActor(t), newActor(t)
		m := c.Mutex(key)
		heldByStranger(t, direct, key, 0)
		require.False(t, passer.tries(t, m))
		require.Equal(t, 1, relay.Executed(redistest.Scripts), "one round trip")
		require.Zero(t, relay.Count(redistest.Named("subscribe")))

		relay.ResetLog()
		waiting := waiter.lock(t.Context(), m)
		awaitListening(t, c.session, key)
		awaitAsleep(t, relay, key)
		require.NoError(t, direct.Del(t.Context(), key).Err()) // nobody has told the waiter yet
		relay.ResetLog()
		require.False(t, passer.tries(t, m), "somebody of this process was first")
		require.Zero(t, relay.Count(redistest.Any))
		publishes(t, direct, key)
		require.NoError(t, outcomeOf(t, waiting))
		require.False(t, passer.tries(t, m))
		waiter.unlocks(t, m)
		require.True(t, passer.tries(t, m))
		require.True(t, passer.tries(t, m), "a re-entry")
		passer.unlocks(t, m)
		passer.unlocks(t, m)
		requireFree(t, direct, key)
		require.Zero(t, gatesOf(c))
	})
}

func TestManyNamesDoNotBlockEachOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
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
		require.Zero(t, gatesOf(c), "nothing is kept for a name")
	})
}

// The channel is still subscribed to from an earlier wait, so no confirmation will wake who
// subscribes to it now.
func TestAReleaseBetweenTheAnswerAndTheSubscriptionIsNotMissed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		direct, key, waiter := b.Client(t), redistest.Key(t), newActor(t)
		c := locksOn(t, rdb, WithSafetyPoll(time.Hour))
		events := make(chan struct{}, 8)
		lingering := c.session.hub.Subscribe(channelOf(key), func() { events <- struct{}{} })
		t.Cleanup(lingering.Close)
		receives(t, events)
		heldByStranger(t, direct, key, 0)
		relay.After(runsOf(protocol.AcquireScript), func(redistest.Command, string) {
			_ = direct.Del(context.Background(), key).Err()
			_ = direct.Publish(context.Background(), channelOf(key), "0").Err()
			<-events
		})
		waiter.locks(t, c.Mutex(key))
		waiter.unlocks(t, c.Mutex(key))
	})
}
