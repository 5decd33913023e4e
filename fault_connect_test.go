package relock_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// gatedRedis is a client whose new connections come about only while that is let; else the
// attempt hangs, as it does behind a firewall or a full backlog.
func gatedRedis(t *testing.T, addr string) (rdb *redis.Client, open *atomic.Bool) {
	t.Helper()
	open = new(atomic.Bool)
	open.Store(true)
	over := make(chan struct{})
	rdb = redis.NewClient(redistest.Options(addr, func(o *redis.Options) {
		o.DialTimeout, o.DialerRetries = 2*time.Second, 1 // longer than a copy is waited for
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if !open.Load() {
				select {
				case <-ctx.Done():
					return nil, ctx.Err()
				case <-over: // go-redis dials without a deadline, and goes on after Close
					return nil, net.ErrClosed
				}
			}
			return redistest.Dial(ctx, network, addr)
		}
	}))
	t.Cleanup(func() {
		close(over)
		_ = rdb.Close()
	})
	return rdb, open
}

func TestConnect_UnlockUsesTheWorkingConnectionWhereNewOnesHang(t *testing.T) {
	redistest.InTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb, open := gatedRedis(t, backend.Addr)
		locks := relock.LocksOn(t, rdb)
		m, id := locks.Mutex(redistest.Key(t)), locks.ID()
		locktest.RequireLocked(t, m) // with a context that can be cancelled: through the pipeline
		open.Store(false)
		began := time.Now()
		locktest.RequireUnlocked(t, m)
		require.Less(t, time.Since(began), locks.Patience()/2, "it tried another one first")
		require.Equal(t, id, locks.ID(), "nothing was in doubt")
		locktest.RequireFree(t, backend.Client(t), m.Name())
	})
}

func TestConnect_UnlockWorksOnAServerThatAdmitsNobodyElse(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	admin := server.Client(t)
	locks := relock.LocksOn(t, redistest.NewClient(t, server.Addr))
	m := locks.Mutex(redistest.Key(t))
	locktest.RequireLocked(t, m)
	require.NoError(t, admin.ConfigSet(t.Context(), "maxclients", "2").Err())
	locktest.RequireUnlocked(t, m)
	locktest.RequireFree(t, admin, m.Name())
}

// Copies go both ways in turns.
func TestConnect_UnlockFindsTheOneWorkingConnectionOfThePool(t *testing.T) {
	t.Parallel()
	redistest.NeedsPipelining(t)
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		relay, _ := locktest.RelayedTo(t, backend)
		rdb, open := gatedRedis(t, relay.Addr)
		locks := relock.LocksOn(t, rdb, relock.WithTTL(time.Minute))
		t.Cleanup(func() { open.Store(true) })
		m, other := locks.Mutex(redistest.Key(t)), locks.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, other) // through the pipeline
		require.NoError(t, rdb.Ping(t.Context()).Err())
		open.Store(false)
		locktest.RequireLocked(t, m)
		relay.LoseReply(locktest.RunsOf(protocol.ReleaseScript))
		locktest.RequireUnlocked(t, m)
		locktest.RequireUnlocked(t, other)
		locktest.RequireFree(t, backend.Client(t), m.Name(), other.Name())
	})
}

func TestConnect_RenewalFindsTheOneWorkingConnection(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		relay, _ := locktest.RelayedTo(t, backend)
		rdb, open := gatedRedis(t, relay.Addr)
		events := &chronicle{}
		locks := relock.LocksOn(t, rdb, relock.WithTTL(4*time.Second), relock.WithRenewInterval(200*time.Millisecond), relock.WithHooks(events.Hooks()))
		m := locks.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		open.Store(false)
		// The first is refused for a reason that has nothing to do with the connection, and there is no other.
		relay.ReplyWith("-LOADING Redis is loading the dataset in memory\r\n", locktest.RunsOf(protocol.RenewScript))
		redistest.Eventually(t, "a renewal has failed", func() bool { return len(events.Of("renew failed")) > 0 })
		before := len(events.Of("renewed"))
		redistest.Eventually(t, "renewed", func() bool { return len(events.Of("renewed")) > before })
		require.Equal(t, 1, m.HoldCount())
		locktest.RequireUnlocked(t, m)
	})
}

// The error of a dial that timed out is reported, and is not the end of the caller's context.
func TestConnect_SlowDialNamesTheServerAndNotTheCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // on a busy machine a try may last longer than the dial that explains it
		rdb := redis.NewClient(&redis.Options{Addr: "10.255.255.1:6379", DialTimeout: time.Second, DialerRetries: 1, Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, &net.OpError{Op: "dial", Net: network, Addr: &net.TCPAddr{IP: net.IPv4(10, 255, 255, 1), Port: 6379}, Err: ctx.Err()}
		}})
		t.Cleanup(func() { _ = rdb.Close() })
		c := relock.LocksOn(t, rdb, relock.WithTTL(400*time.Millisecond))
		_, tried := c.Mutex("x").TryLock(t.Context())
		for _, err := range []error{tried, c.Mutex("x").Lock(context.Background())} {
			require.ErrorContains(t, err, "10.255.255.1")
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			var network *net.OpError
			require.ErrorAs(t, err, &network)
		}
	})
}

// A dialer that does not mind its context, as go-redis' own for TLS, keeps no caller.
func TestConnect_LockEndsWithItsContextThoughTheDialerDoesNot(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	letGo := make(chan struct{})
	rdb := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
		<-letGo
		return nil, errors.New("it gave up at last")
	}})
	t.Cleanup(func() { _ = rdb.Close() })
	c := relock.LocksOn(t, rdb, relock.WithTTL(400*time.Millisecond))
	defer close(letGo)
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		ended <- c.Mutex("x").Lock(ctx)
	}()
	require.ErrorIs(t, redistest.Receive(t, ended), lockerr.ErrNoAnswer)
}
