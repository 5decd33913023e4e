package relock_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// quorumBench is a client on a quorum whose nodes are each behind a relay of their own, and
// a rival past the relays.
type quorumBench struct {
	t       *testing.T
	key     string
	relays  []*redistest.Relay
	servers []redis.UniversalClient // past the relays
	minis   []*redistest.Backend
	locks   *relock.Client
	rival   *relock.Client
	me, you *locktest.Actor
}

// onQuorum runs fn as a subtest on each backend, with n nodes.
func onQuorum(t *testing.T, n int, fn func(b *quorumBench), opts ...relock.ClientOption) {
	t.Helper()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		nodes := backend.Nodes(t, n)
		b := &quorumBench{t: t, key: redistest.Key(t), servers: locktest.ClientsOf(t, nodes), minis: nodes}
		b.me, b.you = locktest.NewActor(t), locktest.NewActor(t)
		var relayed []redis.UniversalClient
		for _, node := range nodes {
			relay, rdb := locktest.RelayedTo(t, node)
			b.relays, relayed = append(b.relays, relay), append(relayed, rdb)
		}
		b.locks = relock.QuorumOn(t, relayed, opts...)
		b.rival = relock.QuorumOn(t, b.servers, opts...)
		t.Cleanup(func() { // Close need not wait for what is stuck
			for _, relay := range b.relays {
				relay.Latency(0)
				relay.BlackHole(false)
				relay.Cut()
			}
		})
		fn(b)
	})
}

func (b *quorumBench) mutex(opts ...relock.MutexOption) *relock.Mutex {
	return b.locks.Mutex(b.key, opts...)
}

// fields returns what each node has of the lock.
func (b *quorumBench) fields() []map[string]string {
	b.t.Helper()
	var all []map[string]string
	for _, rdb := range b.servers {
		all = append(all, locktest.OnRedis(b.t, rdb, b.key))
	}
	return all
}

// awaitOn waits until these nodes, and no others, have the lock for me, with count levels.
func (b *quorumBench) awaitOn(count int, nodes ...int) {
	b.t.Helper()
	redistest.Eventually(b.t, fmt.Sprintf("%d levels on %v", count, nodes), func() bool {
		on := 0
		for i, fields := range b.fields() {
			if len(fields) == 0 {
				continue
			}
			on++
			wanted := false
			for _, n := range nodes {
				wanted = wanted || n == i
			}
			for _, have := range fields {
				wanted = wanted && have == fmt.Sprint(count)
			}
			if !wanted {
				return false
			}
		}
		return on == len(nodes)
	})
}

// awaitHeldOn waits until these nodes have the lock for any owner.
func (b *quorumBench) awaitHeldOn(nodes ...int) {
	b.t.Helper()
	redistest.Eventually(b.t, fmt.Sprintf("held on %v", nodes), func() bool {
		all := b.fields()
		return !slices.ContainsFunc(nodes, func(n int) bool { return len(all[n]) == 0 })
	})
}

// awaitFree waits until no node has the lock.
func (b *quorumBench) awaitFree() {
	b.t.Helper()
	b.awaitOn(0)
}

// rivalTries reports whether the rival gets the lock, which it then gives back.
func (b *quorumBench) rivalTries() bool {
	b.t.Helper()
	m := b.rival.Mutex(b.key)
	held := b.you.Tries(b.t, m)
	if held {
		b.you.Unlocks(b.t, m)
	}
	return held
}

// othersOn lets another owner hold the key on these nodes, without expiry.
func (b *quorumBench) othersOn(nodes ...int) {
	b.t.Helper()
	for _, n := range nodes {
		require.NoError(b.t, b.servers[n].HSet(b.t.Context(), b.key, fmt.Sprintf("another-%d:1", n), 1).Err())
	}
}

// othersGone takes them away, without a message.
func (b *quorumBench) othersGone(nodes ...int) {
	b.t.Helper()
	for _, n := range nodes {
		require.NoError(b.t, b.servers[n].HDel(b.t.Context(), b.key, fmt.Sprintf("another-%d:1", n)).Err())
	}
}

// down makes nodes unreachable for the client, and up makes them reachable again.
func (b *quorumBench) down(nodes ...int) {
	b.t.Helper()
	for _, n := range nodes {
		require.NoError(b.t, b.relays[n].Refuse(true))
		b.relays[n].Cut()
	}
}

func (b *quorumBench) up(nodes ...int) {
	b.t.Helper()
	for _, n := range nodes {
		require.NoError(b.t, b.relays[n].Refuse(false))
	}
}

// warm makes connections, and leaves nothing.
func (b *quorumBench) warm() {
	b.t.Helper()
	b.cycle(b.mutex())
	b.awaitIdle()
	b.awaitFree()
}

// awaitIdle waits until each node has answered what it was asked.
func (b *quorumBench) awaitIdle() {
	b.t.Helper()
	redistest.Eventually(b.t, "the slowest node done", func() bool { return relock.Answered(b.locks) })
}

// locksOn has me hold m on all of these nodes. After a split vote one of them may still have the name that
// is being released. It refuses then, and the hold does not ask it again. So the test tries again.
func (b *quorumBench) locksOn(m *relock.Mutex, nodes ...int) {
	b.t.Helper()
	redistest.Eventually(b.t, fmt.Sprintf("held on %v", nodes), func() bool {
		b.me.Locks(b.t, m)
		b.awaitIdle()
		all := b.fields()
		if !slices.ContainsFunc(nodes, func(n int) bool { return len(all[n]) == 0 }) {
			return true
		}
		b.me.Unlocks(b.t, m)
		return false
	})
}

// cycle locks, re-enters, and unlocks twice.
func (b *quorumBench) cycle(m *relock.Mutex) {
	b.t.Helper()
	b.me.Locks(b.t, m)
	b.me.Locks(b.t, m)
	b.me.Unlocks(b.t, m)
	b.me.Unlocks(b.t, m)
}

// withinOnePatience requires that f does not wait for a node that does not answer.
func (b *quorumBench) withinOnePatience(f func()) {
	b.t.Helper()
	began := time.Now()
	f()
	require.Less(b.t, time.Since(began), b.locks.Patience(), "it has waited for a node")
}
