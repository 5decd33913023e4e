package redisexec

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/redistest"
)

// pipeOn returns the pipeline of x to rdb.
func pipeOn(t *testing.T, x *Executor, rdb *redis.Client) *pipeline {
	t.Helper()
	redistest.NeedsPipelining(t)
	return x.engineAt(rdb).shared.pipe
}

// lineUp submits n commands of a script for key to p, which are one batch. Nobody writes.
func lineUp(t *testing.T, p *pipeline, s *Script, key string, n int) []*call {
	t.Helper()
	cmds := make([]*call, n)
	p.mu.Lock()
	require.False(t, p.writing)
	p.writing = true
	p.mu.Unlock()
	for i := range cmds {
		cmds[i] = newCall(t.Context(), s, true, []any{key}, nil)
		p.submit(cmds[i])
	}
	p.goroutines.Go(p.write)
	return cmds
}

func TestPipeline_CommandsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb := b.Client(t)
		p := pipeOn(t, executorOn(t, rdb), rdb)
		for i, cmd := range lineUp(t, p, counting, redistest.Key(t), 500) { // one batch, in two writes
			a := cmd.answer(t.Context())
			require.NoError(t, a.err)
			require.EqualValues(t, i+1, a.value)
		}
	})
}

func TestPipeline_EachCallerGetsItsOwnAnswer(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		x, key := executorOn(t, b.Client(t)), []any{redistest.Key(t)}
		echo := NewScript("return tonumber(ARGV[1])")
		var callers sync.WaitGroup
		for i := range 8 * crowd {
			callers.Go(func() {
				for n := range 50 {
					own := int64(1000*i + n)
					answer, out := x.Run(context.Background(), CallOptions{}, echo, key, own)
					assert.NoError(t, out.Err)
					assert.Equal(t, own, answer)
				}
			})
		}
		callers.Wait()
	})
}

func TestPipeline_WordsAreWrittenAsGoRedisWritesThem(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, text := b.Client(t), "text\r\n"
		words := []any{"", text, &text, 0, -7, int64(1 << 40), uint8(7), 1.5}
		cmd := newCall(t.Context(), NewScript("return ARGV"), true, []any{redistest.Key(t)}, words)
		pipeOn(t, executorOn(t, rdb), rdb).submit(cmd)
		a := cmd.answer(t.Context())
		require.NoError(t, a.err)
		same, err := rdb.Eval(t.Context(), "return ARGV", nil, words...).Result()
		require.NoError(t, err)
		require.Equal(t, same, a.value)
	})
}

// counted is a Limiter that counts.
type counted struct{ asked, reported, failed atomic.Int64 }

func (c *counted) Allow() error { c.asked.Add(1); return nil }

func (c *counted) ReportResult(err error) {
	if c.reported.Add(1); err != nil {
		c.failed.Add(1)
	}
}

func TestPipeline_LimiterIsAskedForEachBatch(t *testing.T) {
	t.Parallel()
	relay, limiter := redistest.NewRelay(t, redistest.Mini(t).Addr), new(counted)
	rdb := redis.NewClient(redistest.Options(relay.Addr, func(o *redis.Options) { o.Limiter = limiter }))
	t.Cleanup(func() { _ = rdb.Close() })
	p := pipeOn(t, executorOn(t, rdb), rdb)
	run := func() error {
		cmd := newCall(t.Context(), idle, true, []any{redistest.Key(t)}, nil)
		p.submit(cmd)
		return cmd.answer(t.Context()).err
	}
	for n := range int64(3) {
		require.NoError(t, run())
		require.Equal(t, n+1, limiter.asked.Load())
		require.Equal(t, n+1, limiter.reported.Load())
		require.Zero(t, limiter.failed.Load())
	}
	relay.DropReply(runsOf(idle))
	require.Error(t, run())
	require.EqualValues(t, 4, limiter.reported.Load())
	require.EqualValues(t, 1, limiter.failed.Load())
}

func TestPipeline_OldConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(o *redis.Options){
		"lifetime":  func(o *redis.Options) { o.ConnMaxLifetime = time.Minute },
		"idle time": func(o *redis.Options) { o.ConnMaxIdleTime = time.Minute },
	} {
		t.Run(name, func(t *testing.T) {
			redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
				rdb := redis.NewClient(redistest.Options(b.Addr, set))
				t.Cleanup(func() { _ = rdb.Close() })
				p := pipeOn(t, executorOn(t, rdb), rdb)
				run := func() *wire {
					cmd := newCall(t.Context(), idle, true, []any{redistest.Key(t)}, nil)
					p.submit(cmd)
					require.NoError(t, cmd.answer(t.Context()).err)
					return p.wire
				}
				first := run()
				time.Sleep(59 * time.Second)
				require.Same(t, first, run())
				time.Sleep(time.Minute)
				require.NotSame(t, first, run())
			})
		})
	}
}

func TestPipeline_NoticesWhenItDialsThatTheApplicationHasClosedItsClient(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb := clientOf(t, b.Addr)
		p := pipeOn(t, executorOn(t, rdb), rdb)
		require.NoError(t, rdb.Close())
		a := lineUp(t, p, idle, redistest.Key(t), 1)[0].answer(t.Context())
		require.ErrorIs(t, a.err, redis.ErrClosed)
	})
}

