package relock

import (
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// way is that of a command to a real server and back.
type way struct {
	t      *testing.T
	server *redistest.Server
	relay  *redistest.Relay
	admin  *redis.Client // past the relay
	rdb    *redis.Client
	clear  func() // undoes the mishap
}

// A mishap befalls one acquisition on its way, or every one while it lasts.
type mishap struct {
	befall   func(w *way)
	is       []error // one of them
	want     redisexec.Verdict
	executed bool // once the way is clear, at the latest
	lasts    bool
	narrow   bool // go-redis has one pool, of one connection
}

var acquires = redistest.Script(protocol.AcquireScript.Source)

var mishaps = map[string]mishap{
	"a connection that ends after the execution": {
		befall: func(w *way) { w.relay.DropReply(acquires) },
		is:     []error{io.EOF}, want: redisexec.Unknown, executed: true,
	},
	"a connection that ends before it": {
		befall: func(w *way) { w.relay.HoldBack(acquires) },
		is:     []error{io.EOF}, want: redisexec.Unknown,
	},
	"a reply that does not come": {
		befall: func(w *way) { w.relay.LoseReply(acquires) },
		is:     noAnswers, want: redisexec.Unknown, executed: true,
	},
	"a command that does not arrive": {
		befall: func(w *way) { w.relay.HoldBackSilently(acquires) },
		is:     noAnswers, want: redisexec.Unknown,
	},
	"a command that arrives late": {
		befall: func(w *way) { w.clear = w.relay.Block(acquires).Release },
		is:     noAnswers, want: redisexec.Unknown, executed: true,
	},
	"a server that stands still": {
		befall: func(w *way) {
			require.NoError(w.t, w.server.Pause())
			w.clear = func() { require.NoError(w.t, w.server.Resume()) }
		},
		is: noAnswers, want: redisexec.Unknown, executed: true, lasts: true,
	},
	"nobody listens": {
		befall: func(w *way) {
			require.NoError(w.t, w.relay.Refuse(true))
			w.relay.Cut()
			require.Eventually(w.t, func() bool { // the old connections have been found dead
				return redisexec.Judge(w.rdb.Ping(w.t.Context()).Err()) == redisexec.Transient
			}, faultPatience, faultPoll)
			w.clear = func() { require.NoError(w.t, w.relay.Refuse(false)) }
		},
		is: []error{syscall.ECONNREFUSED}, want: redisexec.Transient, lasts: true,
	},
	"a pool that is used up": {
		befall: func(w *way) {
			pop := make(chan error, 1)
			go func() { pop <- w.rdb.BLPop(w.t.Context(), time.Minute, "work").Err() }()
			eventually(w.t, "blocked", func() bool {
				return w.rdb.PoolStats().TotalConns == 1 && w.rdb.PoolStats().IdleConns == 0
			})
			w.clear = func() {
				require.NoError(w.t, w.admin.LPush(w.t.Context(), "work", "done").Err())
				require.NoError(w.t, receives(w.t, pop))
			}
		},
		is: []error{redis.ErrPoolTimeout}, want: redisexec.Transient, lasts: true, narrow: true,
	},
	"a client that the application has closed": {
		befall: func(w *way) { require.NoError(w.t, w.rdb.Close()) },
		is:     []error{redis.ErrClosed}, want: redisexec.Forbidden, lasts: true,
	},
}

// noAnswers is noticed by go-redis or by the executor, whichever looks first.
var noAnswers = []error{lockerr.NoAnswer, os.ErrDeadlineExceeded}

func (c *mishap) requireIs(t *testing.T, err error) {
	t.Helper()
	require.True(t, slices.ContainsFunc(c.is, func(is error) bool { return errors.Is(err, is) }), "%T: %v", err, err)
}

func newWay(t *testing.T, narrow bool) *way {
	t.Helper()
	server := redistest.NewServer(t)
	w := &way{t: t, server: server, relay: redistest.NewRelay(t, server.Addr), admin: server.Client(t), clear: func() {}}
	opts := &redis.Options{Addr: w.relay.Addr, DialerRetries: 1}
	if narrow {
		opts.PoolSize, opts.PipelinePoolSize, opts.PoolTimeout = 1, -1, 20*time.Millisecond
	}
	w.rdb = redis.NewClient(opts)
	t.Cleanup(func() { _ = w.rdb.Close() })
	require.NoError(t, w.admin.ScriptLoad(t.Context(), protocol.AcquireScript.Source).Err())
	require.NoError(t, w.rdb.Ping(t.Context()).Err()) // from here on it is connected
	return w
}

func TestAnErrorOfTheNetworkIsJudgedByWhetherTheScriptMayHaveRun(t *testing.T) {
	t.Parallel()
	for name, c := range mishaps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWay(t, c.narrow)
			b := newBench(t, w.rdb)
			target := b.target(1)
			c.befall(w)
			_, out := b.Acquire(t.Context(), once, target, me, termsOf(WithFencing()))
			c.requireIs(t, out.Err)
			require.Equal(t, c.want, redisexec.Judge(out.Err), "%T: %v", out.Err, out.Err)
			require.Equal(t, !c.want.NotExecuted, out.Ambiguous)
			require.Equal(t, c.want.Permanent, out.Permanent)
			w.clear()
			ran := func() bool { return w.admin.Exists(t.Context(), target.Counters[0]).Val() == 1 }
			if c.executed {
				eventually(t, "executed", ran)
			} else {
				throughout(t, aWhile, func() bool { return !ran() }, "it was executed")
			}
		})
	}
}

