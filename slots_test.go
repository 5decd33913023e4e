package relock

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// A slot is on the move, its keys still at their source. One that went away there and came back
// in the same script would be refused half-way.

func TestAHandOverWhileTheSlotMovesIsWhole(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	for name, lock := range map[string]func(c *Client, names []string) *Mutex{
		"plain":             func(c *Client, names []string) *Mutex { return c.Mutex(names[0]) },
		"plain with tokens": func(c *Client, names []string) *Mutex { return c.Mutex(names[0], WithFencing()) },
		"multi":             func(c *Client, names []string) *Mutex { return c.MultiMutex(names) },
		"multi with tokens": func(c *Client, names []string) *Mutex { return c.MultiMutex(names, WithFencing()) },
		// Without tokens not all of its keys exist: Redis executes none of its scripts meanwhile.
		"fair with tokens": func(c *Client, names []string) *Mutex { return c.FairMutex(names[0], WithFencing()) },
	} {
		t.Run(name, func(t *testing.T) {
			p := ward(t, cluster)
			c := locksOn(t, cluster.Client(t))
			m, holder, waiter := lock(c, p.names("k")), newActor(t), newActor(t)
			holder.locks(t, m)
			waiting := waiter.lock(t.Context(), m)
			awaitWaiters(t, c.session, m.target.Keys[0], 1)
			if m.target.Fair != nil {
				awaitFairQueue(t, p.admin, m.Name(), 1)
			}
			p.beginMove()
			err := holder.call(m.Unlock)
			p.endMove()
			require.NoError(t, err)
			require.NoError(t, outcomeOf(t, waiting))
			waiter.unlocks(t, m)
		})
	}
}

// Of a wake-up by classic pub/sub Redis counts only those who hear it at that node.
func TestOtherProcessesHaveTheirTurnWhicheverNodeTheyListenAt(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	name := func(node int) string {
		for i := 0; ; i++ {
			name := fmt.Sprintf("%s-%d", redistest.Key(t), i)
			if master, err := cluster.Master(t.Context(), name); err == nil && master == cluster.Nodes[node] {
				return name
			}
		}
	}
	const inRow = 4
	us, them := locksOn(t, cluster.Client(t), WithLocalHandoffs(inRow)), locksOn(t, cluster.Client(t), WithLocalHandoffs(inRow))
	elsewhere, busy := name(1), name(0)
	heldByStranger(t, cluster.Client(t), elsewhere, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	listening := newActor(t).lock(ctx, them.Mutex(elsewhere)) // their connection is to that node from now on
	awaitListening(t, them.session, elsewhere)

	var turns atomic.Int64
	var all []<-chan error
	for range inRow {
		all = append(all, newActor(t).begin(func() error {
			for {
				if err := us.Mutex(busy).Lock(ctx); err != nil {
					return err
				}
				turns.Add(1)
				time.Sleep(time.Millisecond) // the work
				if err := us.Mutex(busy).Unlock(); err != nil {
					return err
				}
			}
		}))
	}
	other, m := newActor(t), them.Mutex(busy)
	other.locks(t, m)
	before := turns.Load()
	const visits = 10
	for range visits {
		other.unlocks(t, m)
		other.locks(t, m)
	}
	cancel()
	require.Less(t, turns.Load()-before, int64(visits*50), "ours for each of theirs are about 15, and 100 and more if they count for nothing")
	other.unlocks(t, m)
	for _, result := range append(all, listening) {
		require.ErrorIs(t, outcomeOf(t, result), context.Canceled)
	}
}

// The server tells the address without brackets.
func TestAScriptForReplicasFollowsItsSlotOverIPv6(t *testing.T) {
	t.Parallel()
	const ip = "::1"
	args := []string{"--bind", "127.0.0.1", ip, "--cluster-enabled", "yes", "--cluster-announce-ip", ip}
	source, target := redistest.NewServer(t, args...), redistest.NewServer(t, args...)
	from, to, ctx := source.Client(t), target.Client(t), t.Context()
	_, sourcePort, err := net.SplitHostPort(source.Addr)
	require.NoError(t, err)
	_, targetPort, err := net.SplitHostPort(target.Addr)
	require.NoError(t, err)
	for _, cmd := range []redis.Cmder{
		from.Do(ctx, "cluster", "set-config-epoch", 1), to.Do(ctx, "cluster", "set-config-epoch", 2),
		from.ClusterAddSlotsRange(ctx, 0, 8191), to.ClusterAddSlotsRange(ctx, 8192, 16383),
		from.Do(ctx, "cluster", "meet", ip, targetPort),
	} {
		require.NoError(t, cmd.Err())
	}
	eventually(t, "a Cluster", func() bool {
		for _, rdb := range []*redis.Client{from, to} {
			info := rdb.ClusterInfo(ctx).Val()
			if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:2") {
				return false
			}
		}
		return true
	})
	name, slot := "", int64(16383)
	for i := 0; slot > 8191; i++ {
		name = fmt.Sprintf("%s-%d", redistest.Key(t), i)
		slot = from.ClusterKeySlot(ctx, name).Val()
	}
	require.NoError(t, to.Do(ctx, "cluster", "setslot", slot, "importing", from.Do(ctx, "cluster", "myid").Val()).Err())
	require.NoError(t, from.Do(ctx, "cluster", "setslot", slot, "migrating", to.Do(ctx, "cluster", "myid").Val()).Err())
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{net.JoinHostPort(ip, sourcePort)}})
	t.Cleanup(func() { _ = rdb.Close() })
	m := locksOn(t, rdb).Mutex(name, WithReplicas(1, 50*time.Millisecond))
	require.ErrorIs(t, m.Lock(ctx), ErrNotReplicated) // there are none; but it was executed
}

// Addresses of masters change, as those of pods.
func TestNothingIsKeptForANodeThatHasLeft(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t, "--cluster-enabled", "yes")
	admin := server.Client(t)
	require.NoError(t, admin.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	eventually(t, "a Cluster", func() bool { return strings.Contains(admin.ClusterInfo(t.Context()).Val(), "cluster_state:ok") })
	relay := redistest.NewRelay(t, server.Addr)
	rdb := newOneMaster(t, relay.Addr)
	c := locksOn(t, rdb.ClusterClient)
	m := c.Mutex(redistest.Key(t))
	for range 5 {
		eventually(t, "a lock", func() bool { return m.Lock(t.Context()) == nil })
		requireUnlocked(t, m)
		next := redistest.NewRelay(t, server.Addr)
		rdb.addr.Store(&next.Addr)
		relay.Close()
		relay = next
		eventually(t, "the move is known", func() bool {
			rdb.ReloadState(t.Context())
			node, err := rdb.MasterForKey(t.Context(), m.Name())
			return err == nil && strings.HasSuffix(next.Addr, node.Options().Addr) // without a host
		})
	}
	requireLocked(t, m)
	requireUnlocked(t, m)
	x := c.session.execs[0]
	eventually(t, "one engine", func() bool {
		x.Mu.Lock()
		defer x.Mu.Unlock()
		return len(x.Engines) == 1
	})
}
