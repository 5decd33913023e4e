package relock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// placeLease is the lease of a queue entry in fault tests. The lease of the lock itself is
// the usual one, which lasts on a busy machine.
const placeLease = 1200 * time.Millisecond

// shortPlaces makes it so.
var shortPlaces = relock.WithSafetyPoll(placeLease / 2)

// longPlaces are for tests in which no poll is to find out what a message has to report.
var longPlaces = relock.WithSafetyPoll(defaultSafetyPoll)

// fairWait is a fair lock that a rival holds, and a client that waits for it.
type fairWait struct {
	t       *testing.T
	relay   *redistest.Relay // of the client
	direct  *redis.Client
	key     string
	c       *relock.Client
	m       *relock.Mutex // of c
	rival   *relock.Mutex // of another client, past the relay
	me      *locktest.Actor
	holder  *locktest.Actor
	waiting <-chan error
}

// eachFairWait runs fn on each backend, with c's first Lock not begun.
func eachFairWait(t *testing.T, fn func(w *fairWait), opts ...relock.ClientOption) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		w := &fairWait{t: t, relay: relay, direct: b.Client(t), key: redistest.Key(t), me: locktest.NewActor(t), holder: locktest.NewActor(t)}
		opts := append([]relock.ClientOption{shortPlaces}, opts...)
		w.c = relock.LocksOn(t, rdb, opts...)
		w.m = w.c.FairMutex(w.key)
		w.rival = relock.LocksOn(t, w.direct).FairMutex(w.key)
		w.holder.Locks(t, w.rival)
		fn(w)
	})
}

// queue has c wait, and returns when it has a queue entry, and is subscribed to grants.
func (w *fairWait) queue() {
	w.t.Helper()
	w.waiting = w.me.Lock(context.WithoutCancel(w.t.Context()), w.m)
	locktest.AwaitFairQueue(w.t, w.direct, w.key, 1)
	w.awaitListening()
}

func (w *fairWait) awaitListening() {
	w.t.Helper()
	redistest.Eventually(w.t, "listening", func() bool {
		select {
		case err := <-w.waiting:
			require.Fail(w.t, "it does not wait any more", "%v", err)
		default:
		}
		return relock.Listening(w.c, w.key)
	})
	locktest.AwaitStillness(w.t, w.relay)
}

// served requires that c gets the lock, alone, and releases it.
func (w *fairWait) served() {
	w.t.Helper()
	require.NoError(w.t, locktest.OutcomeOf(w.t, w.waiting))
	require.Len(w.t, locktest.OnRedis(w.t, w.direct, w.key), 1)
	require.False(w.t, w.holder.Tries(w.t, w.rival), "two holders")
	w.me.Unlocks(w.t, w.m)
	locktest.RequireFairFree(w.t, w.direct, w.key)
}

// grantsOf is the channel on which c receives grants of a fair lock.
func grantsOf(c *relock.Client, key string) string {
	return c.FairMutex(key).Protocol().(*protocol.Lined).GrantsFor(key)
}

// publishGrant publishes a grant of the last ticket of c.
func (w *fairWait) publishGrant() {
	w.t.Helper()
	channel := grantsOf(w.c, w.key)
	receivers, err := w.direct.Publish(w.t.Context(), channel, fmt.Sprintf("%d 0", w.c.Tickets())).Result()
	require.NoError(w.t, err)
	require.EqualValues(w.t, 1, receivers)
}

func (w *fairWait) polls() int { return w.relay.Count(locktest.RunsOf(protocol.LinePollScript)) }

// subscribed has c listen for news of key from before it waits: no confirmation will come
// later. Each message about the key is an event, too.
func subscribed(t *testing.T, c *relock.Client, key string) (events <-chan struct{}) {
	t.Helper()
	all := make(chan struct{}, 8)
	for _, channel := range []string{locktest.ChannelOf(key), grantsOf(c, key)} {
		t.Cleanup(c.Subscribe(channel, func() { all <- struct{}{} }).Close)
		redistest.Receive(t, all)
	}
	return all
}

func TestFair_GrantComesWithTheMessage(t *testing.T) {
	eachFairWait(t, func(w *fairWait) {
		subscribed(w.t, w.c, w.key) // a confirmation is a reason to ask
		w.queue()
		before := w.polls()
		w.holder.Unlocks(w.t, w.rival)
		w.served()
		require.Equal(w.t, before, w.polls(), "it asked")
	}, longPlaces)
}

