package relock_test

import (
	"maps"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// owed returns how many names are still to be released on a node.
func owed(c *relock.Client, node int) int {
	return len(c.Undoing(node))
}

func TestQuorum_NodeThatMissedAHandOverIsReleasedForTheSender(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		m := b.mutex(relock.WithTTL(time.Hour))
		b.me.Locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		next := b.you.Lock(b.t.Context(), m)
		relock.AwaitWaiters(b.t, b.locks, b.key, 1)
		b.down(1)
		b.me.Unlocks(b.t, m)
		require.NoError(b.t, locktest.OutcomeOf(b.t, next))
		redistest.Eventually(b.t, "the first hold's name left to the background", func() bool { return owed(b.locks, 1) == 1 })
		b.up(1)
		redistest.Eventually(b.t, "nothing left of it", func() bool { // a copy of the hand-over may come first
			on := b.fields()
			return len(on[0]) == 1 && maps.Equal(on[0], on[2]) && (len(on[1]) == 0 || maps.Equal(on[0], on[1]))
		})
		b.you.Unlocks(b.t, m)
		b.awaitFree()
	})
}

// Most nodes have lost the lock, and one has passed it on all the same. The waiter's next try must
// not be hit by what takes that back, however late.
func TestQuorum_UndoOfARefusedHandOverLeavesTheWaitersLaterHold(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		m := b.mutex()
		b.me.Locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		next := b.you.Lock(b.t.Context(), m)
		relock.AwaitWaiters(b.t, b.locks, b.key, 1)
		var late []*redistest.Held
		for _, n := range []int{0, 2} {
			require.NoError(b.t, b.servers[n].Del(b.t.Context(), b.key).Err())
			late = append(late, b.relays[n].HoldBackSilently(locktest.RunsOf(protocol.ReleaseScript).And(redistest.With(b.key))))
		}
		_ = b.me.Call(m.Unlock) // a loss, unless that was reported too late
		require.NoError(b.t, locktest.OutcomeOf(b.t, next))
		ctx := b.you.ContextOf(m)
		for _, held := range late {
			held.Wait(b.t)
			_, err := held.Deliver(b.t.Context())
			require.NoError(b.t, err)
		}
		require.False(b.t, b.me.Tries(b.t, b.rival.Mutex(b.key)), "two holders")
		require.NoError(b.t, ctx.Err())
		b.you.Unlocks(b.t, m)
		b.awaitFree()
	})
}

// The acquisition is under way to one node while the others have granted, and the lock is given
// back. Without a pipeline every command has a connection of its own, so only the client keeps
// them in order.
func TestQuorum_NodeIsNotSentAReleaseBeforeItAnsweredTheAcquisition(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		var rdbs []redis.UniversalClient
		for _, relay := range b.relays {
			rdb := redis.NewClient(redistest.Options(relay.Addr))
			b.t.Cleanup(func() { _ = rdb.Close() })
			rdbs = append(rdbs, &labelled{UniversalClient: rdb})
		}
		c := relock.QuorumOn(b.t, rdbs)
		m := c.Mutex(b.key, relock.WithTTL(time.Hour))
		b.me.Locks(b.t, m)
		b.me.Unlocks(b.t, m)
		redistest.Eventually(b.t, "all settled", func() bool { return relock.Settled(c) })
		late := b.relays[2].Delay(c.Patience()/4, locktest.RunsOf(protocol.AcquireScript).And(redistest.With(b.key)))
		b.me.Locks(b.t, m)
		b.me.Unlocks(b.t, m)
		late.Wait(b.t)
		redistest.Eventually(b.t, "all settled", func() bool { return relock.Settled(c) })
		require.Empty(b.t, b.fields()[2], "an acquisition came after its release")
	})
}

// Each command is waited for by the next one of its name. Commands that a later one supersedes
// are left out when nobody needs their answer any more.
func TestQuorum_SilentNodeIsNotOwedEveryReentry(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		m := b.mutex(relock.WithTTL(time.Hour))
		b.me.Locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		redistest.Eventually(b.t, "all settled", func() bool { return relock.Settled(b.locks) })
		b.relays[2].BlackHole(true)
		for range 50 {
			b.me.Locks(b.t, m)
			b.me.Unlocks(b.t, m)
		}
		redistest.Eventually(b.t, "nothing is owed", func() bool { return relock.Settled(b.locks) })
		b.relays[2].BlackHole(false)
		b.relays[2].Cut() // what it swallowed is not to come
		b.me.Unlocks(b.t, m)
		b.awaitFree()
	})
}

// A client that is gone holds the lock on most nodes: who forces it open need not wait for the rest.
func TestQuorum_ForcedLockOfAGoneClientIsFreeThoughANodeIsSilent(t *testing.T) {
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
		b.me.Locks(b.t, b.mutex())
		s, err := b.mutex().State(b.t.Context())
		require.NoError(b.t, err)
		require.NotEqual(b.t, "gone:1", s.Owner)
		b.me.Unlocks(b.t, b.mutex())
	})
}

