package tests

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// far is a Redis that is a round trip away, in a bubble. What is sent arrives in order, half a round trip later.
type far struct {
	*redistest.Backend
	rtt   atomic.Int64 // of what is sent
	near  bool         // to connect takes no time: it is Redis that is slow
	dials atomic.Int64

	mu    sync.Mutex
	conns []*farConn
}

// farConn is one connection to it.
type farConn struct {
	net.Conn              // the client's end
	end       net.Conn    // the other end of that
	server    net.Conn    // to Redis
	forgotten atomic.Bool // nothing arrives any more, and neither end is notified
}

// inBubbleFar runs test with a Redis in a bubble.
func inBubbleFar(t *testing.T, test func(t *testing.T, f *far)) {
	t.Helper()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		f := &far{Backend: b}
		t.Cleanup(func() {
			time.Sleep(2 * time.Minute) // all time-outs of go-redis are over
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, c := range f.conns {
				_, _, _ = c.end.Close(), c.server.Close(), c.Conn.Close()
			}
		})
		test(t, f)
	})
}

// client returns a client of it.
func (f *far) client(t *testing.T) *redis.Client {
	rdb := redis.NewClient(redistest.Options(f.Addr, func(o *redis.Options) {
		o.MaintNotificationsConfig = nil // one round trip more
		o.Dialer = f.dial
	}))
	t.Cleanup(func() {
		f.rtt.Store(0)
		time.Sleep(time.Minute) // in its Close go-redis waits for a sync.Once, which would stop the clock
		_ = rdb.Close()
	})
	return rdb
}

func (f *far) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	f.dials.Add(1)
	if !f.near {
		select {
		case <-time.After(time.Duration(f.rtt.Load())):
		case <-ctx.Done():
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
		}
	}
	server, err := redistest.Dial(ctx, "tcp", f.Addr)
	if err != nil {
		return nil, err
	}
	c := &farConn{server: server}
	c.Conn, c.end = net.Pipe()
	go f.carry(c, c.end, server)
	go f.carry(c, server, c.end)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns = append(f.conns, c)
	return c, nil
}

// carry takes what comes from one end to the other.
func (f *far) carry(c *farConn, from, to net.Conn) {
	type parcel struct {
		bytes []byte
		due   time.Time
	}
	sent := make(chan parcel, 10000)
	go func() {
		defer func() { _ = to.Close() }()
		for p := range sent {
			time.Sleep(time.Until(p.due))
			if !c.forgotten.Load() {
				_, _ = to.Write(p.bytes)
			}
		}
	}()
	defer close(sent)
	for {
		buf := make([]byte, 4096)
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		sent <- parcel{buf[:n], time.Now().Add(time.Duration(f.rtt.Load()) / 2)}
	}
}

// forget has what is connected now be forgotten on the way.
func (f *far) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		c.forgotten.Store(true)
	}
}

// ways are how commands are sent.
var ways = map[string][]relock.ClientOption{"pipelined": nil, "unpipelined": {relock.WithoutPipelining()}}

func TestHold_SurvivesSlowAnswers(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	for name, opts := range ways {
		for _, rtt := range []time.Duration{1200 * time.Millisecond, 4 * time.Second, 9 * time.Second, 10 * time.Second} {
			t.Run(fmt.Sprint(name, rtt), func(t *testing.T) {
				t.Parallel()
				inBubbleFar(t, func(t *testing.T, f *far) {
					f.near = true
					m := locksOn(t, f.client(t), opts...).Mutex("orders")
					require.NoError(t, m.Lock(t.Context()))
					hold := m.Context(t.Context())
					f.rtt.Store(int64(rtt))
					time.Sleep(2 * time.Minute) // until it is known how slow it is
					dials := f.dials.Load()
					time.Sleep(20 * time.Minute)
					require.NoError(t, context.Cause(hold))
					if rtt <= 9*time.Second { // a copy cannot be waited for longer
						require.Equal(t, dials, f.dials.Load(), "a connection that is slow is not closed, nor left for another")
					}
					require.NoError(t, hold.Err())
					f.rtt.Store(0)
					require.NoError(t, m.Unlock())
				})
			})
		}
	}
}

func TestLock_IsHadAtTheFirstTryFarAway(t *testing.T) {
	t.Parallel()
	contexts := map[string]func(t *testing.T) context.Context{
		"endless":     func(*testing.T) context.Context { return context.Background() },
		"cancellable": func(t *testing.T) context.Context { return t.Context() },
	}
	for name, opts := range ways {
		for kind, ctx := range contexts {
			for _, rtt := range []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, 900 * time.Millisecond} {
				t.Run(fmt.Sprint(name, kind, rtt), func(t *testing.T) {
					t.Parallel()
					inBubbleFar(t, func(t *testing.T, f *far) {
						f.rtt.Store(int64(rtt))
						m := locksOn(t, f.client(t), opts...).Mutex("orders")
						began := time.Now()
						locked, err := m.TryLock(ctx(t))
						require.NoError(t, err)
						require.True(t, locked)
						// dial, HELLO, CLIENT SETINFO, CLIENT MAINT_NOTIFICATIONS, EVALSHA, EVAL
						require.LessOrEqual(t, time.Since(began), 7*rtt)
						f.rtt.Store(0)
						require.NoError(t, m.Unlock())
					})
				})
			}
		}
	}
}

// Gateways forget connections on which nothing was sent for some minutes, and notify neither end.
func TestTryLock_GetsTheLockThoughAllConnectionsWereForgotten(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	for name, opts := range ways {
		for _, ctx := range []string{"endless", "cancellable"} {
			t.Run(name+" "+ctx, func(t *testing.T) {
				t.Parallel()
				inBubbleFar(t, func(t *testing.T, f *far) {
					rdb := f.client(t)
					locks := locksOn(t, rdb, opts...)
					use := func() {
						t.Helper()
						with := context.Background()
						if ctx == "cancellable" {
							with = t.Context()
						}
						m := locks.Mutex("orders")
						locked, err := m.TryLock(with)
						require.NoError(t, err)
						require.True(t, locked)
						require.NoError(t, m.Unlock())
					}
					var conns []*redis.Conn
					for range 12 {
						conn := rdb.Conn()
						require.NoError(t, conn.Ping(t.Context()).Err())
						conns = append(conns, conn)
					}
					for _, conn := range conns {
						require.NoError(t, conn.Close())
					}
					_, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error { return p.Ping(t.Context()).Err() })
					require.NoError(t, err)
					use()
					f.forget()
					for range 10 {
						time.Sleep(10 * time.Minute)
						began := time.Now()
						use()
						require.Less(t, time.Since(began), 5*time.Second)
					}
				})
			})
		}
	}
}
