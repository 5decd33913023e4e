package interop

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// A deployment is a Redis, and how the two sides use it.
type deployment struct {
	java    place
	dial    func() redis.UniversalClient
	options []relock.ClientOption
}

// The servers that tests share are started on first use.
var (
	startServer   = once(func() (*redistest.Server, error) { return redistest.StartServer("") })
	startSentinel = once(redistest.StartSentinel)
	startCluster  = once(redistest.StartCluster)
	startJava     = once(func() (*peer, error) { return startPeer(os.Getenv("RELOCK_JAVA_PEER")) })
)

// once starts something at the first call, and has TestMain stop it. A failure is not
// remembered: it is tried again.
func once[T interface{ Close() }](start func() (T, error)) func() (T, error) {
	var mu sync.Mutex
	var running *T
	return func() (T, error) {
		mu.Lock()
		defer mu.Unlock()
		if running != nil {
			return *running, nil
		}
		started, err := start()
		if err == nil {
			running = &started
			stopAtTheEnd(started.Close)
		}
		return started, err
	}
}

func sharedPeer(t *testing.T) *peer {
	t.Helper()
	peerJar(t)
	p, err := startJava()
	require.NoError(t, err)
	return p
}

// deploymentOn returns a server of its own as a deployment.
func deploymentOn(server *redistest.Server) *deployment {
	return &deployment{
		java: place{Mode: "single", Addresses: []string{server.Addr}},
		dial: func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: server.Addr}) },
	}
}

func single(t *testing.T) *deployment {
	t.Helper()
	peerJar(t)
	redistest.RequireServer(t)
	server, err := startServer()
	require.NoError(t, err)
	return deploymentOn(server)
}

func sentinel(t *testing.T) *deployment {
	t.Helper()
	peerJar(t)
	redistest.RequireServer(t)
	s, err := startSentinel()
	require.NoError(t, err)
	return &deployment{
		java: place{Mode: "sentinel", Addresses: s.Addrs(), Master: redistest.MasterName},
		dial: func() redis.UniversalClient {
			return redis.NewFailoverClient(&redis.FailoverOptions{
				MasterName: redistest.MasterName, SentinelAddrs: s.Addrs(),
			})
		},
	}
}

// cluster is a Cluster on which both sides use, or do not use, sharded pub/sub.
func cluster(t *testing.T, sharded bool) *deployment {
	t.Helper()
	peerJar(t)
	redistest.RequireServer(t)
	c, err := startCluster()
	require.NoError(t, err)
	d := &deployment{
		java: place{Mode: "cluster", Addresses: c.Addrs(), Sharded: sharded},
		dial: func() redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
		},
	}
	if sharded {
		d.options = append(d.options, relock.WithShardedPubSub())
	}
	return d
}

// onEach runs test on every deployment.
func onEach(t *testing.T, test func(t *testing.T, d *deployment)) {
	t.Helper()
	t.Run("single server", func(t *testing.T) { test(t, single(t)) })
	t.Run("Sentinel", func(t *testing.T) { test(t, sentinel(t)) })
	t.Run("Cluster with classic pub-sub", func(t *testing.T) { test(t, cluster(t, false)) })
	t.Run("Cluster with sharded pub-sub", func(t *testing.T) { test(t, cluster(t, true)) })
}

func (d *deployment) client(t *testing.T) redis.UniversalClient {
	t.Helper()
	rdb := d.dial()
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// locks returns a client of this library on the deployment.
func (d *deployment) locks(t *testing.T, options ...relock.ClientOption) *relock.Client {
	t.Helper()
	c, err := relock.New(d.client(t), append(d.options[:len(d.options):len(d.options)], options...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// requireFree requires that nothing is left of the locks with these names.
func (d *deployment) requireFree(t *testing.T, names ...string) {
	t.Helper()
	rdb := d.client(t)
	for _, name := range names {
		left, err := rdb.Exists(context.Background(), name).Result()
		require.NoError(t, err)
		require.Zero(t, left, "%s is still there", name)
	}
}

// listeners is the number of connections that listen for releases of name.
func (d *deployment) listeners(t *testing.T, rdb redis.UniversalClient, name string) int {
	t.Helper()
	return d.listening(t, rdb, channelOf(name))
}

// listening is the number of connections that listen to a channel.
func (d *deployment) listening(t *testing.T, rdb redis.UniversalClient, channel string) int {
	t.Helper()
	count := func(ctx context.Context, rdb *redis.Client) (map[string]int64, error) {
		if d.java.Sharded {
			return rdb.PubSubShardNumSub(ctx, channel).Result()
		}
		return rdb.PubSubNumSub(ctx, channel).Result()
	}
	var mu sync.Mutex
	var n int64
	add := func(ctx context.Context, rdb *redis.Client) error {
		messages, err := count(ctx, rdb)
		mu.Lock()
		defer mu.Unlock()
		n += messages[channel]
		return err
	}
	var err error
	if c, ok := rdb.(*redis.ClusterClient); ok {
		err = c.ForEachMaster(t.Context(), add)
	} else {
		err = add(t.Context(), rdb.(*redis.Client))
	}
	require.NoError(t, err)
	return int(n)
}
