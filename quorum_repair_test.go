package relock

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// owed returns how many names are still to be released on a node.
func owed(c *Client, node int) int {
	u := c.undos[node]
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.pending)
}

func TestANodeThatMissedAHandOffIsReleasedForTheOneWhoHandedOver(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		m := b.mutex(WithTTL(time.Hour))
		b.me.locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		next := b.you.lock(b.t.Context(), m)
		awaitWaiters(b.t, b.locks, b.key, 1)
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
		awaitWaiters(b.t, b.locks, b.key, 1)
		var late []*redistest.Held
		for _, n := range []int{0, 2} {
			require.NoError(b.t, b.servers[n].Del(b.t.Context(), b.key).Err())
			late = append(late, b.relays[n].HoldBackSilently(runsOf(releaseScript).And(redistest.With(b.key))))
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
		late := b.relays[2].Delay(c.patience/4, runsOf(acquireScript).And(redistest.With(b.key)))
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
		b.relays[2].Delay(800*time.Millisecond, runsOf(reenterScript)).Times(1)
		b.me.locks(b.t, short)
		b.me.locks(b.t, long)
		b.awaitOn(3, 0, 1, 2)
		require.Greater(b.t, ttlOf(b.servers[2], b.key), 20*time.Second)
		for _, m := range []*Mutex{long, short, short} {
			b.me.unlocks(b.t, m)
		}
	})
}
