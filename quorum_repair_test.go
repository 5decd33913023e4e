package relock

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/quorum"
	"github.com/relock-go/relock/internal/redistest"
)

// owed returns how many names are still to be released on a node.
func owed(c *Client, node int) int {
	return len(c.session.undos[node].Pending())
}

func TestANodeThatMissedAHandOffIsReleasedForTheOneWhoHandedOver(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		m := b.mutex(WithTTL(time.Hour))
		b.me.locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		next := b.you.lock(b.t.Context(), m)
		awaitWaiters(b.t, b.locks.session, b.key, 1)
		b.down(1)
		b.me.unlocks(b.t, m)
		require.NoError(b.t, outcomeOf(b.t, next))
		eventually(b.t, "the first hold's name left to the background", func() bool { return owed(b.locks, 1) == 1 })
		b.up(1)
		b.awaitOn(1, 0, 2)
		b.you.unlocks(b.t, m)
		b.awaitFree()
	})
}

// Most nodes have lost the lock, and one has passed it on all the same. The waiter's next try must
// not be hit by what takes that back, however late.
func TestWhatTakesARefusedHandOffBackHitsNoLaterHoldOfTheWaiter(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		m := b.mutex()
		b.me.locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		next := b.you.lock(b.t.Context(), m)
		awaitWaiters(b.t, b.locks.session, b.key, 1)
		var late []*redistest.Held
		for _, n := range []int{0, 2} {
			require.NoError(b.t, b.servers[n].Del(b.t.Context(), b.key).Err())
			late = append(late, b.relays[n].HoldBackSilently(runsOf(protocol.ReleaseScript).And(redistest.With(b.key))))
		}
		_ = b.me.call(m.Unlock) // a loss, unless it took too long to hear of it
		require.NoError(b.t, outcomeOf(b.t, next))
		ctx := contextOf(b.you, m)
		for _, held := range late {
			held.Wait(b.t)
			_, err := held.Deliver(b.t.Context())
			require.NoError(b.t, err)
		}
		require.False(b.t, b.me.tries(b.t, b.rival.Mutex(b.key)), "two holders")
		require.NoError(b.t, ctx.Err())
		b.you.unlocks(b.t, m)
		b.awaitFree()
	})
}

// The acquisition is under way to one node while the others have granted, and the lock is given
// back. Without a pipeline every command has a connection of its own, so only the client keeps
// them in order.
func TestANodeIsNotSentAReleaseBeforeItHasAnsweredTheAcquisition(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		var rdbs []redis.UniversalClient
		for _, relay := range b.relays {
			rdb := redis.NewClient(&redis.Options{Addr: relay.Addr})
			b.t.Cleanup(func() { _ = rdb.Close() })
			rdbs = append(rdbs, &labelled{UniversalClient: rdb})
		}
		c := quorumOn(b.t, rdbs)
		m := c.Mutex(b.key, WithTTL(time.Hour))
		b.me.locks(b.t, m)
		b.me.unlocks(b.t, m)
		eventually(b.t, "all settled", func() bool { return settledOn(c) })
		late := b.relays[2].Delay(c.session.patience/4, runsOf(protocol.AcquireScript).And(redistest.With(b.key)))
		b.me.locks(b.t, m)
		b.me.unlocks(b.t, m)
		late.Wait(b.t)
		eventually(b.t, "all settled", func() bool { return settledOn(c) })
		require.Empty(b.t, b.fields()[2], "an acquisition came after its release")
	})
}

// Each command is waited for by the next one of its name: those that say what later ones say again
// are left out when nobody needs their answer any more.
func TestASilentNodeIsNotOwedEveryReentry(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		m := b.mutex(WithTTL(time.Hour))
		b.me.locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		eventually(b.t, "all settled", func() bool { return settledOn(b.locks) })
		b.relays[2].BlackHole(true)
		for range 50 {
			b.me.locks(b.t, m)
			b.me.unlocks(b.t, m)
		}
		eventually(b.t, "nothing is owed", func() bool { return settledOn(b.locks) })
		b.relays[2].BlackHole(false)
		b.relays[2].Cut() // what it swallowed is not to come
		b.me.unlocks(b.t, m)
		b.awaitFree()
	})
}

// A client that is gone holds the lock on most nodes: who forces it open need not wait for the rest.
func TestAForcedLockOfAClientThatIsGoneIsFreeThoughANodeIsSilent(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		for _, rdb := range b.servers {
			require.NoError(b.t, rdb.HSet(b.t.Context(), b.key, "gone:1", 1).Err())
			require.NoError(b.t, rdb.PExpire(b.t.Context(), b.key, time.Hour).Err())
		}
		b.relays[1].BlackHole(true)
		forced, err := b.mutex().ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, forced)
		b.me.locks(b.t, b.mutex())
		s, err := b.mutex().State(b.t.Context())
		require.NoError(b.t, err)
		require.NotEqual(b.t, "gone:1", s.Owner)
		b.me.unlocks(b.t, b.mutex())
	})
}

