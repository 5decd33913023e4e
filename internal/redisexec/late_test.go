package redisexec

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// first and second are scripts that can be distinguished.
var first, second = NewScript("return 'first'"), NewScript("return 'second'")

// stuck has a command of x for these keys given up while it is stopped on the way.
func stuck(t *testing.T, x *Executor, relay *redistest.Relay, keys ...any) *redistest.Rule {
	t.Helper()
	stopped := relay.Block(runsOf(first))
	ctx, cancel := context.WithCancel(t.Context())
	givenUp := make(chan Outcome, 1)
	go func() {
		_, out := x.Run(ctx, once, first, keys)
		givenUp <- out
	}()
	redistest.Receive(t, stopped.Caught())
	cancel()
	require.True(t, redistest.Receive(t, givenUp).Ambiguous)
	return stopped
}

// begun runs a script, and returns where its outcome will be.
func begun(t *testing.T, x *Executor, e CallOptions, s *Script, keys ...any) <-chan Outcome {
	t.Helper()
	ended := make(chan Outcome, 1)
	go func() {
		_, out := x.Run(t.Context(), e, s, keys)
		ended <- out
	}()
	return ended
}

func TestUnpipelined_NoCommandOvertakesAnAbandonedOneOfItsKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b, first, second)
		x, key, too := unpipelinedOn(t, rdb), redistest.Key(t), redistest.Key(t)
		x.Patience = time.Minute
		stopped := stuck(t, x, relay, key, too)
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
		require.Empty(t, x.late.of)
	})
}

func TestUnpipelined_WaitForAnAbandonedCommandEndsInTime(t *testing.T) {
	t.Parallel()
	relay, rdb := relayedTo(t, redistest.Mini(t), first, second)
	x, key := unpipelinedOn(t, rdb), redistest.Key(t)
	x.Patience = time.Minute
	stopped := stuck(t, x, relay, key)
	out := redistest.Receive(t, begun(t, x, CallOptions{Attempts: 1, Patience: 50 * time.Millisecond}, second, key))
	require.Error(t, out.Err)
	require.False(t, out.Ambiguous, "it was not sent")
	out = redistest.Receive(t, begun(t, x, CallOptions{Attempts: 2, Patience: time.Second}, second, key))
	require.NoError(t, out.Err, "the second copy goes past it")
	stopped.Release()
	redistest.Eventually(t, "over", func() bool { return x.late.n.Load() == 0 })
}
