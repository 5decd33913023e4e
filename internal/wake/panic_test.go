package wake_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/wake"
)

// buggy is a client that panics for as many times when it is asked for a connection, or for the
// master of a channel.
type buggy struct {
	*redis.ClusterClient
	left atomic.Int64
}

func (b *buggy) bug() {
	if b.left.Add(-1) >= 0 {
		panic("the client has a bug")
	}
}

func (b *buggy) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	b.bug()
	return b.ClusterClient.Subscribe(ctx, channels...)
}

func (b *buggy) MasterForKey(ctx context.Context, key string) (*redis.Client, error) {
	b.bug()
	return b.ClusterClient.MasterForKey(ctx, key)
}

func newBuggy(t *testing.T, addr string) *buggy {
	t.Helper()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}})
	t.Cleanup(func() { _ = rdb.Close() })
	b := &buggy{ClusterClient: rdb}
	b.left.Store(3)
	return b
}

func TestPanic_OfTheClientIsAFailedConnection(t *testing.T) {
	t.Parallel()
	rdb := newBuggy(t, miniredis.RunT(t).Addr())
	h := wake.NewHub(rdb, config())
	t.Cleanup(h.Close)
	w := subscribe(h, "a")
	require.False(t, w.Live())
	w.waitLive(t)
	require.Less(t, rdb.left.Load(), int64(0))
	publish(t, rdb, "a")
	w.waitWoken(t, 1)
}

func TestPanic_OnAskingForAMasterIsRetried(t *testing.T) {
	t.Parallel()
	redistest.RequireVersion(t, 7)
	cluster := redistest.NewCluster(t)
	rdb := newBuggy(t, cluster.Addrs()[0])
	s := wake.NewShards(rdb, config())
	t.Cleanup(s.Close)
	subscribe(s, "a").waitLive(t)
	require.Less(t, rdb.left.Load(), int64(0))
}

func TestPanic_HubOfAPanickingClientCloses(t *testing.T) {
	t.Parallel()
	rdb := newBuggy(t, miniredis.RunT(t).Addr())
	rdb.left.Store(1 << 40)
	h := wake.NewHub(rdb, config())
	w := subscribe(h, "a")
	w.neverWoken(t, 0)
	require.False(t, w.Live())
	h.Close()
}
