package relock_test

import (
	"context"
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

// A MultiMutex in the lines of its keys, which others want one by one.

// twoKeys are names of a MultiMutex, in their order.
func twoKeys(t *testing.T) (a, b string) {
	t.Helper()
	key := redistest.Key(t)
	return key + "-a", key + "-b"
}

// requireNothingOf requires that nothing is left of locks and their lines, soon.
func requireNothingOf(t *testing.T, rdb redis.UniversalClient, names ...string) {
	t.Helper()
	for _, name := range names {
		redistest.Eventually(t, "nothing left of "+name, func() bool {
			left, err := rdb.Keys(t.Context(), "*"+name+"*").Result()
			require.NoError(t, err)
			return len(left) == 0
		})
	}
}

// rush has three processes keep each of names busy, by one owner each, until stop is called.
func rush(t *testing.T, b *redistest.Backend, names ...string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	for range 3 {
		c := relock.LocksOn(t, b.Client(t))
		t.Cleanup(stop)
		for _, name := range names {
			holds := locktest.KeepBusy(ctx, t, &all, c.Mutex(name))[0]
			redistest.Eventually(t, "busy", func() bool { return holds.Load() > 3 })
		}
	}
	return stop
}

func TestMultiLine_IsServedThoughEachNameIsAlwaysWanted(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		one, other := twoKeys(t)
		m, owner := relock.LocksOn(t, b.Client(t)).MultiMutex([]string{one, other}), locktest.NewActor(t)
		stop := rush(t, b, one, other)
		for range 3 {
			owner.Locks(t, m) // soon enough
			owner.Unlocks(t, m)
		}
		stop()
		requireNothingOf(t, b.Client(t), one, other)
	})
}

func TestMultiLine_SameNamesDoNotBlockEachOther(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		one, other := twoKeys(t)
		stop := rush(t, b, one, other)
		var all []<-chan error
		for range 2 {
			m := relock.LocksOn(t, b.Client(t)).MultiMutex([]string{one, other})
			all = append(all, locktest.NewActor(t).Begin(func() error {
				for range 3 {
					if err := m.Do(t.Context(), func(context.Context) error { return nil }); err != nil {
						return err
					}
				}
				return nil
			}))
		}
		for _, done := range all {
			require.NoError(t, locktest.OutcomeOf(t, done))
		}
		stop()
		requireNothingOf(t, b.Client(t), one, other)
	})
}

// multiWait is a MultiMutex that waits for the first of its names, which another process holds; the
// second is another client's for the whole test.
type multiWait struct {
	t          *testing.T
	b          *redistest.Backend
	rdb        *redis.Client
	one, other string
	holding    *relock.Mutex // of the first
	holder     *locktest.Actor
	c          *relock.Client
	m          *relock.Mutex
	owner      *locktest.Actor
	waiting    <-chan error
	giveUp     context.CancelFunc
}

func eachMultiWait(t *testing.T, test func(w *multiWait)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) { test(newMultiWait(t, b, b.Client(t))) })
}

// newMultiWait begins the wait. The MultiMutex uses rdb.
func newMultiWait(t *testing.T, b *redistest.Backend, rdb *redis.Client) *multiWait {
	t.Helper()
	w := &multiWait{t: t, b: b, rdb: b.Client(t), holder: locktest.NewActor(t), c: relock.LocksOn(t, rdb), owner: locktest.NewActor(t)}
	w.one, w.other = twoKeys(t)
	w.holding = relock.LocksOn(t, w.rdb).Mutex(w.one)
	w.holder.Locks(t, w.holding)
	locktest.HeldByAnother(t, w.rdb, w.other, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	w.giveUp = cancel
	w.m = w.c.MultiMutex([]string{w.one, w.other})
	w.waiting = w.owner.Lock(ctx, w.m)
	locktest.AwaitFairQueue(t, w.rdb, w.one, 1)
	return w
}

// inLongMultiWait runs test in virtual time, behind a relay. The MultiMutex has waited for so long that it will keep the first
// name for two seconds at most.
func inLongMultiWait(t *testing.T, test func(w *multiWait, relay *redistest.Relay)) {
	t.Helper()
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		w := newMultiWait(t, b, rdb)
		time.Sleep(2 * time.Second)
		test(w, relay)
	})
}

// requireKept requires that what the MultiMutex has acquired stays on Redis while undos are sent again and again.
func (w *multiWait) requireKept() {
	w.t.Helper()
	require.NoError(w.t, locktest.OutcomeOf(w.t, w.waiting))
	time.Sleep(10 * time.Second)
	for _, name := range []string{w.one, w.other} {
		require.Len(w.t, locktest.OnRedis(w.t, w.rdb, name), 1, name)
	}
	w.owner.Unlocks(w.t, w.m)
}

