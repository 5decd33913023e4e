package redisexec

import (
	"context"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redistest"
)

// loneOn runs a script with x, so that a later command that is alone is sent by its caller. It returns the wire.
func loneOn(t *testing.T, x *Executor, rdb *redis.Client) *wire {
	t.Helper()
	p := pipeOn(t, x, rdb)
	_, out := x.Run(t.Context(), CallOptions{Attempts: 3}, idle, []any{redistest.Key(t)})
	require.NoError(t, out.Err)
	redistest.Eventually(t, "nobody reads", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.wire.reading && !p.writing
	})
	return p.wire
}

func TestLone_CommandNeedsNoGoroutineWhateverItsContext(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		rdb := b.Client(t)
		x := executorOn(t, rdb)
		w := loneOn(t, x, rdb)
		w.pipe.goroutines.Wait(t.Context())
		for _, ctx := range []context.Context{context.Background(), t.Context()} {
			for range 3 {
				require.Same(t, w, w.pipe.reserve(time.Now().Add(time.Minute)))
				a := w.ask(ctx, true, newCall(ctx, idle, true, []any{redistest.Key(t)}, nil))
				require.EqualValues(t, 1, a.value)
				require.Zero(t, w.pipe.goroutines.Len())
			}
			answers := x.engineAt(rdb).shared.answers.Load()
			_, out := x.Run(ctx, once, idle, []any{redistest.Key(t)})
			require.NoError(t, out.Err)
			require.Equal(t, answers+1, x.engineAt(rdb).shared.answers.Load())
			require.Zero(t, w.pipe.goroutines.Len(), "nor by a call")
		}
	})
}

// dated is a connection that notices when its writes are interrupted.
type dated struct {
	net.Conn
	interrupted atomic.Bool
}

func (d *dated) SetDeadline(at time.Time) error {
	d.interrupted.Store(at.Equal(longAgo))
	return d.Conn.SetDeadline(at)
}

func (d *dated) SetWriteDeadline(at time.Time) error {
	d.interrupted.Store(at.Equal(longAgo))
	return d.Conn.SetWriteDeadline(at)
}

func TestLone_CommandIsLeftWhenItsCallEndsAndKeepsItsPlace(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b, first, second)
		x, key := executorOn(t, rdb), redistest.Key(t)
		x.Patience = time.Minute
		w := loneOn(t, x, rdb)
		conn := &dated{Conn: w.Conn}
		w.Conn = conn
		stopped := stuck(t, x, relay, key) // it returns while the command is stopped
		require.False(t, conn.interrupted.Load(), "a write of another command may be under way")
		waits := begun(t, x, once, second, key)
		select {
		case <-waits:
			require.Fail(t, "it has overtaken")
		case <-time.After(100 * time.Millisecond):
		}
		stopped.Release()
		require.NoError(t, redistest.Receive(t, waits).Err)
		require.Same(t, w, w.pipe.wire, "the same connection is used")
	})
}

func TestLone_CallThatEndsByTheClockEndsInTime(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b, first)
		x, key := executorOn(t, rdb), redistest.Key(t)
		x.Patience = time.Minute
		w := loneOn(t, x, rdb)
		stopped := relay.Block(runsOf(first))
		defer stopped.Release()
		_, out := x.Run(x.limits.After(50*time.Millisecond), once, first, []any{key})
		require.ErrorIs(t, out.Err, lockerr.ErrNoAnswer)
		require.True(t, out.Ambiguous)
		require.NoError(t, w.err)
	})
}

// The first copy is answered after its time, and no other is.
func TestLone_AnswerCountsHoweverLateItComes(t *testing.T) {
	t.Parallel()
	eachContextOn(t, func(t *testing.T, b *redistest.Backend, ctx context.Context) {
		relay, rdb := relayedTo(t, b, first)
		x, key := executorOn(t, rdb), redistest.Key(t)
		loneOn(t, x, rdb)
		early := relay.Block(runsOf(first))
		type ended struct {
			value any
			out   Outcome
		}
		done, asked := make(chan ended, 1), x.Now()
		go func() {
			value, out := x.Run(ctx, CallOptions{Attempts: 2, Patience: time.Second, MaxPatience: time.Minute}, first, []any{key})
			done <- ended{value, out}
		}()
		redistest.Receive(t, early.Caught())
		second, later := x.Now(), relay.Block(runsOf(first))
		defer later.Release()
		redistest.Receive(t, later.Caught())
		early.Release()
		is := redistest.Receive(t, done)
		require.NoError(t, is.out.Err)
		require.Equal(t, "first", is.value)
		require.True(t, is.out.Ambiguous)
		require.GreaterOrEqual(t, is.out.Sent.Mono, asked.Mono)
		require.Less(t, is.out.Sent.Mono, second.Mono)
	})
}

