package tests

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

func TestSemaphore_PermitCountsOnceReplicasHaveIt(t *testing.T) {
	b := newReplicaBench(t, 1)
	s := b.locks.Semaphore(b.key, 2, relock.WithReplicas(1, 4*time.Second))
	p := acquired(t, s, 2)
	replica := b.Replicas[0].Client(t)
	require.EqualValues(t, 2, replica.ZCard(t.Context(), b.key).Val())
	waiting := acquiring(t.Context(), s, 1)
	awaitWaiting(t, s, 1)
	require.NoError(t, p.Release())
	g := redistest.Receive(t, waiting)
	require.NoError(t, g.err)
	require.Equal(t, []string{g.permit.ID()}, replica.ZRange(t.Context(), b.key, 0, -1).Val())

	b.pause()
	_, err := b.locks.Semaphore(b.key, 2, relock.WithReplicas(1, 50*time.Millisecond)).Acquire(t.Context())
	require.ErrorIs(t, err, relock.ErrNotReplicated)
	redistest.Eventually(t, "it is given back", func() bool {
		state, err := s.State(t.Context())
		return err == nil && state.InUse == 1
	})
	b.resume()
	require.NoError(t, g.permit.Release())
	requireNoKeys(t, b.master, b.key)
}

func TestSemaphore_WorksOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	for name, opts := range map[string][]relock.ClientOption{"classic": nil, "sharded": {relock.WithShardedPubSub()}} {
		t.Run(name, func(t *testing.T) {
			for _, key := range []string{redistest.Key(t), "{" + redistest.Key(t) + "}:a"} {
				var u usage
				var all sync.WaitGroup
				for range 3 {
					s := locksOn(t, cluster.Client(t), opts...).Semaphore(key, 3)
					for i := range 4 {
						all.Go(func() {
							for range 10 {
								p, err := s.AcquireN(context.Background(), 1+i%3)
								if err != nil {
									t.Error(err)
									return
								}
								u.begin(p.Weight())
								u.end(p.Weight())
								if err := p.Release(); err != nil {
									t.Error(err)
								}
							}
						})
					}
				}
				all.Wait()
				require.LessOrEqual(t, u.most.Load(), int64(3))
				requireNoKeys(t, redis.UniversalClient(cluster.Client(t)), key)
			}
		})
	}
}

// A server that is out of memory refuses to add permits, and releases those in use.
func TestSemaphore_FullServerRefusesAndReleases(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	s := locksOn(t, server.Client(t)).Semaphore("s", 2)
	p := acquired(t, s, 2)
	waiting := acquiring(t.Context(), s, 1)
	awaitWaiting(t, s, 1)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, _, err := locksOn(t, server.Client(t)).Semaphore("other", 2).TryAcquire(t.Context())
	require.ErrorContains(t, err, "OOM")
	require.Zero(t, rdb.Exists(t.Context(), "other").Val())
	require.NoError(t, p.Release())
	g := redistest.Receive(t, waiting)
	require.NoError(t, g.err, "a write that needs no memory came first")
	require.NoError(t, g.permit.Release())
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	requireNoKeys(t, rdb, "s")
}

// A renewal needs no memory, as that of a lock.
func TestSemaphore_FullServerRenews(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	renewed := make(chan relock.Event, 1)
	s := locksOn(t, server.Client(t)).Semaphore("s", 2, relock.WithRenewInterval(20*time.Millisecond),
		relock.WithHooks(relock.Hooks{Renewed: func(e relock.Event) {
			select {
			case renewed <- e:
			default: // the test has enough
			}
		}}))
	p := acquired(t, s, 2)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	for range 3 { // two of them may have been confirmed before
		redistest.Receive(t, renewed)
	}
	require.NoError(t, p.Context(t.Context()).Err())
	require.NoError(t, p.Release())
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	requireNoKeys(t, rdb, "s")
}