// Nothing says a fixed lease again.
func TestASlowNodeIsToldOfALongerFixedLease(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		short, long := b.mutex(WithTTL(10*time.Second), WithoutRenewal()), b.mutex(WithTTL(time.Minute), WithoutRenewal())
		b.me.locks(b.t, short)
		b.awaitOn(1, 0, 1, 2)
		b.relays[2].Delay(800*time.Millisecond, runsOf(protocol.ReenterScript)).Times(1)
		b.me.locks(b.t, short)
		b.me.locks(b.t, long)
		b.awaitOn(3, 0, 1, 2)
		require.Greater(b.t, ttlOf(b.servers[2], b.key), 20*time.Second)
		for _, m := range []*Mutex{long, short, short} {
			b.me.unlocks(b.t, m)
		}
	})
}

// impatient returns a client of the bench's quorum that is told at once of a connection that is
// refused: by default go-redis tries for longer than a command is waited for.
func (b *quorumBench) impatient() *Client {
	var rdbs []redis.UniversalClient
	for _, relay := range b.relays {
		rdb := redis.NewClient(&redis.Options{Addr: relay.Addr, MaxRetries: -1, DialerRetries: 1})
		b.t.Cleanup(func() { _ = rdb.Close() })
		rdbs = append(rdbs, rdb)
	}
	return quorumOn(b.t, rdbs, WithTTL(time.Hour))
}

// refuses takes a node of the bench down for c: its connections end, and new ones are refused. What
// meets the end of a connection is in doubt, so that is a hold of another name.
func (b *quorumBench) refuses(c *Client, node int) {
	b.t.Helper()
	eventually(b.t, "all settled", func() bool { return settledOn(c) })
	require.NoError(b.t, b.relays[node].Refuse(true))
	b.relays[node].Cut()
	other := c.Mutex(b.key + "-other")
	actor := newActor(b.t)
	actor.locks(b.t, other)
	actor.unlocks(b.t, other)
	b.awaitAnswers(c, node)
}

// awaitAnswers waits until no command is under way to a node.
func (b *quorumBench) awaitAnswers(c *Client, node int) {
	b.t.Helper()
	q := c.plain.protocol.(*quorum.Quorum)
	eventually(b.t, "no command under way", func() bool { return !q.Busy(node) })
}

// owedOf returns how many names of holds on the bench's key are still to be released on a node.
func (b *quorumBench) owedOf(c *Client, node int) (n int) {
	for _, name := range c.session.undos[node].Pending() {
		if name.Keys.Keys[0] == b.key {
			n++
		}
	}
	return n
}

func TestNothingIsOwedToANodeThatRefusedAConnectionForTheAcquisition(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		c := b.impatient()
		m := c.Mutex(b.key)
		b.me.locks(b.t, m)
		b.me.unlocks(b.t, m)
		b.refuses(c, 2)
		for range 20 {
			b.me.locks(b.t, m)
			b.me.unlocks(b.t, m)
		}
		b.me.locks(b.t, m)
		next := b.you.lock(b.t.Context(), m) // nor does what was handed over stand there
		awaitWaiters(b.t, c.session, b.key, 1)
		b.me.unlocks(b.t, m)
		require.NoError(b.t, outcomeOf(b.t, next))
		b.you.unlocks(b.t, m)
		b.awaitAnswers(c, 2)
		throughout(b.t, aWhile, func() bool { return b.owedOf(c, 2) == 0 }, "nothing is owed")
		b.awaitFree()
	})
}

// The one who hands over has it on all nodes, the other only on those that heard of it.
func TestANodeThatRefusesConnectionsIsOwedOnlyWhatStandsThere(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		c := b.impatient()
		m := c.Mutex(b.key)
		b.me.locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		next := b.you.lock(b.t.Context(), m)
		awaitWaiters(b.t, c.session, b.key, 1)
		b.refuses(c, 2)
		b.me.unlocks(b.t, m)
		require.NoError(b.t, outcomeOf(b.t, next))
		b.you.unlocks(b.t, m)
		eventually(b.t, "the first hold's name is owed", func() bool { return b.owedOf(c, 2) == 1 })
		b.awaitAnswers(c, 2)
		throughout(b.t, aWhile, func() bool { return b.owedOf(c, 2) == 1 }, "only that")
		require.NoError(b.t, b.relays[2].Refuse(false))
		b.awaitFree()
		eventually(b.t, "nothing is owed", func() bool { return owed(c, 2) == 0 })
	})
}
