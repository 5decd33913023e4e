package relock

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestALockThatIsAloneGoesPastThePipeline(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb := backend.Client(t)
		c := locksOn(t, rdb)
		m := c.Mutex(redistest.Key(t))
		for range 3 {
			require.NoError(t, m.Lock(context.Background())) // nothing but the clock ends it
			require.NoError(t, m.Lock(context.Background()))
			requireUnlocked(t, m)
			requireUnlocked(t, m)
		}
		require.Zero(t, rdb.PoolStats().PipelineStats.TotalConns)
	})
}

func TestALockDoesNotQueueForAConnectionOfAPoolThatIsInUse(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: redistest.NewServer(t).Addr, PoolSize: 1})
	t.Cleanup(func() { _ = rdb.Close() })
	busy := rdb.Conn()
	t.Cleanup(func() { _ = busy.Close() })
	require.NoError(t, busy.Ping(t.Context()).Err()) // from now on it is the application's

	m := locksOn(t, rdb).Mutex(redistest.Key(t))
	require.NoError(t, m.Lock(context.Background()))
	requireUnlocked(t, m)
	require.Zero(t, rdb.PoolStats().WaitCount)
	require.Zero(t, rdb.PoolStats().Timeouts)
}

func TestALockGoesThroughThePipelineWhileThePoolDoesNotDial(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewIdlePool(t)

	m := locksOn(t, rdb).Mutex(redistest.Key(t))
	require.NoError(t, m.Lock(context.Background()))
	requireUnlocked(t, m)
	eventually(t, "the pool", func() bool { return rdb.Ping(t.Context()).Err() == nil })
}