func TestMultiLine_NameIsKeptForABoundedTimeDuringAWait(t *testing.T) {
	redistest.InTime(t)
	eachMultiWait(t, func(w *multiWait) {
		m, owner := relock.LocksOn(w.t, w.b.Client(w.t)).Mutex(w.one), locktest.NewActor(w.t)
		next := owner.Lock(w.t.Context(), m)
		locktest.AwaitFairQueue(w.t, w.rdb, w.one, 2)
		w.holder.Unlocks(w.t, w.holding)
		began := time.Now()
		require.NoError(w.t, locktest.OutcomeOf(w.t, next))
		require.Less(w.t, time.Since(began), relock.GatheringMax, "the first time it keeps it for less")
		locktest.AwaitFairQueue(w.t, w.rdb, w.other, 1)
		owner.Unlocks(w.t, m)
		locktest.GoesOn(w.t, w.waiting)
		require.NoError(w.t, w.rdb.Del(w.t.Context(), w.other).Err())
		locktest.Publishes(w.t, w.rdb, w.other)
		require.NoError(w.t, locktest.OutcomeOf(w.t, w.waiting))
		w.owner.Unlocks(w.t, w.m)
		requireNothingOf(w.t, w.rdb, w.one, w.other)
	})
}

// Or two that each keep what the other wants would wait for each other.
func TestMultiLine_NothingIsKeptWhileWaitingForAnEarlierName(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		const one, other = "orders:1", "orders:2"
		others := relock.LocksOn(t, rdb)
		later, earlier, waiter := locktest.NewActor(t), locktest.NewActor(t), locktest.NewActor(t)
		later.Locks(t, others.Mutex(other))
		m := relock.LocksOn(t, rdb).MultiMutex([]string{one, other})
		waiting := waiter.Lock(t.Context(), m)
		time.Sleep(relock.GatheringMax) // it would keep a name for as long
		earlier.Locks(t, others.Mutex(one))
		given := time.Now()
		later.Unlocks(t, others.Mutex(other))
		for !later.Tries(t, others.Mutex(other)) {
			require.Less(t, time.Since(given), relock.GatheringMax/20, "it keeps the later name")
			time.Sleep(time.Millisecond)
		}
		later.Unlocks(t, others.Mutex(other))
		earlier.Unlocks(t, others.Mutex(one))
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		waiter.Unlocks(t, m)
	})
}

// What it has when it gives up: a place in one line, in another one, or a name and a place.
func TestMultiLine_GivingUpLeavesNothing(t *testing.T) {
	redistest.InTime(t)
	for name, until := range map[string]func(w *multiWait){
		"in the line of the first": func(w *multiWait) {},
		"it keeps the first, in the line of the second": func(w *multiWait) {
			w.holder.Unlocks(w.t, w.holding)
			redistest.Eventually(w.t, "it keeps one", func() bool {
				return w.rdb.Exists(w.t.Context(), w.one).Val() == 1 && len(locktest.FairQueueOf(w.t, w.rdb, w.other)) == 1
			})
		},
		"in the line of the second": func(w *multiWait) {
			w.holder.Unlocks(w.t, w.holding)
			redistest.Eventually(w.t, "it keeps none", func() bool {
				return w.rdb.Exists(w.t.Context(), w.one).Val() == 0 && len(locktest.FairQueueOf(w.t, w.rdb, w.other)) == 1
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachMultiWait(t, func(w *multiWait) {
				until(w)
				w.giveUp()
				require.ErrorIs(w.t, locktest.OutcomeOf(w.t, w.waiting), context.Canceled)
				if name == "in the line of the first" {
					locktest.AwaitFairQueue(w.t, w.rdb, w.one, 0)
					w.holder.Unlocks(w.t, w.holding)
				}
				began := time.Now()
				requireNothingOf(w.t, w.rdb, w.one)
				require.NoError(w.t, w.rdb.Del(w.t.Context(), w.other).Err())
				requireNothingOf(w.t, w.rdb, w.other)
				require.Less(w.t, time.Since(began), time.Second, "it is left to expire")
				redistest.Eventually(w.t, "nothing kept", func() bool { return relock.NamesOf(w.c) == 0 })
			})
		})
	}
}

// One copy of the request for all names was not answered, and the next one is refused. The name under which it keeps
// the first name is being undone then: what is acquired under it would be released.
func TestMultiLine_NothingIsAcquiredUnderANameThatIsBeingUndone(t *testing.T) {
	inLongMultiWait(t, func(w *multiWait, relay *redistest.Relay) {
		lost := relay.DropReply(locktest.RunsOf(protocol.AcquireScript).And(redistest.With(w.other)))
		w.holder.Unlocks(w.t, w.holding)
		lost.Wait(w.t)
		locktest.AwaitFairQueue(w.t, w.rdb, w.other, 1)
		require.NoError(w.t, w.rdb.Del(w.t.Context(), w.other).Err())
		locktest.Publishes(w.t, w.rdb, w.other)
		w.requireKept()
	})
}

// One copy of the request for an entry was not answered. The next one is refused, because the line cannot be used then, and the
// lock is taken. The name is being undone from then on, as above.
func TestMultiLine_NothingIsAcquiredUnderTheNameOfAnEntryThatIsBeingUndone(t *testing.T) {
	inLongMultiWait(t, func(w *multiWait, relay *redistest.Relay) {
		forOther := locktest.RunsOf(protocol.LineAcquireScript).And(redistest.With(w.other))
		relay.DropReply(forOther)
		refused := relay.ReplyWith("-TRYAGAIN Multiple keys request during rehashing of slot\r\n", forOther)
		answered := relay.After(forOther, func(redistest.Command, string) { w.rdb.Del(w.t.Context(), w.other) })
		w.holder.Unlocks(w.t, w.holding)
		refused.Wait(w.t)
		answered.Wait(w.t)
		locktest.Publishes(w.t, w.rdb, w.other)
		w.requireKept()
	})
}

// multiWithoutALine runs test for a MultiMutex whose relay refuses what needs the lines, as for a user without permissions
// for them.
func multiWithoutALine(t *testing.T, test func(t *testing.T, relay *redistest.Relay, direct *redis.Client, m *relock.Mutex, one, other string)) {
	t.Helper()
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		relay.Latency(100 * time.Microsecond)
		one, other := twoKeys(t)
		for _, name := range []string{one, other} {
			relay.ReplyWith("-NOPERM no permissions to access one of the keys\r\n", redistest.Scripts.And(redistest.With(keys.LineOf(name).Queue))).Always()
		}
		test(t, relay, b.Client(t), relock.LocksOn(t, rdb).MultiMutex([]string{one, other}), one, other)
	})
}