func TestWhoLocksIsToldOfAMishapThatLastsAndNotOfOneThatPasses(t *testing.T) {
	t.Parallel()
	for name, c := range mishaps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWay(t, c.narrow)
			locks := locksOn(t, w.rdb, WithTTL(time.Second), WithRenewInterval(time.Second/2))
			m := locks.Mutex(redistest.Key(t))
			c.befall(w)
			began := time.Now()
			held, err := m.TryLock(t.Context())
			require.Less(t, time.Since(began), 8*time.Second)
			require.Equal(t, !c.lasts, held, "%v", err)
			if c.lasts {
				c.requireIs(t, err)
				require.ErrorContains(t, err, m.Name())
				require.Zero(t, m.HoldCount())
			} else {
				require.NoError(t, err)
				require.NoError(t, m.Unlock())
			}
			w.clear()
			eventually(t, "nothing is left", func() bool {
				return w.admin.Exists(t.Context(), m.Name()).Val() == 0
			})
			if c.want.Permanent {
				return // a client that is closed stays so
			}
			eventually(t, "all is well", func() bool { return m.Lock(t.Context()) == nil })
			requireUnlocked(t, m)
		})
	}
}

// What a full server says depends on whether it is a node of a Cluster. Whether that arrives
// before it hangs up on somebody who has sent something already is chance.
func TestAFullServerIsWorthAnotherTry(t *testing.T) {
	t.Parallel() // go-redis takes a second to give up
	for name, args := range map[string][]string{"alone": nil, "a node": {"--cluster-enabled", "yes"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.NewServer(t, args...)
			admin := server.Client(t)
			if args != nil {
				require.NoError(t, admin.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
			}
			eventually(t, "up", func() bool { return admin.Exists(t.Context(), "key").Err() == nil })
			require.NoError(t, admin.ConfigSet(t.Context(), "maxclients", "1").Err())

			conn, err := net.Dial("tcp", server.Addr)
			require.NoError(t, err)
			defer conn.Close()
			said, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.Contains(t, string(said), "-ERR max number of clients")
			require.Equal(t, redisexec.Transient, redisexec.JudgeReply(strings.TrimSpace(string(said[1:]))), "%s", said)

			rdb := redis.NewClient(&redis.Options{Addr: server.Addr, DialerRetries: 1})
			t.Cleanup(func() { rdb.Close() })
			m := locksOn(t, rdb).Mutex("key", WithFencing())
			_, out := plainOn(t, rdb).Acquire(t.Context(), once, m.target, me, &m.settings.Terms)
			require.Error(t, out.Err)
			v := redisexec.Judge(out.Err)
			require.True(t, v.Resend, "%T: %v", out.Err, out.Err)
			require.False(t, v.Permanent)
			_, err = m.TryLock(t.Context())
			require.Error(t, err)
			require.Zero(t, admin.DBSize(t.Context()).Val(), "something was executed")

			require.NoError(t, admin.ConfigSet(t.Context(), "maxclients", "1000").Err())
			eventually(t, "let in", func() bool { return m.Lock(t.Context()) == nil })
			requireUnlocked(t, m)
		})
	}
}
