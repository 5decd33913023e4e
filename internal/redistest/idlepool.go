package redistest

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
)

// NewIdlePool returns a client whose pool of one connection is empty, and does not dial: it has given up, and tries once a
// second whether it can.
func NewIdlePool(tb testing.TB) *redis.Client {
	tb.Helper()
	var refused atomic.Int32
	var up atomic.Bool
	rdb := redis.NewClient(&redis.Options{
		Addr: NewServer(tb).Addr, PoolSize: 1, MaxRetries: -1, DialerRetries: 1,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if !up.Load() {
				refused.Add(1)
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	})
	tb.Cleanup(func() { _ = rdb.Close() })
	if err := rdb.Ping(tb.Context()).Err(); err == nil {
		tb.Fatal("a dial that is refused was none")
	}
	Eventually(tb, "a look", func() bool { return refused.Load() == 2 })
	up.Store(true)
	return rdb
}
