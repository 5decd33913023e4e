package relock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// barring is a Limiter that lets nothing through.
type barring struct{}

func (barring) Allow() error       { return errors.New("too many requests") }
func (barring) ReportResult(error) {}

// unsent are the ways in which a command fails before it is sent. Each has a client that fails so, of a real server, or
// of a miniredis of the test's own.
var unsent = []struct {
	name   string
	client func(t *testing.T, server string, mini *redistest.Backend) redis.UniversalClient

	// pooled: a pipeline does not fail so.
	pooled bool
}{
	{"nothing listens", func(*testing.T, string, *redistest.Backend) redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	}, false},
	{"no such host", func(*testing.T, string, *redistest.Backend) redis.UniversalClient {
		return redis.NewClient(&redis.Options{DialerRetries: 1, Dialer: func(_ context.Context, network, addr string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: network, Err: &net.DNSError{Err: "no such host", Name: addr, IsNotFound: true}}
		}})
	}, false},
	{"a dialer of the application's", func(_ *testing.T, server string, _ *redistest.Backend) redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: server, DialerRetries: 1, Dialer: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("no tunnel")
		}})
	}, false},
	{"a Sentinel without the master", func(_ *testing.T, server string, _ *redistest.Backend) redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: server, DialerRetries: 1, Dialer: func(context.Context, string, string) (net.Conn, error) {
			return nil, redis.Nil
		}})
	}, false},
	{"TLS to a server without it", func(_ *testing.T, _ string, mini *redistest.Backend) redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: mini.Addr, DialerRetries: 1, TLSConfig: &tls.Config{InsecureSkipVerify: true}})
	}, false},
	{"no password", func(_ *testing.T, _ string, mini *redistest.Backend) redis.UniversalClient {
		mini.Miniredis.RequireAuth("secret")
		return redis.NewClient(&redis.Options{Addr: mini.Addr})
	}, false},
	{"the wrong password", func(_ *testing.T, _ string, mini *redistest.Backend) redis.UniversalClient {
		mini.Miniredis.RequireAuth("secret")
		return redis.NewClient(&redis.Options{Addr: mini.Addr, Password: "wrong"})
	}, false},
	{"no such database", func(_ *testing.T, server string, _ *redistest.Backend) redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: server, DB: 99})
	}, false},
	{"a Cluster client of one server", func(_ *testing.T, server string, _ *redistest.Backend) redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server}})
	}, false},
	{"a Cluster without slots", func(t *testing.T, _ string, _ *redistest.Backend) redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{redistest.NewServer(t, "--cluster-enabled", "yes").Addr}})
	}, false},
	{"no Sentinel there", func(_ *testing.T, server string, _ *redistest.Backend) redis.UniversalClient {
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{server}, MaxRetries: -1, DialerRetries: 1})
	}, false},
	{"loading", func(_ *testing.T, _ string, mini *redistest.Backend) redis.UniversalClient {
		mini.Miniredis.SetError("LOADING Redis is loading the dataset in memory")
		return redis.NewClient(&redis.Options{Addr: mini.Addr})
	}, false},
	{"a Limiter", func(_ *testing.T, server string, _ *redistest.Backend) redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: server, Limiter: barring{}})
	}, false},
	{"OnConnect", func(_ *testing.T, server string, _ *redistest.Backend) redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: server, OnConnect: func(context.Context, *redis.Conn) error { return errors.New("no") }})
	}, false},
	{"a pool in use", func(t *testing.T, server string, _ *redistest.Backend) redis.UniversalClient {
		rdb := redis.NewClient(&redis.Options{Addr: server, PoolSize: 1, MaxActiveConns: 1, PoolTimeout: 10 * time.Millisecond})
		conn := rdb.Conn()
		require.NoError(t, conn.Ping(t.Context()).Err())
		t.Cleanup(func() { _ = conn.Close() })
		return rdb
	}, true},
}

// What was never sent is not undone, and Close has nothing to wait for. Those who find another way add it above.
func TestClose_ReturnsAtOnceAfterALockThatWasNeverSent(t *testing.T) {
	t.Parallel()
	redistest.Timed(t)
	server := redistest.NewServer(t)
	for _, way := range unsent {
		for _, locks := range []int{1, 20} { // the latter by the pipeline
			for _, pipelined := range []bool{true, false} {
				if pipelined && way.pooled {
					continue
				}
				t.Run(fmt.Sprintf("%s, %d, pipelined %t", way.name, locks, pipelined), func(t *testing.T) {
					rdb := way.client(t, server.Addr, redistest.Mini(t))
					t.Cleanup(func() { _ = rdb.Close() })
					var opts []relock.ClientOption
					if !pipelined {
						opts = append(opts, relock.WithoutPipelining())
					}
					c := relock.LocksOn(t, rdb, opts...)
					id := c.ID()
					var all sync.WaitGroup
					for i := range locks {
						m := c.Mutex(redistest.Key(t) + fmt.Sprint(i))
						all.Go(func() {
							if err := m.Lock(t.Context()); err == nil {
								t.Error("it has got the lock")
							}
						})
					}
					all.Wait()
					require.Empty(t, c.Undoing(0))
					require.Equal(t, id, c.ID())
					began := time.Now()
					require.NoError(t, c.Close())
					require.Less(t, time.Since(began), soonClosed)
				})
			}
		}
	}
}

// A dial that is not over when the Lock is given up leaves a doubt: go-redis sends the command if it gets a connection.
// Close waits for two tries, as it does where connections are refused.
func TestClose_DoesNotWaitForADialThatTakesLong(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		rdb := redis.NewClient(redistest.Options(b.Addr, func(o *redis.Options) {
			o.Dialer = func(context.Context, string, string) (net.Conn, error) { // as that for TLS
				time.Sleep(20 * time.Second)
				return nil, errors.New("no answer to the handshake")
			}
		}))
		c := relock.LocksOn(t, rdb)
		require.Error(t, c.Mutex("name").Lock(t.Context()))
		began := time.Now()
		require.NoError(t, c.Close())
		require.Less(t, time.Since(began), 3*c.Patience())
		time.Sleep(time.Hour) // what go-redis still tries is over then
		_ = rdb.Close()
	})
}