func TestMultiLine_WithoutALineMessagesWakeIt(t *testing.T) {
	multiWithoutALine(t, func(t *testing.T, _ *redistest.Relay, direct *redis.Client, m *relock.Mutex, one, _ string) {
		for range 8 {
			locktest.HeldByAnother(t, direct, one, time.Minute)
			owner := locktest.NewActor(t)
			waiting := owner.Lock(t.Context(), m)
			time.Sleep(7 * time.Second)
			require.NoError(t, direct.Del(t.Context(), one).Err())
			locktest.Publishes(t, direct, one)
			began := time.Now()
			require.NoError(t, locktest.OutcomeOf(t, waiting))
			require.Less(t, time.Since(began), 200*time.Millisecond)
			owner.Unlocks(t, m)
		}
	})
}

func TestMultiLine_WithoutALineItPausesWhileItKeepsAName(t *testing.T) {
	multiWithoutALine(t, func(t *testing.T, relay *redistest.Relay, direct *redis.Client, m *relock.Mutex, one, other string) {
		locktest.HeldByAnother(t, direct, one, time.Minute)
		locktest.HeldByAnother(t, direct, other, time.Minute)
		// The first name is freed after it was found taken, and before the request for an entry.
		relay.Before(locktest.RunsOf(protocol.LineAcquireScript), func(redistest.Command) { direct.Del(t.Context(), one) })
		owner := locktest.NewActor(t)
		waiting := owner.Lock(t.Context(), m)
		redistest.Eventually(t, "it keeps a name", func() bool {
			fields := locktest.OnRedis(t, direct, one)
			return len(fields) == 1 && fields["another:1"] == ""
		})
		before := relay.Count(redistest.Scripts)
		time.Sleep(time.Second)
		require.Less(t, relay.Count(redistest.Scripts)-before, 30)
		require.NoError(t, direct.Del(t.Context(), other).Err())
		locktest.Publishes(t, direct, other)
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		owner.Unlocks(t, m)
	})
}

// Its request for an entry was refused once. After that it waits for another name, on which it does not depend when others poll.
func TestMultiLine_WithoutAnEntryItDoesNotKeepTheTurnToPoll(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		direct := b.Client(t)
		one, other := twoKeys(t)
		c := relock.LocksOn(t, rdb)
		elsewhere, there := relock.LocksOn(t, direct).Mutex(other), locktest.NewActor(t)
		there.Locks(t, elsewhere)
		refused := relay.ReplyWith("-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
			locktest.RunsOf(protocol.LineAcquireScript).And(redistest.With(keys.LineOf(other).Queue)))
		m, owner := c.MultiMutex([]string{one, other}), locktest.NewActor(t)
		all := owner.Lock(t.Context(), m)
		refused.Wait(t)
		here := locktest.NewActor(t)
		here.Locks(t, c.Mutex(one))
		time.Sleep(10 * time.Second)
		waiter := locktest.NewActor(t)
		waiting := waiter.Lock(t.Context(), c.Mutex(other))
		time.Sleep(10 * time.Second) // longer than the lease of an entry
		there.Unlocks(t, elsewhere)
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		waiter.Unlocks(t, c.Mutex(other))
		here.Unlocks(t, c.Mutex(one))
		require.NoError(t, locktest.OutcomeOf(t, all))
		owner.Unlocks(t, m)
	})
}
