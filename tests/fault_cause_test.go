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

// A deployment is a way to a Redis that can be taken away.
type deployment struct {
	locks func(opts ...relock.ClientOption) *relock.Client
	addr  string // that errors are to name
	stop  func() // has connections refused
	mute  func() // has them not answered
}

// behind returns the deployment of locks on what is behind relays.
func behind(t *testing.T, locks func(opts ...relock.ClientOption) *relock.Client, relays ...*redistest.Relay) deployment {
	t.Helper()
	each := func(f func(*redistest.Relay)) func() {
		return func() {
			for _, relay := range relays {
				f(relay)
			}
		}
	}
	t.Cleanup(each(locktest.ComesBack))
	return deployment{
		locks: locks, addr: relays[0].Addr,
		mute: each(func(relay *redistest.Relay) { relay.BlackHole(true) }),
		stop: each(func(relay *redistest.Relay) {
			require.NoError(t, relay.Refuse(true))
			relay.Cut()
		}),
	}
}

// eachDeployment runs test as subtests, on each kind of deployment. What miniredis can do is done in a bubble, because the
// texts depend on which of several things that last some milliseconds ends first.
func eachDeployment(t *testing.T, test func(t *testing.T, d deployment)) {
	t.Helper()
	t.Run("a server", func(t *testing.T) {
		redistest.InBubble(t, func(t *testing.T, backend *redistest.Backend) {
			relay, rdb := locktest.RelayedTo(t, backend)
			test(t, behind(t, func(opts ...relock.ClientOption) *relock.Client { return locksOn(t, rdb, opts...) }, relay))
		})
	})
	t.Run("a node of a Cluster", func(t *testing.T) {
		t.Parallel()
		redistest.Timed(t)
		server := redistest.NewServer(t, "--cluster-enabled", "yes")
		relay := redistest.NewRelay(t, server.Addr)
		host, port, err := net.SplitHostPort(relay.Addr)
		require.NoError(t, err)
		require.NoError(t, server.RestartWith("--cluster-announce-ip", host, "--cluster-announce-port", port)) // before Redis 7 it is read once
		admin := redistest.NewClient(t, relay.Addr)
		require.NoError(t, admin.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
		redistest.Eventually(t, "up", func() bool { return admin.Exists(t.Context(), "key").Err() == nil })
		test(t, behind(t, func(opts ...relock.ClientOption) *relock.Client {
			rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{relay.Addr}})
			t.Cleanup(func() { _ = rdb.Close() })
			return locksOn(t, rdb, opts...)
		}, relay))
	})
	t.Run("two of three nodes of a quorum", func(t *testing.T) {
		redistest.InBubble(t, func(t *testing.T, backend *redistest.Backend) {
			nodes := backend.Nodes(t, 3)
			one, first := locktest.RelayedTo(t, nodes[0])
			two, second := locktest.RelayedTo(t, nodes[1])
			test(t, behind(t, func(opts ...relock.ClientOption) *relock.Client {
				rdbs := []redis.UniversalClient{first, second, nodes[2].Client(t)}
				return locktest.Closed[*relock.Client](t)(relock.NewQuorum(rdbs, locktest.Options(relock.WithoutPipelining(), opts)...))
			}, one, two))
		})
	})
}

func TestCause_LossAndFailedRenewalsNameTheRefusingServer(t *testing.T) {
	t.Parallel()
	eachDeployment(t, func(t *testing.T, d deployment) {
		events := &chronicle{}
		m := d.locks(relock.WithTTL(2*time.Second), relock.WithHooks(events.Hooks())).Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		ctx := m.Context(t.Context())
		d.stop()
		redistest.Receive(t, ctx.Done())
		loss := context.Cause(ctx)
		require.ErrorIs(t, loss, relock.ErrLost)
		failed := events.Of("renew failed")
		require.GreaterOrEqual(t, len(failed), 2)
		all := []error{loss, m.Unlock()}
		for _, e := range failed {
			all = append(all, e.Err)
		}
		for _, err := range all {
			require.ErrorContains(t, err, d.addr)
			require.ErrorContains(t, err, "connection refused")
		}
	})
}

func TestCause_SilenceNamesTheServer(t *testing.T) {
	t.Parallel()
	eachDeployment(t, func(t *testing.T, d deployment) {
		locks := d.locks(relock.WithTTL(time.Second))
		m := locks.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		locktest.RequireUnlocked(t, m)
		d.mute()
		_, err := m.TryLock(t.Context())
		require.ErrorContains(t, err, d.addr)
		require.Error(t, locks.Mutex(redistest.Key(t)).Lock(t.Context()))
	})
}

func TestCause_RefusalOfOneCallExplainsTheSilenceOfAnother(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, backend *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, backend)
		t.Cleanup(func() { locktest.ComesBack(relay) })
		locks := locksOn(t, rdb, relock.WithTTL(time.Second))
		relay.ReplyWith("-LOADING Redis is loading the dataset in memory\r\n", redistest.Scripts).Times(3)
		_, err := locks.Mutex(redistest.Key(t)).TryLock(t.Context())
		require.ErrorContains(t, err, relay.Addr+": LOADING")
		relay.BlackHole(true)
		_, err = locks.Mutex(redistest.Key(t)).TryLock(t.Context())
		require.ErrorContains(t, err, relay.Addr)
		require.ErrorContains(t, err, "LOADING")
	})
}

// countedRedis is a client that counts how often it dials.
func countedRedis(t *testing.T, addr string) (*redis.Client, *atomic.Int64) {
	t.Helper()
	dials := new(atomic.Int64)
	rdb := redis.NewClient(redistest.Options(addr, func(o *redis.Options) {
		o.PoolSize = 10
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return redistest.Dial(ctx, network, addr)
		}
	}))
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb, dials
}

func TestOutage_ManyFailuresDoNotEachDial(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	relay := redistest.NewRelay(t, redistest.Mini(t).Addr) // no server is asked
	t.Cleanup(func() { locktest.ComesBack(relay) })
	rdb, dials := countedRedis(t, relay.Addr)
	locks := locksOn(t, rdb, relock.WithTTL(time.Second))
	relay.BlackHole(true)
	const many = 400
	key, errs := redistest.Key(t), make([]error, many)
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() { errs[i] = locks.Mutex(fmt.Sprintf("%s-%d", key, i)).Lock(t.Context()) })
	}
	all.Wait()
	require.Less(t, dials.Load(), int64(many/2))
	for _, err := range errs {
		require.ErrorContains(t, err, relay.Addr)
	}
}

// Where the dialer of a failover client leads to is not known beforehand.
func TestCause_SilenceNamesTheMasterBehindSentinel(t *testing.T) {
	t.Parallel()
	set := redistest.NewSentinel(t)
	locks := locksOn(t, set.Client(t), relock.WithTTL(time.Second))
	m := locks.Mutex(redistest.Key(t))
	locktest.RequireLocked(t, m)
	locktest.RequireUnlocked(t, m)
	master, err := set.Master(t.Context())
	require.NoError(t, err)
	require.NoError(t, master.Pause())
	t.Cleanup(func() { _ = master.Resume() })
	_, err = m.TryLock(t.Context())
	require.ErrorContains(t, err, master.Addr)
	require.False(t, errors.Is(err, relock.ErrTimeout))
}
