package relock_test

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// What becomes of the place of a process in the line when the waiter that has it gives up.

// placeBench is a lock that one process holds, and a waiter of another one that has a place in the line.
type placeBench struct {
	t       *testing.T
	b       *redistest.Backend
	rdb     *redis.Client
	key     string
	holding *relock.Mutex
	holder  *locktest.Actor
	c       *relock.Client   // of the process that waits
	relay   *redistest.Relay // of that
	first   *locktest.Actor  // its first waiter
	waiting <-chan error
	giveUp  context.CancelFunc // has the first give up
	place   redis.Z            // of that
}

func eachPlace(t *testing.T, test func(p *placeBench)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		p := &placeBench{t: t, b: b, rdb: b.Client(t), key: redistest.Key(t), holder: locktest.NewActor(t), c: relock.LocksOn(t, rdb), relay: relay, first: locktest.NewActor(t)}
		p.holding = relock.LocksOn(t, p.rdb).Mutex(p.key)
		p.holder.Locks(t, p.holding)
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		p.giveUp = cancel
		p.waiting = p.first.Lock(ctx, p.c.Mutex(p.key))
		relock.AwaitEntries(t, p.c, p.key, 1)
		p.place = locktest.PlacesOn(t, p.rdb, p.key)[0]
		test(p)
	})
}

// joins has an owner of its own wait for m, as the nth waiter of the process.
func (p *placeBench) joins(ctx context.Context, m *relock.Mutex, n int) (*locktest.Actor, <-chan error) {
	p.t.Helper()
	owner := locktest.NewActor(p.t)
	waiting := owner.Lock(ctx, m)
	relock.AwaitWaiters(p.t, p.c, p.key, n)
	return owner, waiting
}

// another has a third process get into the line.
func (p *placeBench) another() (m *relock.Mutex, owner *locktest.Actor, waiting <-chan error) {
	p.t.Helper()
	m, owner = relock.LocksOn(p.t, p.b.Client(p.t)).Mutex(p.key), locktest.NewActor(p.t)
	waiting = owner.Lock(p.t.Context(), m)
	locktest.AwaitFairQueue(p.t, p.rdb, p.key, 2)
	return m, owner, waiting
}

// firstGivesUp has the first waiter give up, after which n others of its process wait.
func (p *placeBench) firstGivesUp(n int) {
	p.t.Helper()
	p.giveUp()
	require.ErrorIs(p.t, locktest.OutcomeOf(p.t, p.waiting), context.Canceled)
	relock.AwaitWaiters(p.t, p.c, p.key, n)
}

func TestEntry_OfAWaiterThatGivesUpGoesToTheNextOfItsProcess(t *testing.T) {
	eachPlace(t, func(p *placeBench) {
		heir, inherits := p.joins(p.t.Context(), p.c.Mutex(p.key), 2)
		other, owner, waiting := p.another()
		before, identity := locktest.PlacesOn(p.t, p.rdb, p.key), p.c.ID()
		p.firstGivesUp(1)
		require.NotEqual(p.t, identity, p.c.ID(), "the name of the place is the name of one that has gone")
		locktest.Throughout(p.t, locktest.AWhile, func() bool { return len(locktest.PlacesOn(p.t, p.rdb, p.key)) == 2 }, "its place")
		require.Equal(p.t, before, locktest.PlacesOn(p.t, p.rdb, p.key))

		// Its owner comes back, as another waiter by another name.
		again := p.first.Lock(p.t.Context(), p.c.Mutex(p.key, relock.WithFencing()))
		relock.AwaitWaiters(p.t, p.c, p.key, 2)

		p.holder.Unlocks(p.t, p.holding)
		require.NoError(p.t, locktest.OutcomeOf(p.t, inherits))
		locktest.RequireOnRedis(p.t, p.rdb, p.key, p.place.Member.(string), 1)
		locktest.GoesOn(p.t, waiting)
		locktest.GoesOn(p.t, again)
		heir.Unlocks(p.t, p.c.Mutex(p.key))
		for range 2 { // the other process, and the one that came back: which of them is not the matter here
			select {
			case err := <-waiting:
				require.NoError(p.t, err)
				owner.Unlocks(p.t, other)
			case err := <-again:
				require.NoError(p.t, err)
				require.NotContains(p.t, locktest.OnRedis(p.t, p.rdb, p.key), p.place.Member)
				p.first.Unlocks(p.t, p.c.Mutex(p.key))
			}
		}
		locktest.RequireFairFree(p.t, p.rdb, p.key)
	})
}

// It is passed on as often as need be; the last one takes it away.
func TestEntry_GoesWithTheLastWaiterThatGivesUp(t *testing.T) {
	eachPlace(t, func(p *placeBench) {
		ctx, cancel := context.WithCancel(p.t.Context())
		defer cancel()
		_, inherits := p.joins(ctx, p.c.Mutex(p.key), 2)
		ctx, lastGivesUp := context.WithCancel(p.t.Context())
		defer lastGivesUp()
		_, last := p.joins(ctx, p.c.Mutex(p.key), 3)
		other, owner, waiting := p.another()
		before := locktest.PlacesOn(p.t, p.rdb, p.key)
		p.firstGivesUp(2)
		cancel()
		require.ErrorIs(p.t, locktest.OutcomeOf(p.t, inherits), context.Canceled)
		relock.AwaitWaiters(p.t, p.c, p.key, 1)
		locktest.Throughout(p.t, locktest.AWhile, func() bool { return len(locktest.PlacesOn(p.t, p.rdb, p.key)) == 2 }, "its place")
		require.Equal(p.t, before, locktest.PlacesOn(p.t, p.rdb, p.key))
		lastGivesUp()
		require.ErrorIs(p.t, locktest.OutcomeOf(p.t, last), context.Canceled)
		require.NotContains(p.t, p.place.Member, p.c.ID(), "what undoes it may come late")
		locktest.AwaitFairQueue(p.t, p.rdb, p.key, 1)
		require.Equal(p.t, before[1:], locktest.PlacesOn(p.t, p.rdb, p.key))
		require.NotContains(p.t, locktest.OnRedis(p.t, p.rdb, keys.LineOf(p.key).Entries), p.place.Member)
		p.holder.Unlocks(p.t, p.holding)
		require.NoError(p.t, locktest.OutcomeOf(p.t, waiting))
		owner.Unlocks(p.t, other)
		locktest.RequireFairFree(p.t, p.rdb, p.key)
		redistest.Eventually(p.t, "nothing kept", func() bool { return relock.NamesOf(p.c) == 0 })
	})
}

