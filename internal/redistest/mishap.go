package redistest

import (
	"errors"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Way is the connection of a client to a real server, through a relay, for one script.
type Way struct {
	Server *Server
	Relay  *Relay
	Admin  *redis.Client // without the relay
	Rdb    *redis.Client
	Clear  func() // undoes the mishap

	tb   testing.TB
	runs Match // of the script
}

// NewWay returns the way of the script with this source, which is loaded. If the mishap requires it, go-redis has a pool of
// one connection.
func NewWay(tb testing.TB, m *Mishap, source string) *Way {
	tb.Helper()
	server := NewServer(tb)
	w := &Way{
		Server: server, Relay: NewRelay(tb, server.Addr), Admin: server.Client(tb), Clear: func() {},
		tb: tb, runs: Script(source),
	}
	opts := &redis.Options{Addr: w.Relay.Addr, DialerRetries: 1}
	if m.Narrow {
		opts.PoolSize, opts.PoolTimeout = 1, 20*time.Millisecond
	}
	w.Rdb = redis.NewClient(opts)
	tb.Cleanup(func() { _ = w.Rdb.Close() })
	must(tb, w.Admin.ScriptLoad(tb.Context(), source).Err())
	must(tb, w.Rdb.Ping(tb.Context()).Err()) // from here on it is connected
	return w
}

// A Mishap is a fault that affects one run of a script, or every run while it lasts.
type Mishap struct {
	Befall   func(w *Way)
	Is       []error // the run fails with one of these
	Silent   bool    // the run fails by a time-out, of go-redis or of the caller
	Means    Meaning
	Executed bool // at the latest after the end of the fault
	Lasts    bool
	Narrow   bool // go-redis has a pool of one connection
}

// Mishaps by name.
var Mishaps = map[string]*Mishap{
	"a connection that ends after the execution": {
		Befall: func(w *Way) { w.Relay.DropReply(w.runs) },
		Is:     []error{io.EOF}, Means: Unknown, Executed: true,
	},
	"a connection that ends before it": {
		Befall: func(w *Way) { w.Relay.HoldBack(w.runs) },
		Is:     []error{io.EOF}, Means: Unknown,
	},
	"a reply that does not come": {
		Befall: func(w *Way) { w.Relay.LoseReply(w.runs) },
		Silent: true, Means: Unknown, Executed: true,
	},
	"a command that does not arrive": {
		Befall: func(w *Way) { w.Relay.HoldBackSilently(w.runs) },
		Silent: true, Means: Unknown,
	},
	"a command that arrives late": {
		Befall: func(w *Way) { w.Clear = w.Relay.Block(w.runs).Release },
		Silent: true, Means: Unknown, Executed: true,
	},
	"a server that stands still": {
		Befall: func(w *Way) {
			must(w.tb, w.Server.Pause())
			w.Clear = func() { must(w.tb, w.Server.Resume()) }
		},
		Silent: true, Means: Unknown, Executed: true, Lasts: true,
	},
	"nobody listens": {
		Befall: func(w *Way) {
			must(w.tb, w.Relay.Refuse(true))
			w.Relay.Cut()
			Eventually(w.tb, "the old connections have been found dead", func() bool {
				return errors.Is(w.Rdb.Ping(w.tb.Context()).Err(), syscall.ECONNREFUSED)
			})
			w.Clear = func() { must(w.tb, w.Relay.Refuse(false)) }
		},
		Is: []error{syscall.ECONNREFUSED}, Means: Transient, Lasts: true,
	},
	"a pool that is used up": {
		Befall: func(w *Way) {
			pop := make(chan error, 1)
			go func() { pop <- w.Rdb.BLPop(w.tb.Context(), time.Minute, "work").Err() }()
			Eventually(w.tb, "blocked", func() bool {
				return w.Rdb.PoolStats().TotalConns == 1 && w.Rdb.PoolStats().IdleConns == 0
			})
			w.Clear = func() {
				must(w.tb, w.Admin.LPush(w.tb.Context(), "work", "done").Err())
				must(w.tb, Receive(w.tb, pop))
			}
		},
		Is: []error{redis.ErrPoolTimeout}, Means: Transient, Lasts: true, Narrow: true,
	},
	"a client that the application has closed": {
		Befall: func(w *Way) { must(w.tb, w.Rdb.Close()) },
		Is:     []error{redis.ErrClosed}, Means: Forbidden, Lasts: true,
	},
}

// NewFullServer starts a server that accepts no client except the returned one. Its error depends on whether it is a node of
// a Cluster. If a client has sent something already, it may or may not receive the error before the connection is closed.
func NewFullServer(tb testing.TB, node bool) (*Server, *redis.Client) {
	tb.Helper()
	var args []string
	if node {
		args = []string{"--cluster-enabled", "yes"}
	}
	server := NewServer(tb, args...)
	admin := server.Client(tb)
	if node {
		must(tb, admin.ClusterAddSlotsRange(tb.Context(), 0, 16383).Err())
	}
	Eventually(tb, "up", func() bool { return admin.Exists(tb.Context(), "key").Err() == nil })
	must(tb, admin.ConfigSet(tb.Context(), "maxclients", "1").Err())
	return server, admin
}