// A goroutine writes them meanwhile, and the answers come in the same order.
func TestLone_CommandHoldsUpNoWriteOfOthers(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b, first, second)
		x := executorOn(t, rdb)
		x.Patience = time.Minute
		w := loneOn(t, x, rdb)
		stopped := relay.Block(runsOf(first))
		all := []<-chan Outcome{begun(t, x, once, first, redistest.Key(t))}
		redistest.Receive(t, stopped.Caught())
		for range 2 {
			all = append(all, begun(t, x, once, second, redistest.Key(t)))
		}
		redistest.Eventually(t, "all are written", func() bool {
			w.pipe.mu.Lock()
			defer w.pipe.mu.Unlock()
			return w.inFlight == 3 && !w.pipe.writing
		})
		stopped.Release()
		for _, answered := range all {
			require.NoError(t, redistest.Receive(t, answered).Err)
		}
	})
}

// A proxy that sends something by itself must not have it taken for the answer to the next command.
func TestLone_ConnectionWithMoreThanWasAskedForIsGivenUp(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b, idle)
		x := executorOn(t, rdb)
		w := loneOn(t, x, rdb)
		relay.ReplyWith(":1\r\n:2\r\n", runsOf(idle))
		_, out := x.Run(t.Context(), once, idle, []any{redistest.Key(t)})
		require.NoError(t, out.Err)
		require.ErrorIs(t, w.err, errUnasked)
		answer, out := x.Run(t.Context(), once, idle, []any{redistest.Key(t)})
		require.NoError(t, out.Err)
		require.EqualValues(t, 1, answer)
	})
}

// hanging is a connection whose writes hang.
type hanging struct {
	net.Conn
	wrote atomic.Bool
	until chan struct{}
}

func (h *hanging) Write([]byte) (int, error) {
	h.wrote.Store(true)
	<-h.until
	return 0, os.ErrDeadlineExceeded
}

func (h *hanging) SetDeadline(at time.Time) error {
	if at.Equal(longAgo) {
		close(h.until)
	}
	return nil
}

func TestLone_WriteThatHangsEndsWithItsCall(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb := b.Client(t)
		x := executorOn(t, rdb)
		w := loneOn(t, x, rdb)
		h := &hanging{Conn: w.Conn, until: make(chan struct{})}
		w.Conn = h
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan Outcome, 1)
		go func() {
			_, out := x.Run(ctx, once, idle, []any{redistest.Key(t)})
			ended <- out
		}()
		redistest.Eventually(t, "it is written", h.wrote.Load)
		cancel()
		out := redistest.Receive(t, ended)
		require.ErrorIs(t, out.Err, context.Canceled)
		require.True(t, out.Ambiguous, "something may have been written")
		require.Error(t, w.err)
		_, out = x.Run(t.Context(), once, idle, []any{redistest.Key(t)})
		require.NoError(t, out.Err)
	})
}

func TestLone_CloseEndsTheWaitForAnAnswer(t *testing.T) {
	t.Parallel()
	relay, rdb := relayedTo(t, redistest.Mini(t), first)
	x := executorOn(t, rdb)
	x.Patience = time.Minute
	loneOn(t, x, rdb)
	stopped := stuck(t, x, relay, redistest.Key(t))
	defer stopped.Release()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	x.Close(ctx)
	require.Less(t, time.Since(began), 10*time.Second)
}

// overdue is a context of an application: it does not end at its deadline. So does one with a deadline without a reading of the
// monotonic clock, after a step of the wall clock.
type overdue struct {
	context.Context
	end time.Time
}

func (o overdue) Deadline() (time.Time, bool) { return o.end, true }

func TestLone_CallWhoseContextIsOverdueEnds(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b, first)
		x := executorOn(t, rdb)
		loneOn(t, x, rdb)
		stopped := relay.Block(runsOf(first))
		defer stopped.Release()
		ended := make(chan Outcome, 1)
		go func() {
			ctx := overdue{context.Background(), time.Now().Add(100 * time.Millisecond)}
			_, out := x.Run(ctx, once, first, []any{redistest.Key(t)})
			ended <- out
		}()
		require.ErrorIs(t, redistest.Receive(t, ended).Err, lockerr.ErrNoAnswer)
	})
}

func TestLone_CallWhoseTimeIsOverDoesNotEndTheConnection(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb := b.Client(t)
		x := executorOn(t, rdb)
		w := loneOn(t, x, rdb)
		_, out := x.Run(overdue{context.Background(), time.Now()}, once, idle, []any{redistest.Key(t)})
		require.NoError(t, out.Err)
		require.NoError(t, w.err)
	})
}

// tunnel is a connection that sends what it is given, and reports a failure, as one of WebSockets may that is interrupted.
type tunnel struct{ net.Conn }

func (t tunnel) Write(b []byte) (int, error) {
	_, _ = t.Conn.Write(b)
	return 0, os.ErrDeadlineExceeded
}

func TestLone_OutcomeIsUnknownAfterAFailedWrite(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		loadScripts(t, rdb, counting)
		x := executorOn(t, rdb)
		w := loneOn(t, x, rdb)
		w.Conn = tunnel{w.Conn}
		_, out := x.Run(t.Context(), once, counting, []any{key})
		require.Error(t, out.Err)
		require.True(t, out.Ambiguous)
		redistest.Eventually(t, "it is executed", func() bool { return rdb.Exists(t.Context(), key).Val() == 1 })
	})
}