// A lone command would leave the end of its wait on the connection, where nothing would take it away.
func TestPipeline_ConnectionWithoutDeadlinesKeepsNone(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(o *redis.Options){
		"reads":  func(o *redis.Options) { o.ReadTimeout = -2 },
		"writes": func(o *redis.Options) { o.WriteTimeout = -2 },
	} {
		t.Run(name, func(t *testing.T) {
			redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
				rdb := redis.NewClient(redistest.Options(b.Addr, set))
				t.Cleanup(func() { _ = rdb.Close() })
				x := executorOn(t, rdb)
				w := loneOn(t, x, rdb)
				_, out := x.Run(t.Context(), once, idle, []any{redistest.Key(t)})
				require.NoError(t, out.Err)
				time.Sleep(2 * x.Patience)
				require.NoError(t, lineUp(t, w.pipe, idle, redistest.Key(t), 1)[0].answer(t.Context()).err)
				require.Same(t, w, w.pipe.wire, "the same connection is used")
			})
		})
	}
}

// The application's OnConnect may give up a command, and ignore that. Its answer comes when the connection is the pipeline's.
func TestPipeline_AnswerThatOnConnectLeftIsNotTakenForAnother(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay := redistest.NewRelay(t, b.Addr)
		stopped := relay.Block(redistest.Named("echo"))
		rdb := redis.NewClient(redistest.Options(relay.Addr, func(o *redis.Options) {
			o.ContextTimeoutEnabled = true
			o.OnConnect = func(ctx context.Context, cn *redis.Conn) error {
				ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				defer cancel()
				_ = cn.Echo(ctx, "late").Err()
				stopped.Release()
				return nil
			}
		}))
		t.Cleanup(func() { _ = rdb.Close() })
		answer, out := executorOn(t, rdb).Run(t.Context(), CallOptions{Attempts: 3}, idle, []any{redistest.Key(t)})
		require.NoError(t, out.Err)
		require.EqualValues(t, 1, answer)
	})
}

func TestPipeline_NegativeDialTimeoutIsNone(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(redistest.Options(redistest.Mini(t).Addr, func(o *redis.Options) {
		o.Dialer, o.DialTimeout = redistest.Dial, -1
	}))
	t.Cleanup(func() { _ = rdb.Close() })
	_, out := executorOn(t, rdb).Run(t.Context(), once, idle, []any{redistest.Key(t)})
	require.NoError(t, out.Err)
}

// faulty is a connection of an application with faults.
type faulty struct {
	net.Conn
	write, read func()
	short       atomic.Bool // the next write loses its last byte, and does not say so
}

func (f *faulty) Write(b []byte) (int, error) {
	if f.write != nil {
		f.write()
	}
	if f.short.CompareAndSwap(true, false) {
		return f.Conn.Write(b[:len(b)-1])
	}
	return f.Conn.Write(b)
}

func (f *faulty) Read(b []byte) (int, error) {
	if f.read != nil {
		f.read()
	}
	return f.Conn.Read(b)
}

func TestPipeline_PanicOfTheConnectionEndsTheConnectionOnly(t *testing.T) {
	t.Parallel()
	panics := func() { panic("a tunnel") }
	for name, f := range map[string]*faulty{"writes": {write: panics}, "reads": {read: panics}} {
		for _, alone := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", alone: ", alone), func(t *testing.T) {
				rdb := redistest.Mini(t).Client(t)
				x := executorOn(t, rdb)
				w := loneOn(t, x, rdb)
				w.Conn = &faulty{Conn: w.Conn, write: f.write, read: f.read}
				var panicked *goroutine.Panic
				if alone {
					_, out := x.Run(t.Context(), once, idle, []any{redistest.Key(t)})
					require.ErrorAs(t, out.Err, &panicked)
					require.True(t, out.Ambiguous)
				} else {
					a := lineUp(t, w.pipe, idle, redistest.Key(t), 1)[0].answer(t.Context())
					require.ErrorAs(t, a.err, &panicked)
				}
				_, out := x.Run(t.Context(), once, idle, []any{redistest.Key(t)})
				require.NoError(t, out.Err)
			})
		}
	}
}

// Otherwise the next command would be written behind a part of this one.
func TestPipeline_ShortWriteEndsTheConnection(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb := b.Client(t)
		x := executorOn(t, rdb)
		w := loneOn(t, x, rdb)
		f := &faulty{Conn: w.Conn}
		f.short.Store(true)
		w.Conn = f
		_, out := x.Run(t.Context(), once, idle, []any{redistest.Key(t)})
		require.ErrorContains(t, out.Err, "short write")
		require.True(t, out.Ambiguous)
		require.Error(t, w.err)
	})
}

// credentials is a provider that counts its subscribers.
type credentials struct{ subscribers atomic.Int64 }

func (c *credentials) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	c.subscribers.Add(1)
	return auth.NewBasicCredentials("app", "secret"), func() error { c.subscribers.Add(-1); return nil }, nil
}

func TestPipeline_ConnectionThatPanicsInOnConnectLeavesNoSubscriber(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		b.Miniredis.RequireUserAuth("app", "secret")
		c := new(credentials)
		rdb := redis.NewClient(redistest.Options(b.Addr, func(o *redis.Options) {
			o.StreamingCredentialsProvider = c
			o.OnConnect = func(context.Context, *redis.Conn) error { panic("no client") }
		}))
		t.Cleanup(func() { _ = rdb.Close() })
		a := lineUp(t, pipeOn(t, executorOn(t, rdb), rdb), idle, redistest.Key(t), 1)[0].answer(t.Context())
		var panicked *goroutine.Panic
		require.ErrorAs(t, a.err, &panicked)
		require.Zero(t, c.subscribers.Load())
	})
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