// Nothing says a fixed lease again.
func TestQuorum_SlowNodeGetsALongerFixedLease(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		short, long := b.mutex(relock.WithTTL(10*time.Second), relock.WithoutRenewal()), b.mutex(relock.WithTTL(time.Minute), relock.WithoutRenewal())
		b.me.Locks(b.t, short)
		b.awaitOn(1, 0, 1, 2)
		b.relays[2].Delay(800*time.Millisecond, locktest.RunsOf(protocol.ReenterScript)).Times(1)
		b.me.Locks(b.t, short)
		b.me.Locks(b.t, long)
		b.awaitOn(3, 0, 1, 2)
		require.Greater(b.t, locktest.TTLOf(b.servers[2], b.key), 20*time.Second)
		for _, m := range []*relock.Mutex{long, short, short} {
			b.me.Unlocks(b.t, m)
		}
	})
}

// impatient returns a client of the bench's quorum that is notified at once of a connection that is
// refused: by default go-redis tries for longer than a command is waited for.
func (b *quorumBench) impatient() *relock.Client {
	var rdbs []redis.UniversalClient
	for _, relay := range b.relays {
		rdb := redis.NewClient(redistest.Options(relay.Addr, func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 }))
		b.t.Cleanup(func() { _ = rdb.Close() })
		rdbs = append(rdbs, rdb)
	}
	return relock.QuorumOn(b.t, rdbs, relock.WithTTL(time.Hour))
}

// refuses takes a node of the bench down for c: its connections end, and new ones are refused. What
// meets the end of a connection is in doubt, so that is a hold of another name.
func (b *quorumBench) refuses(c *relock.Client, node int) {
	b.t.Helper()
	redistest.Eventually(b.t, "all settled", func() bool { return relock.Settled(c) })
	require.NoError(b.t, b.relays[node].Refuse(true))
	b.relays[node].Cut()
	other := c.Mutex(b.key + "-other")
	actor := locktest.NewActor(b.t)
	actor.Locks(b.t, other)
	actor.Unlocks(b.t, other)
	b.awaitAnswers(c)
}

// awaitAnswers waits until no command is under way.
func (b *quorumBench) awaitAnswers(c *relock.Client) {
	b.t.Helper()
	redistest.Eventually(b.t, "no command under way", func() bool { return relock.Answered(c) })
}

// owedOf returns how many names of holds on the bench's key are still to be released on a node.
func (b *quorumBench) owedOf(c *relock.Client, node int) (n int) {
	for _, name := range c.Undoing(node) {
		if name.Keys.Keys[0] == b.key {
			n++
		}
	}
	return n
}

func TestQuorum_NothingIsOwedToANodeThatRefusedTheConnection(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		c := b.impatient()
		m := c.Mutex(b.key)
		b.me.Locks(b.t, m)
		b.me.Unlocks(b.t, m)
		b.refuses(c, 2)
		for range 20 {
			b.me.Locks(b.t, m)
			b.me.Unlocks(b.t, m)
		}
		b.me.Locks(b.t, m)
		next := b.you.Lock(b.t.Context(), m) // nor does what was handed over stand there
		relock.AwaitWaiters(b.t, c, b.key, 1)
		b.me.Unlocks(b.t, m)
		require.NoError(b.t, locktest.OutcomeOf(b.t, next))
		b.you.Unlocks(b.t, m)
		b.awaitAnswers(c)
		locktest.Throughout(b.t, locktest.AWhile, func() bool { return b.owedOf(c, 2) == 0 }, "nothing is owed")
		b.awaitFree()
	})
}

// The one who hands over has it on all nodes, the other only on the nodes that executed the hand-over.
func TestQuorum_RefusingNodeIsOwedOnlyWhatItHas(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		c := b.impatient()
		m := c.Mutex(b.key)
		b.me.Locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		next := b.you.Lock(b.t.Context(), m)
		relock.AwaitWaiters(b.t, c, b.key, 1)
		b.refuses(c, 2)
		b.me.Unlocks(b.t, m)
		require.NoError(b.t, locktest.OutcomeOf(b.t, next))
		b.you.Unlocks(b.t, m)
		redistest.Eventually(b.t, "the first hold's name is owed", func() bool { return b.owedOf(c, 2) == 1 })
		b.awaitAnswers(c)
		locktest.Throughout(b.t, locktest.AWhile, func() bool { return b.owedOf(c, 2) == 1 }, "only that")
		require.NoError(b.t, b.relays[2].Refuse(false))
		b.awaitFree()
		redistest.Eventually(b.t, "nothing is owed", func() bool { return owed(c, 2) == 0 })
	})
}
