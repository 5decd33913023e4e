package protocol

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// For Redis no time passes within a script. For miniredis it does, and so for all who test with it: a lease that
// runs out meanwhile is over, and nothing else.

// passing is a bench on a server for which a lease runs out before a command of the next script.
type passing struct {
	*rwBench
	lined *Lined
	mini  *miniredis.Miniredis
}

func newPassing(t *testing.T) *passing {
	t.Helper()
	backend := redistest.Mini(t)
	b := newRWBench(t, backend.Client(t))
	for _, s := range allScripts {
		require.NoError(t, b.rdb.ScriptLoad(t.Context(), s.Source).Err())
	}
	return &passing{rwBench: b, lined: NewLined(b.Plain, "p"), mini: backend.Miniredis}
}

// passes has the lease of the lock run out before the nth command of a script. reached: there was one.
func (b *passing) passes(n int, script func()) (reached bool) {
	b.t.Helper()
	const lease = 10 * time.Millisecond
	require.NoError(b.t, b.rdb.PExpire(b.t.Context(), b.on.Keys[0], lease).Err())
	end := time.Now().Add(lease)
	var at atomic.Int64
	var within atomic.Bool
	b.mini.Server().SetPreHook(func(_ *server.Peer, cmd string, _ ...string) bool {
		switch {
		case strings.HasPrefix(cmd, "EVAL"):
			within.Store(true)
		case within.Load() && cmd != "PING" && cmd != "HELLO" && cmd != "CLIENT": // those are of a connection that is opened
			if at.Add(1) == int64(n) {
				time.Sleep(time.Until(end) + time.Millisecond)
			}
		}
		return false
	})
	defer b.mini.Server().SetPreHook(nil)
	script()
	return at.Load() >= int64(n)
}

func TestScripts_LeaseThatRunsOutWithinOneIsNoError(t *testing.T) {
	redistest.Slow(t)
	ctx := context.Background()
	plain, written := hashOf(short, them, "1"), hashOf(short, "mode", "write", them+":write", "1")
	read := hashOf(short, "mode", "read", them, "1")
	type request func(b *passing) redisexec.Outcome
	takes := func(b *passing) redisexec.Outcome {
		_, out := b.reads.Take(ctx, options, b.on, me, b.terms, "", false)
		return out
	}
	writes := func(b *passing) redisexec.Outcome {
		_, out := b.writes.Take(ctx, options, b.on, me, b.terms, b.terms.EntryLease(), false)
		return out
	}
	for name, c := range map[string]struct {
		before picture
		ask    request
	}{
		"plain": {plain, func(b *passing) redisexec.Outcome {
			_, out := b.Acquire(ctx, options, b.on, me, b.terms)
			return out
		}},
		"plain, by the line": {plain, func(b *passing) redisexec.Outcome {
			_, out := b.lined.Acquire(ctx, options, b.on, me, b.terms)
			return out
		}},
		"a place behind another": {plain, func(b *passing) redisexec.Outcome {
			_, out := b.lined.Enqueue(ctx, options, b.on, me, b.terms, 2)
			return out
		}},
		"a poll": {plain, func(b *passing) redisexec.Outcome {
			_, _, out := b.lined.Poll(ctx, options, b.on, []Waiter{{Field: me, Terms: b.terms}})
			return out
		}},
		"state":                     {plain, func(b *passing) redisexec.Outcome { _, out := b.State(ctx, options, b.on, 0); return out }},
		"read while it is written":  {written, takes},
		"read while it is read":     {read, takes},
		"write while it is written": {written, writes},
		"write while it is read":    {read, writes},
		"state of what is written":  {written, func(b *passing) redisexec.Outcome { _, out := b.writes.State(ctx, options, b.on, 0); return out }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, n := newPassing(t), 0
			for reached := true; reached; {
				n++
				require.NoError(t, b.rdb.FlushDB(ctx).Err())
				if name == "a place behind another" {
					b.paint(b.on.Keys[0], plain)
					_, out := b.lined.Enqueue(ctx, options, b.on, you, b.terms, 1)
					mustDo(t, out)
				}
				b.paint(b.on.Keys[0], c.before)
				var out redisexec.Outcome
				reached = b.passes(n, func() { out = c.ask(b) })
				require.NoError(t, out.Err, "before command %d", n)
			}
			require.Greater(t, n, 3, "the server reported no command")
		})
	}
}
