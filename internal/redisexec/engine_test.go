package redisexec

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/redistest"
)

func TestEngine_DoesNotQueueForABusyPool(t *testing.T) {
	t.Parallel()
	redistest.NeedsPipelining(t)
	rdb := redis.NewClient(&redis.Options{Addr: redistest.NewServer(t).Addr, PoolSize: 1})
	t.Cleanup(func() { _ = rdb.Close() })
	busy := rdb.Conn()
	t.Cleanup(func() { _ = busy.Close() })
	require.NoError(t, busy.Ping(t.Context()).Err()) // from now on it is the application's

	x, key := executorOn(t, rdb), []any{redistest.Key(t)}
	for range 2 {
		_, out := x.Run(context.Background(), once, idle, key)
		require.NoError(t, out.Err)
	}
	require.Zero(t, rdb.PoolStats().WaitCount)
	require.Zero(t, rdb.PoolStats().Timeouts)
}

func TestEngine_ClosedSendsNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb := backend.Client(t)
		x := New(rdb, clock.System, usualTTL)
		key := redistest.Key(t)
		_, out := x.Run(t.Context(), once, idle, []any{key})
		require.NoError(t, out.Err)
		engine := x.engineAt(rdb)
		x.Close(t.Context())

		limit := x.limits.After(x.Patience)
		a := engine.send(tryOf(limit), newCall(limit, writing, true, []any{key}, nil))
		require.ErrorIs(t, a.err, redis.ErrClosed)
		require.Zero(t, rdb.Exists(t.Context(), key).Val())
	})
}

func TestEngine_UsesThePipelineWhileThePoolCannotDial(t *testing.T) {
	t.Parallel()
	redistest.NeedsPipelining(t)
	rdb := redistest.NewIdlePool(t)

	x, key := executorOn(t, rdb), []any{redistest.Key(t)}
	for range 2 {
		_, out := x.Run(context.Background(), once, idle, key)
		require.NoError(t, out.Err)
	}
	redistest.Eventually(t, "the pool", func() bool { return rdb.Ping(t.Context()).Err() == nil })
}

// go-redis does not return the refusal of a new connection to the commands of its pipeline.
func TestEngine_ServerThatAdmitsNobodyAnswersNothing(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	for name, e := range map[string]CallOptions{
		"alone":        {},
		"for replicas": {Replicas: Replicas{N: 1, Timeout: time.Second}},
	} {
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr, Username: "nobody", Password: "wrong"})
		t.Cleanup(func() { _ = rdb.Close() })
		x := executorOn(t, rdb)
		e.Attempts = 1
		_, out := x.Run(context.Background(), e, idle, []any{redistest.Key(t)})
		require.ErrorContains(t, out.Err, "WRONGPASS", name)
		require.False(t, out.Ambiguous, name)
	}
}

// writing is a script that leaves a key.
var writing = NewScript("return redis.call('set', KEYS[1], 1)")
