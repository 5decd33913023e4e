package redisexec

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redistest"
)

// awaitQuick runs a script until the engine for rdb has its quick connection, and returns that.
func awaitQuick(t *testing.T, x *Executor, rdb *redis.Client) *quick {
	t.Helper()
	redistest.Eventually(t, "a quick connection", func() bool {
		_, out := x.Run(t.Context(), CallOptions{Attempts: 3}, idle, []any{redistest.Key(t)})
		require.NoError(t, out.Err)
		return x.engineAt(rdb).quick.Load() != nil
	})
	return x.engineAt(rdb).quick.Load()
}

func TestQuick_TakesALoneCommandWhateverItsContext(t *testing.T) {
	t.Parallel()
	eachContextOn(t, func(t *testing.T, b *redistest.Backend, ctx context.Context) {
		rdb := b.Client(t)
		x := executorOn(t, rdb)
		q := awaitQuick(t, x, rdb)
		before := x.engineAt(rdb).shared.answers.Load()
		for range 10 {
			_, out := x.Run(ctx, once, idle, []any{redistest.Key(t)})
			require.NoError(t, out.Err)
		}
		require.Equal(t, before, x.engineAt(rdb).shared.answers.Load(), "it went by the lane")
		require.Same(t, q, x.engineAt(rdb).quick.Load())
		require.EqualValues(t, 1, q.rdb.PoolStats().TotalConns)
	})
}

func TestQuick_CommandIsLeftWhenItsCallEndsAndKeepsItsPlace(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b, first, second)
		x, key, too := executorOn(t, rdb), redistest.Key(t), redistest.Key(t)
		x.Patience = time.Minute
		awaitQuick(t, x, rdb)
		stopped := stuck(t, x, relay, key, too) // it returns while the command is stopped
		require.Nil(t, x.engineAt(rdb).quick.Load())
		waits := begun(t, x, once, second, too)
		require.NoError(t, redistest.Receive(t, begun(t, x, once, second, redistest.Key(t))).Err, "of another key")
		select {
		case <-waits:
			require.Fail(t, "it has overtaken")
		case <-time.After(100 * time.Millisecond):
		}
		stopped.Release()
		require.NoError(t, redistest.Receive(t, waits).Err)
		require.Zero(t, x.late.n.Load())
	})
}

func TestQuick_CommandOfACallThatEndsByTheClockKeepsItsPlace(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b, first)
		x, key := executorOn(t, rdb), redistest.Key(t)
		x.Patience = time.Minute
		awaitQuick(t, x, rdb)
		stopped := relay.Block(runsOf(first))
		_, out := x.Run(x.limits.After(50*time.Millisecond), once, first, []any{key})
		require.ErrorIs(t, out.Err, lockerr.ErrNoAnswer)
		require.True(t, out.Ambiguous)
		require.True(t, x.late.has([]any{key}), "a later command of the key waits for it")
		stopped.Release()
		redistest.Eventually(t, "answered", func() bool { return x.late.n.Load() == 0 })
	})
}

// The first copy is answered after its time, and no other is.
func TestQuick_AnswerCountsHoweverLateItComes(t *testing.T) {
	t.Parallel()
	eachContextOn(t, func(t *testing.T, b *redistest.Backend, ctx context.Context) {
		relay, rdb := relayedTo(t, b, first)
		x, key := executorOn(t, rdb), redistest.Key(t)
		awaitQuick(t, x, rdb)
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

func TestQuick_ConnectionThatIsGoneCostsNoTry(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		if !b.Real {
			t.Skip("go-redis looks at connections of the system only")
		}
		relay, rdb := relayedTo(t, b, idle)
		x := executorOn(t, rdb)
		q := awaitQuick(t, x, rdb)
		relay.Cut()
		_, err := q.own.conn.Read(make([]byte, 1))
		require.Error(t, err, "it is cut")
		if p := x.engineAt(rdb).shared.pipe; p != nil {
			awaitCut(t, p)
		}
		_, out := x.Run(t.Context(), once, idle, []any{redistest.Key(t)})
		require.NoError(t, out.Err)
		require.False(t, out.Ambiguous)
		require.NotSame(t, q, x.engineAt(rdb).quick.Load())
	})
}

func TestQuick_IsNoneWhereNothingSaysThatItsMasterIsNoneAnyMore(t *testing.T) {
	t.Parallel()
	for name, rdb := range map[string]*redis.Client{
		"Sentinel":     redis.NewFailoverClient(&redis.FailoverOptions{SentinelAddrs: []string{"127.0.0.1:1"}}),
		"no deadlines": redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ReadTimeout: -2}),
		"a server":     redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}),
	} {
		t.Cleanup(func() { _ = rdb.Close() })
		g := executorOn(t, rdb).engineAt(rdb)
		g.openQuick()
		require.Zero(t, g.opened.Load(), "%s: nothing was answered yet", name)
		g.shared.answers.Add(1)
		g.openQuick()
		require.Equal(t, name == "a server", g.opened.Load() != 0, name)
	}
}

