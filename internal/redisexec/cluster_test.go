package redisexec

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redistest"
)

// The server reports the address without brackets.
func TestReplicas_ScriptFollowsItsSlotOverIPv6(t *testing.T) {
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
	redistest.Eventually(t, "a Cluster", func() bool {
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
	x := executorOn(t, rdb)
	e := CallOptions{Attempts: 3, Patience: x.Patience}.ConfirmedBy(Replicas{N: 1, Timeout: 50 * time.Millisecond})
	_, out := x.Run(ctx, e, idle, []any{name})
	require.NoError(t, out.Err)
	require.ErrorIs(t, out.Unconfirmed, lockerr.ErrNotReplicated) // there are none; but it was executed
}

// As at the end of a slot's move, while not all nodes agree on who serves it: go-redis follows some times in a row.
func TestCluster_NodesThatReferToEachOtherAreAskedAgain(t *testing.T) {
	t.Parallel()
	b := redistest.Mini(t)
	loadScripts(t, b.Client(t), counting)
	relay := redistest.NewRelay(t, b.Addr)
	rdb := redistest.NewOneMaster(t, relay.Addr)
	relay.ReplyWith("+OK\r\n", redistest.Named("ASKING")).Always()
	x, key := executorOn(t, rdb.ClusterClient), redistest.Key(t)
	const follows = 4 // by go-redis, after one copy of the engine
	for _, redirect := range []string{"MOVED", "ASK"} {
		refer := relay.ReplyWith("-"+redirect+" 1 "+relay.Addr+"\r\n", runsOf(counting)).Times(3 * (1 + follows))
		_, out := x.Run(t.Context(), CallOptions{Attempts: 1, Patience: redistest.SoonEnough}, counting, []any{key})
		require.ErrorContains(t, out.Err, redirect)
		require.True(t, SlotMoves(out.Err))
		require.False(t, out.Ambiguous)
		require.False(t, out.Permanent)
		ran, out := x.Run(t.Context(), CallOptions{Attempts: 9, Patience: redistest.SoonEnough}, counting, []any{key})
		require.NoError(t, out.Err)
		require.False(t, out.Ambiguous)
		require.EqualValues(t, 1, ran)
		refer.Wait(t)
		require.NoError(t, b.Client(t).Del(t.Context(), key).Err())
	}
}

// Addresses of masters change, as the addresses of pods do.
func TestCluster_NothingIsKeptForANodeThatLeft(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t, "--cluster-enabled", "yes")
	admin := server.Client(t)
	require.NoError(t, admin.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	redistest.Eventually(t, "a Cluster", func() bool { return strings.Contains(admin.ClusterInfo(t.Context()).Val(), "cluster_state:ok") })
	relay := redistest.NewRelay(t, server.Addr)
	rdb := redistest.NewOneMaster(t, relay.Addr)
	x, key := executorOn(t, rdb.ClusterClient), redistest.Key(t)
	run := func() bool {
		_, out := x.Run(t.Context(), CallOptions{Attempts: 3}, idle, []any{key})
		return out.Err == nil
	}
	for range 5 {
		redistest.Eventually(t, "an answer", run)
		next := redistest.NewRelay(t, server.Addr)
		rdb.MoveTo(next.Addr)
		relay.Close()
		relay = next
		redistest.Eventually(t, "the move is known", func() bool {
			rdb.ReloadState(t.Context())
			node, err := rdb.MasterForKey(t.Context(), key)
			return err == nil && strings.HasSuffix(next.Addr, node.Options().Addr) // without a host
		})
	}
	require.True(t, run())
	redistest.Eventually(t, "one engine", func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return len(x.engines) == 1
	})
}
