package protocol

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// For Redis no time passes within a script. For miniredis it does, and so for all who test with it: a lease that
// runs out meanwhile is over, and nothing else.

// passing is a bench on a server for which a lease runs out before a command of the next script.
type passing struct {
	*rwBench
	lined   *Lined
	permits *Permits
	sem     *keys.Set // the same key, as a semaphore
	mini    *miniredis.Miniredis
}

func newPassing(t *testing.T) *passing {
	t.Helper()
	backend := redistest.Mini(t)
	b := newRWBench(t, backend.Client(t))
	for _, s := range allScripts {
		require.NoError(t, b.rdb.ScriptLoad(t.Context(), s.Source()).Err())
	}
	sem := keysOf(t, b.on.Keys[0])
	sem.Semaphore()
	return &passing{rwBench: b, lined: NewLined(b.Plain, "p"), permits: NewPermits(b.Plain, "p"), sem: sem, mini: backend.Miniredis}
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

// passingCase is a script that meets a hold whose lease ends meanwhile.
type passingCase struct {
	before func(b *passing)
	// ask returns the field that holds the lock now, according to the reply; "": the reply says that none does.
	ask func(b *passing) (holder string, out redisexec.Outcome)
}

// holds returns field if it holds the lock.
func holds(held bool, field string, out redisexec.Outcome) (string, redisexec.Outcome) {
	if !held {
		field = ""
	}
	return field, out
}

func mineIs(b *passing) { b.paint(b.on.Keys[0], hashOf(short, me, "1")) }

func writeIsMine(b *passing) { b.write(keys.AsWriter(me)) }

func readBy(field string) func(b *passing) {
	return func(b *passing) { b.read(field, keys.AsWriter(field)) }
}

// awaited has another owner wait in the line.
func awaited(s *Terms) func(b *passing) {
	return func(b *passing) {
		mineIs(b)
		_, out := b.lined.Enqueue(context.Background(), options, b.on, you, s, 1)
		mustDo(b.t, out)
	}
}

// awaitedUsually has another owner wait whose process is subscribed, while the turn of foreign waiters is far away: then a
// release needs no function of the prelude.
func awaitedUsually(b *passing) {
	grants := b.rdb.Subscribe(context.Background(), b.lined.GrantsFor(b.on.Keys[0]))
	b.t.Cleanup(func() { grants.Close() })
	_, err := grants.Receive(context.Background())
	require.NoError(b.t, err)
	awaited(termsOf())(b)
	later := fmt.Sprintf("%d 100 0 0 0", time.Now().UnixMilli()+5000)
	require.NoError(b.t, b.rdb.HSet(context.Background(), keys.LineOf(b.on.Keys[0]).Entries, "", later).Err())
}

// releasesToLine releases the lock. The waiter has it if its entry is gone.
func releasesToLine(b *passing) (string, redisexec.Outcome) {
	_, out := b.lined.Release(context.Background(), options, b.on, me, []int{0})
	return holds(!b.rdb.HExists(context.Background(), keys.LineOf(b.on.Keys[0]).Entries, you).Val(), you, out)
}

var passingCases = map[string]passingCase{
	"renew": {mineIs, func(b *passing) (string, redisexec.Outcome) {
		ours, out := b.renewAlone(context.Background(), options, b.on, me, asked)
		return holds(ours, me, out)
	}},
	"renew many": {mineIs, func(b *passing) (string, redisexec.Outcome) {
		lost, out := b.renewMany(context.Background(), options, []any{b.on.Keys[0]}, []any{me}, asked)
		return holds(len(lost) == 0, me, out)
	}},
	"acquire again": {mineIs, func(b *passing) (string, redisexec.Outcome) {
		g, out := b.Acquire(context.Background(), options, b.on, me, b.terms)
		return holds(g.Held, me, out)
	}},
	"acquire again, by the line": {mineIs, func(b *passing) (string, redisexec.Outcome) {
		g, out := b.lined.take(context.Background(), options, b.on, me, b.terms)
		return holds(g.Held, me, out)
	}},
	"enter again": {mineIs, func(b *passing) (string, redisexec.Outcome) {
		g, out := b.Reenter(context.Background(), options, b.on, me, b.terms, false, []int{2})
		return holds(g.Held, me, out)
	}},
	"hand over": {mineIs, func(b *passing) (string, redisexec.Outcome) {
		g, out := b.Handoff(context.Background(), options, b.on, me, you, b.terms)
		return holds(g.Held, you, out)
	}},
	"rename": {mineIs, func(b *passing) (string, redisexec.Outcome) {
		ours, _, out := b.Rename(context.Background(), options, b.on, me, you, asked)
		return holds(ours, you, out)
	}},
	"rename again": {mineIs, func(b *passing) (string, redisexec.Outcome) {
		ours, _, out := b.Rename(context.Background(), options, b.on, you, me, asked)
		return holds(ours, me, out)
	}},
	"poll a grant": {mineIs, func(b *passing) (string, redisexec.Outcome) {
		all, _, out := b.lined.Poll(context.Background(), options, b.on, []Waiter{{Field: me, Terms: b.terms}})
		return holds(len(all) > 0 && all[0].State == EntryGranted, me, out)
	}},
	"release to the line":              {awaited(termsOf()), releasesToLine},
	"release to the line, usually":     {awaitedUsually, releasesToLine},
	"release to the line, for a token": {awaited(termsOf(fencing)), releasesToLine},

	"write again": {writeIsMine, func(b *passing) (string, redisexec.Outcome) {
		g, out := b.writes.Acquire(context.Background(), options, b.on, keys.AsWriter(me), b.terms)
		return holds(g.Held, keys.AsWriter(me), out)
	}},
	"enter a write again": {writeIsMine, func(b *passing) (string, redisexec.Outcome) {
		g, out := b.writes.Reenter(context.Background(), options, b.on, keys.AsWriter(me), b.terms, false, []int{2})
		return holds(g.Held, keys.AsWriter(me), out)
	}},
	"hand a write over": {writeIsMine, func(b *passing) (string, redisexec.Outcome) {
		g, out := b.writes.Handoff(context.Background(), options, b.on, keys.AsWriter(me), keys.AsWriter(you), b.terms)
		return holds(g.Held, keys.AsWriter(you), out)
	}},
	"hand a write over, for a token": {writeIsMine, func(b *passing) (string, redisexec.Outcome) {
		g, out := b.writes.Handoff(context.Background(), options, b.on, keys.AsWriter(me), keys.AsWriter(you), termsOf(fencing))
		return holds(g.Held, keys.AsWriter(you), out)
	}},
	"read beside another": {readBy(you), reads},
	"read again":          {readBy(me), reads},
	"read while writing":  {writeIsMine, reads},
	"read on": {readBy(me), func(b *passing) (string, redisexec.Outcome) {
		ours, out := b.reads.Renew(context.Background(), options, b.on, me, asked)
		return holds(ours, me, out)
	}},
	"enter a read again": {readBy(me), func(b *passing) (string, redisexec.Outcome) {
		g, out := b.reads.Reenter(context.Background(), options, b.on, me, b.terms, false, []int{2})
		return holds(g.Held, me, out)
	}},

	"a permit beside another": {func(b *passing) { b.asksForPermit(1) }, func(b *passing) (string, redisexec.Outcome) { return b.asksForPermit(9) }},
	"a permit again":          {func(b *passing) { b.asksForPermit(1) }, func(b *passing) (string, redisexec.Outcome) { return b.asksForPermit(1) }},
	"renew a permit": {func(b *passing) { b.asksForPermit(1) }, func(b *passing) (string, redisexec.Outcome) {
		lost, out := b.permits.renewMany(context.Background(), options, []any{b.sem.Keys[0]}, []any{permit(1, 1)}, asked)
		return holds(len(lost) == 0, permit(1, 1), out)
	}},
	"poll a permit": {func(b *passing) { b.asksForPermit(1) }, func(b *passing) (string, redisexec.Outcome) {
		all, _, out := b.permits.Poll(context.Background(), options, b.sem, []Waiter{{Field: permit(1, 1), Terms: termsForPermits(asked)}})
		return holds(len(all) > 0 && all[0].State == EntryGranted, permit(1, 1), out)
	}},
}

// asksForPermit has permit n be one of two.
func (b *passing) asksForPermit(n int) (string, redisexec.Outcome) {
	g, out := b.permits.Acquire(context.Background(), options, b.sem, permit(n, 1), termsForPermits(asked))
	return holds(g.Held, permit(n, 1), out)
}

// has reports whether field holds the lock, or is a permit in use.
func (b *passing) has(field string) bool {
	key := b.on.Keys[0]
	if strings.HasSuffix(field, keys.WriteSuffix) && b.rdb.HGet(context.Background(), key, "mode").Val() == "" {
		return false // without a mode it is no read-write lock
	}
	return b.rdb.HExists(context.Background(), key, field).Val() || b.rdb.ZScore(context.Background(), key, field).Err() == nil
}

func reads(b *passing) (string, redisexec.Outcome) {
	g, out := b.reads.Take(context.Background(), options, b.on, me, b.terms, keys.AsWriter(me), false)
	return holds(g.Held, me, out)
}

// A hold whose lease ends within a script is over. No script returns it as held, and no script grants the lock and loses it
// in the same moment: another owner could acquire it, and two would hold.
func TestScripts_LeaseThatRunsOutWithinOneIsNoHold(t *testing.T) {
	redistest.Slow(t)
	for name, c := range passingCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, n := newPassing(t), 0
			for reached := true; reached; {
				n++
				require.NoError(t, b.rdb.FlushDB(context.Background()).Err())
				c.before(b)
				var holder string
				var out redisexec.Outcome
				reached = b.passes(n, func() { holder, out = c.ask(b) })
				require.NoError(t, out.Err, "before command %d", n)
				if holder == "" {
					continue
				}
				require.True(t, b.has(holder), "before command %d", n)
				require.Positive(t, b.ttl(b.on.Keys[0]), "before command %d", n)
			}
			require.Greater(t, n, 2, "the server reported no command")
		})
	}
}