func TestQuick_CloseEndsTheWaitForAnAnswer(t *testing.T) {
	t.Parallel()
	relay, rdb := relayedTo(t, redistest.Mini(t), first)
	x := executorOn(t, rdb)
	x.Patience = time.Minute
	awaitQuick(t, x, rdb)
	stopped := stuck(t, x, relay, redistest.Key(t))
	defer stopped.Release()
	require.EqualValues(t, 1, x.late.n.Load())
	began := time.Now()
	x.Close(t.Context())
	require.Less(t, time.Since(began), 10*time.Second)
	require.Zero(t, x.late.n.Load())
}

func TestReadReply_ReturnsWhatGoRedisDoes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb := redis.NewClient(redistest.Options(b.Addr, func(o *redis.Options) { o.Protocol = 2 }))
		t.Cleanup(func() { _ = rdb.Close() })
		conn, err := rdb.Options().Dialer(t.Context(), "tcp", b.Addr)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		r := bufio.NewReader(conn)
		for _, script := range []string{
			"return 1", "return -5000000000", "return ''", "return 'a\\r\\nb'", "return {}", "return {1, 'two', {3, {'four'}}, false, 5}",
			"return redis.status_reply('FINE')", "return redis.error_reply('ERR no')", "return nil", "return {redis.error_reply('ERR no'), 1}", "return true",
		} {
			_, err := fmt.Fprintf(conn, "*3\r\n$4\r\nEVAL\r\n$%d\r\n%s\r\n$1\r\n0\r\n", len(script), script)
			require.NoError(t, err)
			is, isErr := readReply(r)
			was, wasErr := rdb.Eval(t.Context(), script, nil).Result()
			require.Equal(t, fmt.Sprint(wasErr), fmt.Sprint(isErr), script)
			require.Equal(t, errors.Is(wasErr, redis.Nil), errors.Is(isErr, redis.Nil), script)
			require.Equal(t, Replied(wasErr), Replied(isErr), script)
			require.Equal(t, fmt.Sprintf("%T %v", was, was), fmt.Sprintf("%T %v", is, is), script)
		}
	})
	for _, nonsense := range []string{"", ":", ":\r\n", ":x\r\n", "$5\r\nab", "*2\r\n:1\r\n", "?1\r\n", "$99999999999\r\n", "*99999999999\r\n", "\n"} {
		_, err := readReply(bufio.NewReader(strings.NewReader(nonsense)))
		require.Error(t, err, "%q", nonsense)
		require.False(t, Replied(err), "%q", nonsense)
	}
}

func TestQuick_AnswerGoesOnWhereItsReadWasInterrupted(t *testing.T) {
	client, server := net.Pipe()
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	go func() { _, _ = server.Write([]byte("*2\r\n:1\r\n:")); _, _ = server.Write([]byte("2\r\n")) }()
	c := &conn{Conn: client}
	_, err := c.Read(make([]byte, 100))
	require.NoError(t, err)
	c.end()
	_, err = c.Read(make([]byte, 100))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Equal(t, []any{int64(1), int64(2)}, c.answer(t.Context()).value)
}
