package relock_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// kindBench is a lock of one kind, on a fresh name.
type kindBench struct {
	t      *testing.T
	nodes  []*redistest.Backend    // every server that the locks live on
	rdbs   []redis.UniversalClient // of each of them
	relays []*redistest.Relay      // to each of them, if the client goes through relays
	faults []*redistest.Rule       // of those
	key    string
	kind   lockKind
	c      *relock.Client
	others *relock.Client // another process, where the client goes through relays
	me     *locktest.Actor
	you    *locktest.Actor
}

// promptly is how long something may take that waits for nothing but a message: in real time that depends on the machine.
func (b *kindBench) promptly() time.Duration {
	if b.nodes != nil && !b.nodes[0].Real {
		return 200 * time.Millisecond
	}
	return locktest.SoonEnough
}

func newKindBench(t *testing.T, backend *redistest.Backend, k lockKind) *kindBench {
	t.Helper()
	nodes := backend.Nodes(t, max(k.nodes, 1))
	b := newKindBenchOn(t, locktest.ClientsOf(t, nodes), k)
	b.nodes = nodes
	return b
}

// newKindBenchOn is newKindBench on servers of which the bench needs no more.
func newKindBenchOn(t *testing.T, rdbs []redis.UniversalClient, k lockKind) *kindBench {
	t.Helper()
	return &kindBench{
		t: t, rdbs: rdbs, key: redistest.Key(t), kind: k,
		c: k.client(t, rdbs), me: locktest.NewActor(t), you: locktest.NewActor(t),
	}
}

// relay gives the bench a new client, which goes through a relay to each server, and another that
// does not.
func (b *kindBench) relay() {
	b.t.Helper()
	redistest.Slow(b.t)
	var rdbs []redis.UniversalClient
	for _, node := range b.nodes {
		relay, rdb := locktest.RelayedTo(b.t, node)
		b.relays, rdbs = append(b.relays, relay), append(rdbs, rdb)
	}
	b.c, b.others = b.kind.client(b.t, rdbs), b.kind.client(b.t, b.rdbs)
	b.t.Cleanup(func() {
		for _, relay := range b.relays {
			relay.Cut() // Close would wait for a connection that is silent
		}
	})
}

// runs chooses the runs of what the kind has in the place of s on the bench's lock.
func (b *kindBench) runs(s *redisexec.Script) redistest.Match {
	return b.kind.runs(s).And(redistest.With(b.key))
}

func (b *kindBench) mutex(opts ...relock.MutexOption) *relock.Mutex {
	return b.kind.mutex(b.c, b.key, opts...)
}

// rival returns a handle that mutex excludes.
func (b *kindBench) rival(opts ...relock.MutexOption) *relock.Mutex {
	return b.kind.rival(b.c, b.key, opts...)
}

// another returns a rival in another client, as in another process.
func (b *kindBench) another(opts ...relock.ClientOption) *relock.Mutex {
	return b.kind.rival(b.kind.client(b.t, b.rdbs, opts...), b.key)
}

// free requires that nothing is left, here or on Redis. What is under way here comes first, since it
// may take the lock yet: a try at a quorum is over when most nodes have refused it, and the last one
// may grant it after the lock was released.
func (b *kindBench) free() {
	b.t.Helper()
	for _, c := range []*relock.Client{b.c, b.others} {
		redistest.Eventually(b.t, "nothing left here", func() bool {
			return c == nil || relock.Idle(c)
		})
	}
	b.gone()
}

// gone waits until nothing is left on Redis.
func (b *kindBench) gone() {
	b.t.Helper()
	redistest.Eventually(b.t, "nothing left on Redis", func() bool { return len(b.keys()) == 0 })
}

// keys returns all that the lock has on any server, but for the counters of tokens, which stay.
func (b *kindBench) keys() []string {
	b.t.Helper()
	var all []string
	for _, rdb := range b.rdbs {
		keys, err := rdb.Keys(b.t.Context(), "*"+b.key+"*").Result()
		require.NoError(b.t, err)
		all = append(all, keys...)
	}
	return slices.DeleteFunc(all, func(key string) bool { return strings.HasPrefix(key, "redisson_lock_token:") })
}

// waitUntilTaken waits for a lock until a reply reported it as taken, and returns what Lock returns then.
func (b *kindBench) waitUntilTaken(c *relock.Client, opts ...relock.MutexOption) error {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	defer cancel()
	opts = append(opts, relock.WithHooks(relock.Hooks{Contended: func(relock.Event) { cancel() }}))
	m := b.kind.rival(c, b.key, opts...)
	return locktest.OutcomeOf(b.t, b.you.Begin(func() error { return m.Lock(ctx) }))
}

// lastSent is when the last run of what the kind has in the place of s came through a relay, on
// the clock of deadlines: no earlier than it was sent.
func (b *kindBench) lastSent(s *redisexec.Script) (at time.Duration) {
	runs := b.runs(s)
	for _, relay := range b.relays {
		for _, e := range relay.Log() {
			if runs(e.Command) {
				at = max(at, clock.At(e.Time).Mono)
			}
		}
	}
	return at
}

// deadline is until when the only hold is valid, on the same clock.
func (b *kindBench) deadline() time.Duration {
	b.t.Helper()
	holds := relock.HoldsOn(b.c, b.key)
	require.Len(b.t, holds, 1)
	return holds[0].Deadline.Mono
}

// requireNothingSent requires that no server has received a command of the client.
func (b *kindBench) requireNothingSent() {
	b.t.Helper()
	for _, relay := range b.relays {
		require.Empty(b.t, relay.Log())
	}
}

// on returns on how many of the servers f is true.
func (b *kindBench) on(f func(rdb redis.UniversalClient) bool) int {
	n := 0
	for _, rdb := range b.rdbs {
		if f(rdb) {
			n++
		}
	}
	return n
}

// leased reports whether the lock is there: on most servers of a quorum.
func (b *kindBench) leased() bool {
	return b.on(func(rdb redis.UniversalClient) bool { return locktest.TTLOf(rdb, b.key) > 0 }) > len(b.rdbs)/2
}
