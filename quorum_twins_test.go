package relock_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// runID has a miniredis say which server it is, which it does not by itself. The test may set another one later.
func runID(b *redistest.Backend, id string) *atomic.Pointer[string] {
	var is atomic.Pointer[string]
	is.Store(&id)
	b.Miniredis.Server().SetPreHook(func(c *server.Peer, command string, args ...string) bool {
		if command != "INFO" || len(args) == 0 || args[0] != "server" {
			return false
		}
		c.WriteBulk("# Server\r\nrun_id:" + *is.Load() + "\r\ntcp_port:6379\r\n")
		return true
	})
	return &is
}

// twinBench has relays to servers that say who they are.
type twinBench struct {
	*quorumBench
	ids []*atomic.Pointer[string]
}

// onTwins runs fn in a bubble, with a quorum of relays to servers with these run ids. Those that are down at first
// refuse connections.
func onTwins(t *testing.T, ids []string, down []int, fn func(b *twinBench), opts ...relock.ClientOption) {
	t.Helper()
	redistest.InBubble(t, func(t *testing.T, backend *redistest.Backend) {
		b := &twinBench{quorumBench: &quorumBench{t: t, key: redistest.Key(t), me: locktest.NewActor(t)}}
		var rdbs []redis.UniversalClient
		for i, node := range backend.Nodes(t, len(ids)) {
			b.ids = append(b.ids, runID(node, ids[i]))
			b.servers = append(b.servers, node.Client(t))
			relay, rdb := locktest.RelayedTo(t, node)
			b.relays, rdbs = append(b.relays, relay), append(rdbs, rdb)
		}
		b.down(down...)
		b.locks = relock.QuorumOn(t, rdbs, opts...)
		fn(b)
	})
}

// requireTwins requires that no lock is acquired, since two nodes are the same server: at once, or when the slower of
// them has answered.
func (b *quorumBench) requireTwins(addrs ...string) {
	b.t.Helper()
	var err error
	redistest.Eventually(b.t, "the twins to be found", func() bool {
		m := b.mutex()
		if err = b.me.Call(func() error { return m.Lock(b.t.Context()) }); err == nil {
			time.Sleep(100 * time.Millisecond)
			b.me.Unlocks(b.t, m)
		}
		return err != nil
	})
	require.ErrorIs(b.t, err, relock.ErrInvalidOption)
	require.ErrorContains(b.t, err, "are the same Redis server")
	require.ErrorContains(b.t, err, "give NewQuorum each server once")
	for _, addr := range addrs {
		require.ErrorContains(b.t, err, addr)
	}
	b.awaitFree()
}

func TestQuorum_RefusesAServerWithTwoVotes(t *testing.T) {
	t.Parallel()
	redistest.EachInRealTime(t, func(t *testing.T, backend *redistest.Backend) {
		if !backend.Real {
			runID(backend, "a")
		}
		nodes := backend.Nodes(t, 2)
		same, err := redistest.StartRelay(backend.Addr)
		require.NoError(t, err)
		t.Cleanup(same.Close)
		servers := locktest.ClientsOf(t, nodes)
		rdbs := append(servers, redis.NewClient(redistest.Options(same.Addr)))
		t.Cleanup(func() { _ = rdbs[2].Close() })
		b := &quorumBench{t: t, key: redistest.Key(t), servers: servers[:2], me: locktest.NewActor(t)}
		b.locks = relock.QuorumOn(t, rdbs)
		b.requireTwins(backend.Addr, same.Addr)
		b.requireTwins(backend.Addr, same.Addr) // and again
		held, err := b.mutex().TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrInvalidOption)
		require.False(t, held)
	})
}

// Without others a server that has all votes is refused at the first Lock: one node that counts is no majority.
func TestQuorum_CountsAServerOnceBeforeTwinsAreReported(t *testing.T) {
	t.Parallel()
	onTwins(t, []string{"a", "a", "a"}, nil, func(b *twinBench) {
		require.ErrorIs(b.t, b.me.Call(func() error { return b.mutex().Lock(b.t.Context()) }), relock.ErrInvalidOption)
	})
	onTwins(t, []string{"a", "a", "b"}, []int{2}, func(b *twinBench) {
		b.requireTwins(b.relays[0].Addr, b.relays[1].Addr)
	})
}

func TestQuorum_ComparesANodeThatWasDownWhenItAnswersFirst(t *testing.T) {
	t.Parallel()
	onTwins(t, []string{"a", "b", "b"}, []int{2}, func(b *twinBench) {
		m := b.mutex()
		b.me.Locks(b.t, m)
		b.up(2)
		redistest.Eventually(b.t, "the third node asked", func() bool {
			time.Sleep(100 * time.Millisecond)
			b.me.Locks(b.t, m) // a re-entry: the hold goes on
			b.me.Unlocks(b.t, m)
			return b.relays[2].Count(locktest.RunsOf(protocol.ServerScript)) > 0
		})
		b.me.Unlocks(b.t, m)
		b.requireTwins(b.relays[1].Addr, b.relays[2].Addr)
	})
}

