package redistest

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
)

// TwoServers are two servers behind one name, which leads to the first, and after a failover to the second. The first
// keeps its connections.
type TwoServers struct {
	First, Next *Server

	tb    testing.TB
	leads atomic.Pointer[Server]
}

// NewTwoServers starts both for the length of a test, see [NewServer].
func NewTwoServers(tb testing.TB) *TwoServers {
	tb.Helper()
	s := &TwoServers{First: NewServer(tb), Next: NewServer(tb), tb: tb}
	s.leads.Store(s.First)
	return s
}

// Client returns a client for the name.
func (s *TwoServers) Client() *redis.Client {
	rdb := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", s.leads.Load().Addr)
	}})
	s.tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Failover makes the first server a replica of the second, or of a master that it cannot reach.
func (s *TwoServers) Failover(cutOff bool) {
	s.tb.Helper()
	s.leads.Store(s.Next)
	rdb := s.First.Client(s.tb)
	host, port, err := net.SplitHostPort(s.Next.Addr)
	if err != nil {
		s.tb.Fatal(err)
	}
	if cutOff {
		port = "1"
	}
	if err := rdb.Do(s.tb.Context(), "replicaof", host, port).Err(); err != nil {
		s.tb.Fatal(err)
	}
	Eventually(s.tb, "replicating", func() bool {
		return cutOff || strings.Contains(rdb.Info(s.tb.Context(), "replication").Val(), "master_link_status:up")
	})
}

// OneMaster is a Cluster client whose map has one server for all slots.
type OneMaster struct {
	*redis.ClusterClient
	addr atomic.Pointer[string]
}

// NewOneMaster returns a client whose map has the server at addr for all slots.
func NewOneMaster(tb testing.TB, addr string) *OneMaster {
	tb.Helper()
	c := &OneMaster{}
	c.MoveTo(addr)
	c.ClusterClient = redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: *c.addr.Load()}}}}, nil
		},
	})
	tb.Cleanup(func() { _ = c.ClusterClient.Close() })
	return c
}

// MoveTo makes the client use another address from now on.
func (c *OneMaster) MoveTo(addr string) { c.addr.Store(&addr) }