// A grant is proven by the last answer that the ticket waits; that one is too old.
func TestFair_GrantWithAnExpiredLeaseIsNotTrusted(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		w := &fairWait{t: t, relay: relay, direct: b.Client(t), key: redistest.Key(t), me: locktest.NewActor(t), holder: locktest.NewActor(t)}
		c, clocks := relock.LocksWithClock(t, rdb)
		w.c, w.m = c, c.FairMutex(w.key)
		w.rival = relock.LocksOn(t, w.direct).FairMutex(w.key)
		w.holder.Locks(t, w.rival)
		w.queue()
		clocks.Set(locktest.LongestPlace.EntryLease())
		before, ticket := w.polls(), c.Tickets()
		w.publishGrant()
		redistest.Eventually(t, "a poll", func() bool { return w.polls() > before })
		locktest.GoesOn(t, w.waiting)
		require.Equal(t, ticket, c.Tickets(), "it has given its place up")
		w.holder.Unlocks(t, w.rival)
		w.served()
	})
}

// The request may be executed once more, and granted once more: an old message of the one
// grant would be taken for the other's.
func TestFair_MessageProvesNothingWhileACopyIsInFlight(t *testing.T) {
	eachFairWait(t, func(w *fairWait) {
		held := w.relay.HoldBack(locktest.RunsOf(protocol.LineAcquireScript))
		w.queue()
		before := w.polls()
		w.publishGrant()
		redistest.Eventually(w.t, "a poll", func() bool { return w.polls() > before })
		locktest.GoesOn(w.t, w.waiting)
		_, err := held.Deliver(w.t.Context())
		require.NoError(w.t, err)
		require.Len(w.t, locktest.FairQueueOf(w.t, w.direct, w.key), 1, "the copy has found its place")
		w.holder.Unlocks(w.t, w.rival)
		w.served()
	})
}

// Both channels are subscribed to from an earlier wait, so no confirmation will come.
func TestFair_PlainReleaseBetweenAnswerAndWaitIsNotMissed(t *testing.T) {
	redistest.InTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		direct, key, waiter := b.Client(t), redistest.Key(t), locktest.NewActor(t)
		c := relock.LocksOn(t, rdb)
		events := subscribed(t, c, key)
		locktest.HeldByAnother(t, direct, key, 0)
		relay.After(locktest.RunsOf(protocol.LineAcquireScript), func(redistest.Command, string) {
			_ = direct.Del(context.Background(), key).Err()
			_ = direct.Publish(context.Background(), locktest.ChannelOf(key), "0").Err()
			<-events
		})
		began := time.Now()
		waiter.Locks(t, c.FairMutex(key))
		require.Less(t, time.Since(began), locktest.LongestPlace.EntryPoll()/2, "a poll has found it out")
		waiter.Unlocks(t, c.FairMutex(key))
	})
}

func TestFair_MessageForAnotherTicketIsIgnored(t *testing.T) {
	eachFairWait(t, func(w *fairWait) {
		w.queue()
		before := w.polls()
		channel := grantsOf(w.c, w.key)
		for _, payload := range []string{fmt.Sprintf("%d 0", w.c.Tickets()-1), "", "x", "0", "-1 0", "99999999999999999999 0"} {
			require.NoError(w.t, w.direct.Publish(w.t.Context(), channel, payload).Err())
		}
		locktest.GoesOn(w.t, w.waiting)
		require.LessOrEqual(w.t, w.polls(), before+1, "more than its safety poll")
		w.holder.Unlocks(w.t, w.rival)
		w.served()
	}, longPlaces)
}

func TestFair_LostMessageCostsOneSafetyPoll(t *testing.T) {
	redistest.Slow(t)
	eachFairWait(t, func(w *fairWait) {
		w.queue()
		w.relay.BlackHoleCurrent()
		w.holder.Unlocks(w.t, w.rival)
		began := time.Now()
		w.served()
		require.Less(w.t, time.Since(began), locktest.LongestPlace.EntryPoll(), "no poll of its own has found it out")
	})
}

