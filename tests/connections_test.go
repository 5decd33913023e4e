package tests

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

func TestConnections_LockNeedsOneWhateverItsContext(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		var dials atomic.Int64
		rdb := redis.NewClient(redistest.Options(backend.Addr, func(o *redis.Options) {
			dial := o.Dialer
			if dial == nil {
				dial = redis.NewDialer(o)
			}
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				dials.Add(1)
				return dial(ctx, network, addr)
			}
		}))
		t.Cleanup(func() { _ = rdb.Close() })
		m := locksOn(t, rdb).Mutex(redistest.Key(t))
		pair := func(ctx context.Context) {
			t.Helper()
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			require.NoError(t, m.Lock(ctx))
			require.NoError(t, m.Lock(context.Background()))
			locktest.RequireUnlocked(t, m)
			locktest.RequireUnlocked(t, m)
		}
		for range 100 {
			pair(t.Context())
		}
		require.EqualValues(t, 1, dials.Load())
	})
}

func TestConnections_LockDoesNotQueueForABusyPool(t *testing.T) {
	t.Parallel()
	redistest.NeedsPipelining(t)
	rdb := redis.NewClient(&redis.Options{Addr: redistest.NewServer(t).Addr, PoolSize: 1})
	t.Cleanup(func() { _ = rdb.Close() })
	busy := rdb.Conn()
	t.Cleanup(func() { _ = busy.Close() })
	require.NoError(t, busy.Ping(t.Context()).Err()) // from now on it is the application's

	m := locksOn(t, rdb).Mutex(redistest.Key(t))
	require.NoError(t, m.Lock(context.Background()))
	locktest.RequireUnlocked(t, m)
	require.Zero(t, rdb.PoolStats().WaitCount)
	require.Zero(t, rdb.PoolStats().Timeouts)
}

func TestConnections_WithoutPipeliningCommandsUseThePool(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	used := func(t *testing.T, rdb redis.UniversalClient, opts ...relock.ClientOption) bool {
		t.Helper()
		c := locksOn(t, rdb, opts...)
		lockAtOnce(t, c) // until the map of a Cluster is loaded, its client routes the commands
		before := rdb.PoolStats()
		lockAtOnce(t, c)
		after := rdb.PoolStats()
		return after.Hits+after.Misses-before.Hits-before.Misses > 32
	}
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		require.Equal(t, redistest.WithoutPipelining(), used(t, backend.Client(t)))
		require.True(t, used(t, backend.Client(t), relock.WithoutPipelining()))
	})
	t.Run("Cluster", func(t *testing.T) {
		cluster := redistest.NewCluster(t)
		require.Equal(t, redistest.WithoutPipelining(), used(t, cluster.Client(t)))
		require.True(t, used(t, cluster.Client(t), relock.WithoutPipelining()))
	})
}

// lockAtOnce has many goroutines lock names of their own, and one that they share.
func lockAtOnce(t *testing.T, c *relock.Client) {
	t.Helper()
	key := redistest.Key(t)
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			for _, name := range []string{fmt.Sprint(key, i), key} {
				for _, ctx := range []context.Context{ctx, context.Background()} {
					m := c.Mutex(name, relock.WithRenewInterval(10*time.Millisecond))
					if err := errors.Join(m.Lock(ctx), m.Lock(ctx), m.Unlock(), m.Unlock()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
}

func TestConnections_LockUsesThePipelineWhileThePoolCannotDial(t *testing.T) {
	t.Parallel()
	redistest.NeedsPipelining(t)
	rdb := redistest.NewIdlePool(t)

	m := locksOn(t, rdb).Mutex(redistest.Key(t))
	require.NoError(t, m.Lock(context.Background()))
	locktest.RequireUnlocked(t, m)
	redistest.Eventually(t, "the pool", func() bool { return rdb.Ping(t.Context()).Err() == nil })
}
