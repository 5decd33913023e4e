package redisexec

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestPipeline_RejectedCommandWasNotSent(t *testing.T) {
	for _, err := range []error{redis.ErrAutoPipelineTimeout, redis.ErrAutoPipelineQueueFull} {
		require.Equal(t, transient, judge(err))
		require.Equal(t, transient, judge(fmt.Errorf("wrapped: %w", err)))
	}
}

// unpipelinedOn is executorOn for an executor that does without the pipeline.
func unpipelinedOn(t *testing.T, rdb redis.UniversalClient) *Executor {
	t.Helper()
	x := executorOn(t, rdb)
	x.Unpipelined = true
	return x
}

// eachContext runs fn with a context that nothing but the clock ends, and with one that may be cancelled.
func eachContext(t *testing.T, fn func(t *testing.T, ctx context.Context)) {
	t.Helper()
	for name, ctx := range map[string]context.Context{"endless": context.Background(), "cancellable": t.Context()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fn(t, ctx)
		})
	}
}

// eachContextOn is eachContext on each backend.
func eachContextOn(t *testing.T, fn func(t *testing.T, b *redistest.Backend, ctx context.Context)) {
	t.Helper()
	for name, ends := range map[string]bool{"endless": false, "cancellable": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
				ctx := context.Background()
				if ends {
					ctx = t.Context()
				}
				fn(t, b, ctx)
			})
		})
	}
}

func TestUnpipelined_WaitsForAConnectionOfThePool(t *testing.T) {
	t.Parallel()
	eachContext(t, func(t *testing.T, ctx context.Context) {
		rdb := redis.NewClient(&redis.Options{Addr: redistest.NewServer(t).Addr, PoolSize: 1, PoolTimeout: time.Minute})
		t.Cleanup(func() { _ = rdb.Close() })
		busy := rdb.Conn()
		require.NoError(t, busy.Ping(t.Context()).Err()) // from now on it is the application's
		x := unpipelinedOn(t, rdb)
		x.Patience = time.Minute
		answered := make(chan error, 1)
		go func() {
			_, out := x.Run(ctx, once, idle, []any{redistest.Key(t)})
			answered <- out.Err
		}()
		redistest.Eventually(t, "it waits", func() bool { return rdb.PoolStats().PendingRequests == 1 })
		require.Empty(t, answered)
		require.NoError(t, busy.Close())
		require.NoError(t, redistest.Receive(t, answered))
	})
}

// So it is where the machine of the server has died, and another one has taken over its address.
func TestUnpipelined_GetsPastAPoolOfStuckConnections(t *testing.T) {
	t.Parallel()
	eachContextOn(t, func(t *testing.T, b *redistest.Backend, ctx context.Context) {
		relay, rdb := relayedTo(t, b, idle)
		const n = 8 // more than copies are sent
		var conns []*redis.Conn
		for range n {
			conn := rdb.Conn()
			require.NoError(t, conn.Ping(t.Context()).Err())
			conns = append(conns, conn)
		}
		for _, conn := range conns {
			require.NoError(t, conn.Close())
		}
		require.EqualValues(t, n, rdb.PoolStats().IdleConns)
		relay.BlackHoleCurrent()
		x := unpipelinedOn(t, rdb)
		_, out := x.Run(ctx, CallOptions{Attempts: 3}, idle, []any{redistest.Key(t)})
		require.NoError(t, out.Err)
	})
}

func TestUnpipelined_ClosedEngineSendsNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		x := unpipelinedOn(t, rdb)
		_, out := x.Run(t.Context(), once, idle, []any{key})
		require.NoError(t, out.Err)
		engine := x.engineAt(rdb)
		x.Close(t.Context())

		for _, ctx := range []context.Context{x.limits.After(x.Patience), t.Context()} {
			a := engine.send(tryOf(ctx), newCall(ctx, writing, true, []any{key}, nil))
			require.ErrorIs(t, a.err, redis.ErrClosed)
		}
		require.Zero(t, rdb.Exists(t.Context(), key).Val())
	})
}

func TestUnpipelined_CloseWaitsForCommandsInFlight(t *testing.T) {
	t.Parallel()
	eachContextOn(t, func(t *testing.T, b *redistest.Backend, ctx context.Context) {
		relay, rdb := relayedTo(t, b, idle)
		x := unpipelinedOn(t, rdb)
		x.Patience = time.Minute
		answered := make(chan error, 3)
		begin := func(start func(func())) *redistest.Rule {
			key := redistest.Key(t)
			stopped := relay.Block(runsOf(idle).And(redistest.With(key)))
			start(func() {
				_, out := x.Run(ctx, once, idle, []any{key})
				answered <- out.Err
			})
			redistest.Receive(t, stopped.Caught())
			return stopped
		}
		spawn := func(f func()) { go f() }
		alone, ours, callers := begin(spawn), begin(x.Go), begin(spawn)

		closed := make(chan struct{})
		go func() {
			defer close(closed)
			x.Close(t.Context())
		}()
		redistest.Eventually(t, "closing", func() bool { return x.life.Err() != nil })
		for _, stopped := range []*redistest.Rule{alone, ours, callers} {
			select {
			case <-closed:
				require.Fail(t, "it has not waited")
			case <-time.After(50 * time.Millisecond):
			}
			stopped.Release()
			require.NoError(t, redistest.Receive(t, answered))
		}
		redistest.Receive(t, closed)
		_, out := x.Run(ctx, once, idle, []any{redistest.Key(t)})
		require.ErrorIs(t, out.Err, redis.ErrClosed)
	})
}