func TestFair_LostReplyKeepsTheEntry(t *testing.T) {
	eachFairWait(t, func(w *fairWait) {
		w.relay.DropReply(locktest.RunsOf(protocol.LineAcquireScript))
		w.queue()
		second := w.holder // it releases and stands behind
		first := locktest.FairQueueOf(w.t, w.direct, w.key)
		behind := locktest.NewActor(w.t).Lock(context.WithoutCancel(w.t.Context()), w.c.FairMutex(w.key, relock.WithOwner("behind")))
		locktest.AwaitFairQueue(w.t, w.direct, w.key, 2)
		require.Equal(w.t, first[0], locktest.FairQueueOf(w.t, w.direct, w.key)[0])
		second.Unlocks(w.t, w.rival)
		require.NoError(w.t, locktest.OutcomeOf(w.t, w.waiting))
		locktest.GoesOn(w.t, behind)
		w.me.Unlocks(w.t, w.m)
		require.NoError(w.t, locktest.OutcomeOf(w.t, behind))
		require.NoError(w.t, w.c.FairMutex(w.key, relock.WithOwner("behind")).Unlock())
		locktest.RequireFairFree(w.t, w.direct, w.key)
	})
}

func TestFair_IncompleteEntryIsReplaced(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	for _, part := range []func(keys.LineKeys) string{
		func(k keys.LineKeys) string { return k.Queue },
		func(k keys.LineKeys) string { return k.Entries },
	} {
		t.Run(part(keys.LineOf("")), func(t *testing.T) {
			eachFairWait(t, func(w *fairWait) {
				w.queue()
				require.NoError(w.t, w.direct.Del(w.t.Context(), part(keys.LineOf(w.key))).Err())
				redistest.Eventually(w.t, "both parts", func() bool {
					n, err := w.direct.HLen(w.t.Context(), keys.LineOf(w.key).Entries).Result()
					require.NoError(w.t, err)
					return n == 1 && len(locktest.FairQueueOf(w.t, w.direct, w.key)) == 1
				})
				w.holder.Unlocks(w.t, w.rival)
				w.served()
			})
		})
	}
}

func TestFair_WaiterThatGivesUpLeavesTheLineAtOnce(t *testing.T) {
	redistest.InTime(t)
	eachFairWait(t, func(w *fairWait) {
		ctx, cancel := context.WithCancel(w.t.Context())
		w.waiting = w.me.Lock(ctx, w.m)
		locktest.AwaitFairQueue(w.t, w.direct, w.key, 1)
		cancel()
		require.ErrorIs(w.t, locktest.OutcomeOf(w.t, w.waiting), context.Canceled)
		began := time.Now()
		locktest.AwaitFairQueue(w.t, w.direct, w.key, 0)
		require.Less(w.t, time.Since(began), locktest.LongestPlace.EntryLease()/2, "its lease has run out")
		w.holder.Unlocks(w.t, w.rival)
		locktest.RequireFairFree(w.t, w.direct, w.key)
		w.me.Locks(w.t, w.m)
		w.me.Unlocks(w.t, w.m)
	}, longPlaces)
}

func TestFair_WakeUpSurvivesTheWaiterThatWasToActOnIt(t *testing.T) {
	redistest.Slow(t)
	eachFairWait(t, func(w *fairWait) {
		for range 10 {
			ctx, cancel := context.WithCancel(w.t.Context())
			second, last := locktest.NewActor(w.t), w.c.FairMutex(w.key, relock.WithOwner("second"))
			w.waiting = w.me.Lock(ctx, w.m) // polls for both
			locktest.AwaitFairQueue(w.t, w.direct, w.key, 1)
			waiting := second.Lock(w.t.Context(), last)
			locktest.AwaitFairQueue(w.t, w.direct, w.key, 2)
			w.awaitListening()
			require.NoError(w.t, w.direct.Del(w.t.Context(), w.key).Err())
			locktest.Publishes(w.t, w.direct, w.key)
			cancel()
			if locktest.OutcomeOf(w.t, w.waiting) == nil {
				w.me.Unlocks(w.t, w.m)
			}
			began := time.Now()
			require.NoError(w.t, locktest.OutcomeOf(w.t, waiting))
			require.Less(w.t, time.Since(began), locktest.LongestPlace.EntryPoll()/2, "nobody has acted on the message")
			require.NoError(w.t, last.Unlock())
			redistest.Eventually(w.t, "free", func() bool { return w.direct.Exists(w.t.Context(), w.key).Val() == 0 })
			locktest.HeldByAnother(w.t, w.direct, w.key, 0)
		}
	}, longPlaces)
}