// The first hold has only the votes of the third node and of its twin when the first node is down.
func TestQuorum_RenewsNothingByTheVotesOfTwins(t *testing.T) {
	t.Parallel()
	onTwins(t, []string{"a", "b", "b"}, []int{2}, func(b *twinBench) {
		m := b.mutex()
		b.me.Locks(b.t, m)
		ctx := b.me.ContextOf(m)
		field := ""
		for field = range locktest.OnRedis(b.t, b.servers[1], b.key) {
		}
		require.NoError(b.t, b.servers[2].HSet(b.t.Context(), b.key, field, 1).Err()) // as it is there by the other address
		b.up(2)
		b.down(0)
		redistest.Receive(b.t, ctx.Done())
		require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrLost)
	}, relock.WithTTL(time.Second))
}

// The servers are compared as they are now.
func TestQuorum_ComparesNodesAfterAFailover(t *testing.T) {
	t.Parallel()
	a, c := "a", "c"
	// The third node has become what the first one was.
	onTwins(t, []string{"a", "b", "a"}, []int{2}, func(b *twinBench) {
		b.cycle(b.mutex())
		time.Sleep(2 * time.Second) // in the bubble: what they said is old by now
		b.ids[0].Store(&c)
		b.up(2)
		redistest.Eventually(b.t, "the third node met", func() bool {
			time.Sleep(100 * time.Millisecond)
			b.cycle(b.mutex())
			return locktest.Answered(b.relays[2], locktest.RunsOf(protocol.ServerScript)) > 0
		})
		b.cycle(b.mutex())
	})
	// The first one has become what the third one is.
	onTwins(t, []string{"c", "b", "a"}, []int{2}, func(b *twinBench) {
		b.cycle(b.mutex())
		time.Sleep(2 * time.Second) // in the bubble: what they said is old by now
		b.ids[0].Store(&a)
		b.up(2)
		b.requireTwins(b.relays[0].Addr, b.relays[2].Addr)
		// It leads to another server again: nothing has to be restarted.
		b.ids[0].Store(&c)
		redistest.Eventually(b.t, "the lock", func() bool {
			time.Sleep(100 * time.Millisecond)
			m := b.mutex()
			if b.me.Call(func() error { return m.Lock(b.t.Context()) }) != nil {
				return false
			}
			b.me.Unlocks(b.t, m)
			return true
		})
	})
}

func TestQuorum_AsksANodeOnceWhichServerItIs(t *testing.T) {
	t.Parallel()
	onTwins(t, []string{"a", "b", "c"}, nil, func(b *twinBench) {
		for range 10 {
			b.cycle(b.mutex())
		}
		b.awaitIdle()
		for _, relay := range b.relays {
			asked := relay.Count(locktest.RunsOf(protocol.ServerScript))
			require.Positive(b.t, asked)
			require.LessOrEqual(b.t, asked, 2, "by its digest, and in full")
		}
	})
}

func TestQuorum_IsNotSlowedDownByANodeThatCannotBeCompared(t *testing.T) {
	t.Parallel()
	onTwins(t, []string{"a", "b", "c"}, nil, func(b *twinBench) {
		b.relays[2].BlackHole(true)
		for range 3 {
			b.withinOnePatience(func() { b.cycle(b.mutex()) })
		}
		b.relays[2].BlackHole(false)
	})
}

// A server that a user may not ask is in no comparison: these three are one.
func TestQuorum_SkipsServersThatDoNotSayWhoTheyAre(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	var rdbs []redis.UniversalClient
	for range 3 {
		relay := redistest.NewRelay(t, server.Addr)
		o := *server.User(t, "~*", "&*", "+@all", "-info").Options()
		o.Addr = relay.Addr
		rdb := redis.NewClient(&o)
		t.Cleanup(func() { _ = rdb.Close() })
		rdbs = append(rdbs, rdb)
	}
	locktest.RequireLocked(t, relock.QuorumOn(t, rdbs).Mutex(redistest.Key(t)))
}

func TestQuorum_RefusesOneClusterUnderTwoAddresses(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	var rdbs []redis.UniversalClient
	for _, node := range cluster.Nodes[:2] {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{node.Addr}})
		t.Cleanup(func() { _ = rdb.Close() })
		rdbs = append(rdbs, rdb)
	}
	err := relock.QuorumOn(t, rdbs).Mutex(redistest.Key(t)).Lock(t.Context())
	require.ErrorIs(t, err, relock.ErrInvalidOption)
	require.ErrorContains(t, err, cluster.Nodes[0].Addr)
	require.ErrorContains(t, err, cluster.Nodes[1].Addr)
}