// The place says nothing of a token: the next waiter, which wants one, gets a place of its own.
func TestEntry_IsNotLeftToAWaiterWithAnotherRequest(t *testing.T) {
	eachPlace(t, func(p *placeBench) {
		m := p.c.Mutex(p.key, relock.WithFencing())
		heir, inherits := p.joins(p.t.Context(), m, 2)
		other, owner, waiting := p.another()
		p.firstGivesUp(1)
		redistest.Eventually(p.t, "a place of its own, at the end", func() bool {
			queueEntries := locktest.PlacesOn(p.t, p.rdb, p.key)
			return len(queueEntries) == 2 && queueEntries[0].Member != p.place.Member && queueEntries[1].Member != p.place.Member
		})
		p.holder.Unlocks(p.t, p.holding)
		require.NoError(p.t, locktest.OutcomeOf(p.t, waiting))
		locktest.GoesOn(p.t, inherits)
		owner.Unlocks(p.t, other)
		require.NoError(p.t, locktest.OutcomeOf(p.t, inherits))
		require.NoError(p.t, heir.Call(func() error {
			require.Positive(p.t, m.FencingToken())
			return m.Unlock()
		}))
		locktest.RequireFairFree(p.t, p.rdb, p.key)
	})
}

// The grant is on its way to a waiter that gives up: the next one has the lock by it.
func TestEntry_GrantAfterItWasLeftToAnotherIsNotLost(t *testing.T) {
	eachPlace(t, func(p *placeBench) {
		heir, inherits := p.joins(p.t.Context(), p.c.Mutex(p.key), 2)
		locktest.AwaitStillness(p.t, p.relay) // or a poll under way would report the grant
		polls := p.relay.Block(redistest.Script(protocol.LinePollScript.Source())).Always()
		p.t.Cleanup(polls.Release)
		p.grantWithoutMessage()
		p.firstGivesUp(1)
		locktest.Publishes(p.t, p.rdb, p.key) // a reason to ask
		polls.Release()
		require.NoError(p.t, locktest.OutcomeOf(p.t, inherits))
		locktest.RequireOnRedis(p.t, p.rdb, p.key, p.place.Member.(string), 1)
		heir.Unlocks(p.t, p.c.Mutex(p.key))
		locktest.RequireFairFree(p.t, p.rdb, p.key)
	})
}

// grantWithoutMessage grants the lock to the place as a release does whose message does not arrive.
func (p *placeBench) grantWithoutMessage() {
	p.t.Helper()
	line, field := keys.LineOf(p.key), p.place.Member.(string)
	_, err := p.rdb.TxPipelined(p.t.Context(), func(tx redis.Pipeliner) error {
		tx.Del(p.t.Context(), p.key, line.Queue, line.Entries)
		tx.HSet(p.t.Context(), p.key, field, 1)
		tx.PExpire(p.t.Context(), p.key, locktest.LongestPlace.EntryLease())
		return nil
	})
	require.NoError(p.t, err)
}

func TestLine_WaitersOfAProcessHaveOneEntry(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key, holder := b.Client(t), redistest.Key(t), locktest.NewActor(t)
		holding, here, there := relock.LocksOn(t, rdb), relock.LocksOn(t, b.Client(t)), relock.LocksOn(t, b.Client(t))
		holder.Locks(t, holding.Mutex(key))
		var r locktest.Roll
		var all []<-chan error
		for _, process := range []struct {
			c                     *relock.Client
			waiters, queueEntries int
		}{{here, 5, 1}, {there, 3, 2}} {
			for i := range process.waiters {
				all = append(all, locktest.Visit(t, process.c.Mutex(key), &r, process.queueEntries))
				relock.AwaitWaiters(t, process.c, key, i+1)
				locktest.AwaitFairQueue(t, rdb, key, process.queueEntries)
			}
		}
		locktest.Throughout(t, locktest.AWhile, func() bool { return len(locktest.FairQueueOf(t, rdb, key)) == 2 }, "one place for each process")
		fields := locktest.FairQueueOf(t, rdb, key)
		require.True(t, strings.HasPrefix(fields[0], here.ID()+":"), "first is %s", fields[0])
		require.True(t, strings.HasPrefix(fields[1], there.ID()+":"), "then %s", fields[1])
		holder.Unlocks(t, holding.Mutex(key))
		for _, done := range all {
			require.NoError(t, locktest.OutcomeOf(t, done))
		}
		require.Equal(t, []int{1, 1, 1, 1, 1, 2, 2, 2}, r.Names)
		locktest.RequireFairFree(t, rdb, key)
		for _, c := range []*relock.Client{here, there} {
			redistest.Eventually(t, "nothing kept", func() bool { return relock.NamesOf(c) == 0 })
		}
	})
}