// The message of the grant and the end of the context race.
func TestFair_GrantForAWaiterThatGaveUpIsReturned(t *testing.T) {
	redistest.Slow(t)
	eachFairWait(t, func(w *fairWait) {
		for i := range 30 {
			ctx, cancel := context.WithCancel(w.t.Context())
			w.waiting = w.me.Lock(ctx, w.m)
			locktest.AwaitFairQueue(w.t, w.direct, w.key, 1)
			go cancel()
			w.holder.Unlocks(w.t, w.rival)
			err := locktest.OutcomeOf(w.t, w.waiting)
			if err == nil {
				w.me.Unlocks(w.t, w.m)
			} else {
				require.ErrorIs(w.t, err, context.Canceled)
			}
			require.NoError(w.t, locktest.OutcomeOf(w.t, w.holder.Lock(w.t.Context(), w.rival)), "round %d", i)
		}
		w.holder.Unlocks(w.t, w.rival)
		locktest.RequireFairFree(w.t, w.direct, w.key)
	}, longPlaces)
}

func TestFair_UnansweredReleaseServesTheNext(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBenchOf(t, kindNamed("fair"), backend.Addr)
		m := b.mutex(relock.WithUnlockTimeout(100 * time.Millisecond))
		require.NoError(t, b.me.lock(b.ctx, m))
		waiting := b.other.start(func() error { return b.rival.Lock(b.ctx) })
		locktest.AwaitFairQueue(t, b.server, b.key, 1)
		rule := b.relay.DropReply(b.runs(protocol.ReleaseScript)).Always()
		require.Error(t, b.me.unlock(m))
		require.NoError(t, faultError(t, waiting))
		rule.Remove()
		b.awaitIdle() // what is repeated of the release hits nobody
		require.NoError(t, b.other.unlock(b.rival))
		b.requireGone()
	})
}

// A poll is waited for as long as its queue entry can spare. Messages that arrive meanwhile wait, too.
func TestFair_LostAnswerToAPollKeepsABriefEntry(t *testing.T) {
	redistest.Slow(t)
	eachFairWait(t, func(w *fairWait) {
		w.m = w.c.FairMutex(w.key, relock.WithOwner("brief"), shortPlaces)
		subscribed(w.t, w.c, w.key)
		onceWithin(w.t, promptly, func() time.Duration {
			w.queue()
			w.relay.LoseReply(locktest.RunsOf(protocol.LinePollScript)).Wait(w.t)
			d := locktest.Took(func() {
				w.holder.Unlocks(w.t, w.rival)
				require.NoError(w.t, locktest.OutcomeOf(w.t, w.waiting))
			})
			require.NoError(w.t, w.m.Unlock())
			w.holder.Locks(w.t, w.rival)
			return d
		})
		w.holder.Unlocks(w.t, w.rival)
	}, longPlaces)
}

// The wake-up on which a waiter asks that leaves before the answer is acted on by the next one.
func TestFair_WakeUpSurvivesThePollItCaused(t *testing.T) {
	redistest.InTime(t)
	eachFairWait(t, func(w *fairWait) {
		subscribed(w.t, w.c, w.key)
		ctx, giveUp := context.WithCancel(context.WithoutCancel(w.t.Context()))
		defer giveUp()
		var leaving <-chan error
		crossed := w.relay.After(locktest.RunsOf(protocol.LineAcquireScript), func(redistest.Command, string) {
			leaving = locktest.NewActor(w.t).Lock(ctx, w.c.FairMutex(w.key, relock.WithOwner("leaving")))
			redistest.Eventually(w.t, "the second has the turn", func() bool {
				_, turn := partyOf(w.c, w.key)
				return turn != nil && turn.Taken()
			})
		})
		w.waiting = w.me.Lock(context.WithoutCancel(w.t.Context()), w.m)
		crossed.Wait(w.t)
		locktest.AwaitFairQueue(w.t, w.direct, w.key, 2)
		w.awaitListening()
		_, turn := partyOf(w.c, w.key)

		w.relay.SilenceSubscribers() // the message about the grant of the first does not arrive
		w.holder.Unlocks(w.t, w.rival)
		locktest.AwaitStillness(w.t, w.relay)

		var once sync.Once
		asked := w.relay.After(locktest.RunsOf(protocol.LinePollScript), func(redistest.Command, string) {
			once.Do(func() { // before the answer arrives
				giveUp()
				require.ErrorIs(w.t, locktest.OutcomeOf(w.t, leaving), context.Canceled)
			})
		})
		turn.Wake()
		asked.Wait(w.t)
		require.Less(w.t, locktest.Took(func() { require.NoError(w.t, locktest.OutcomeOf(w.t, w.waiting)) }), promptly)
		w.me.Unlocks(w.t, w.m)
	}, longPlaces)
}
