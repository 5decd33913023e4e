package protocol

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// A TryLock sends few arguments, and examines the line only if the lock is free and has one.

// onRelay returns b with a protocol that goes through a relay to backend, to a server that has the scripts.
func (b *linedBench) onRelay(backend *redistest.Backend) (*linedBench, *redistest.Relay) {
	relay := redistest.NewRelay(b.t, backend.Addr)
	rdb := redis.NewClient(redistest.Options(relay.Addr))
	b.t.Cleanup(func() { _ = rdb.Close() })
	require.NoError(b.t, b.rdb.ScriptLoad(b.t.Context(), AcquireScript.Source()).Err())
	through := *b
	through.lined = NewLined(plainOn(b.t, rdb), "p")
	return &through, relay
}

func eachLinedBenchOnRelay(t *testing.T, fn func(b *linedBench, relay *redistest.Relay)) {
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		bench := newBench(t, backend.Client(t))
		b := &linedBench{bench: bench, lined: NewLined(bench.Plain, "p"), on: bench.target(1), terms: termsOf()}
		fn(b.onRelay(backend))
	})
}

// leaveFree has the lock free, and waiter in its line.
func (b *linedBench) leaveFree(waiter string) {
	b.t.Helper()
	b.take(me)
	b.enqueue(waiter)
	require.NoError(b.t, b.rdb.Del(b.t.Context(), b.on.Keys[0]).Err())
}

func TestLinedTry_OnFreeOrHeldLockIsOneShortCommand(t *testing.T) {
	t.Parallel()
	eachLinedBenchOnRelay(t, func(b *linedBench, relay *redistest.Relay) {
		b.take(me)
		g, out := b.lined.Acquire(b.t.Context(), options, b.on, you, b.terms)
		require.NoError(b.t, out.Err)
		require.False(b.t, g.Held)
		require.Equal(b.t, me, g.Holder)
		require.Equal(b.t, 2, relay.Count(redistest.Script(AcquireScript.Source())))
		require.Zero(b.t, relay.Count(redistest.Script(LineAcquireScript.Source())))
	})
}

func TestLinedTry_OnAFreeLockServesItsLine(t *testing.T) {
	t.Parallel()
	eachLinedBenchOnRelay(t, func(b *linedBench, relay *redistest.Relay) {
		b.leaveFree(you)
		relay.ResetLog()
		g, out := b.lined.Acquire(b.t.Context(), options, b.on, them, b.terms)
		require.NoError(b.t, out.Err)
		require.False(b.t, g.Held)
		require.False(b.t, out.Ambiguous)
		require.Equal(b.t, you, g.Holder)
		require.Equal(b.t, you, b.holder())
		require.Equal(b.t, 1, relay.Count(redistest.Script(LineAcquireScript.Source())))
	})
}

// A late copy of the first command could take the lock when the line is gone.
func TestLinedTry_StaysUncertainAfterTheLine(t *testing.T) {
	t.Parallel()
	eachLinedBenchOnRelay(t, func(b *linedBench, relay *redistest.Relay) {
		b.leaveFree(you)
		relay.DropReply(redistest.Script(AcquireScript.Source()))
		g, out := b.lined.Acquire(b.t.Context(), options, b.on, them, b.terms)
		require.NoError(b.t, out.Err)
		require.False(b.t, g.Held)
		require.True(b.t, out.Ambiguous)
	})
}
