package redisexec

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/redistest"
)

var evals = redistest.Named("EVAL")

// forgetful is an executor behind a relay to a server that does not know the script.
func forgetful(t *testing.T, b *redistest.Backend) (*redistest.Relay, *Executor, *Script) {
	t.Helper()
	relay := redistest.NewRelay(t, b.Addr)
	rdb := redis.NewClient(redistest.Options(relay.Addr, func(o *redis.Options) { o.ReadTimeout = time.Minute }))
	t.Cleanup(func() { _ = rdb.Close() })
	x := executorOn(t, rdb)
	x.Patience = time.Minute                                                  // only what a test says keeps a call waiting
	return relay, x, NewScript(fmt.Sprintf("return #'%s'", redistest.Key(t))) // of its own
}

func patiently(d time.Duration) CallOptions {
	return CallOptions{Attempts: 1, Patience: d}
}

func TestAScriptThatIsUnknownIsSentInFullOnceHoweverManyNeedIt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, x, s := forgetful(t, b)
		key := redistest.Key(t)
		relay.Latency(20 * time.Millisecond) // so that all have asked before the first knows
		for range 2 {
			relay.ResetLog()
			var all sync.WaitGroup
			for range 300 {
				all.Go(func() {
					if _, out := x.Run(context.Background(), patiently(time.Minute), s, []any{key}); out.Err != nil || out.Ambiguous {
						t.Errorf("%+v", out)
					}
				})
			}
			all.Wait()
			require.Equal(t, 1, relay.Count(evals))
			if b.Real {
				break // others use its scripts
			}
			require.NoError(t, b.Client(t).ScriptFlush(t.Context()).Err())
		}
	})
}

// unknownTo has one call send s in full, and be stopped on the way by rule; then others come.
func unknownTo(t *testing.T, x *Executor, s *Script, stopped *redistest.Rule, e CallOptions) (first, second <-chan Outcome) {
	t.Helper()
	key := redistest.Key(t)
	run := func(ctx context.Context) <-chan Outcome {
		done := make(chan Outcome, 1)
		go func() {
			_, out := x.Run(ctx, e, s, []any{key})
			done <- out
		}()
		return done
	}
	first = run(context.Background()) // directly: it keeps no other's connection
	redistest.Receive(t, stopped.Caught())
	return first, run(t.Context())
}

func TestWhoWaitsForAnothersLoadThatIsSlowLoadsTheScriptItself(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, x, s := forgetful(t, b)
		stopped := relay.Block(evals)
		first, second := unknownTo(t, x, s, stopped, patiently(8*time.Second))
		began := time.Now()
		require.NoError(t, redistest.Receive(t, second).Err)
		require.Less(t, time.Since(began), 6*time.Second)
		stopped.Release()
		require.NoError(t, redistest.Receive(t, first).Err)
		require.Equal(t, 2, relay.Count(evals))
	})
}

func TestWhoWaitsForAnothersLoadThatFailsLoadsTheScriptItself(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, x, s := forgetful(t, b)
		stopped := relay.Block(evals)
		relay.ReplyWith("-NOPERM this user has no permissions to run the 'eval' command\r\n", evals)
		first, second := unknownTo(t, x, s, stopped, patiently(time.Minute))
		redistest.Eventually(t, "told that the script is unknown", func() bool { return notKnown(relay) == 2 })
		stopped.Release()
		require.ErrorContains(t, redistest.Receive(t, first).Err, "NOPERM")
		require.NoError(t, redistest.Receive(t, second).Err)
	})
}

// notKnown counts the commands that were answered that their script is unknown.
func notKnown(relay *redistest.Relay) int {
	n := 0
	for _, e := range relay.Log() {
		if strings.HasPrefix(e.Reply, "-NOSCRIPT") {
			n++
		}
	}
	return n
}

func TestWhoWaitsForAnothersLoadIsGoneWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	relay, x, s := forgetful(t, redistest.Mini(t))
	stopped := relay.Block(evals)
	key := []any{redistest.Key(t)}
	first := make(chan Outcome, 1)
	go func() {
		_, out := x.Run(context.Background(), patiently(time.Minute), s, key)
		first <- out
	}()
	redistest.Receive(t, stopped.Caught())
	ctx, cancel := context.WithCancel(t.Context())
	relay.After(redistest.Scripts, func(redistest.Command, string) { cancel() }) // it has been told that the script is unknown
	_, out := x.Run(ctx, patiently(time.Minute), s, key)
	require.ErrorIs(t, out.Err, context.Canceled)
	stopped.Release()
	require.NoError(t, redistest.Receive(t, first).Err)
	require.Equal(t, 1, relay.Count(evals))
}

func TestLoadsAreOfTheServerThatHasForgotten(t *testing.T) {
	t.Parallel()
	var l loads
	var then clock.Instant
	s := NewScript("return 1")
	own, mine := l.join(s, then)
	require.True(t, mine)
	other, mine := l.join(s, then)
	require.False(t, mine)
	require.Same(t, own, other)
	own.end(true, then.After(time.Second))

	_, mine = l.join(s, then.After(time.Second/2))
	require.False(t, mine, "it was sent before the script was known")
	again, mine := l.join(s, then.After(2*time.Second))
	require.True(t, mine, "it has been forgotten since")
	again.end(false, then.After(3*time.Second))
	_, mine = l.join(s, then.After(2*time.Second))
	require.True(t, mine, "that failed")
}
