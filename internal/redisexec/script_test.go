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

func TestScript_IsSentWithoutComments(t *testing.T) {
	t.Parallel()
	s := NewScript("--!df flags\n-- a\n", "local b = 1 -- b\n  -- c\n\t--d\n", "return b")
	require.Equal(t, "--!df flags\nlocal b = 1 -- b\nreturn b", s.Source())
}

var evals = redistest.Named("EVAL")

// forgetful is an executor behind a relay to a server that does not have the script.
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

func TestScript_IsSentInFullByAFewHoweverManyNeedIt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, x, s := forgetful(t, b)
		key := redistest.Key(t)
		relay.Latency(20 * time.Millisecond) // so that all have asked before the first has the answer
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
			n := relay.Count(evals)
			require.Positive(t, n)
			require.LessOrEqual(t, n, 10, "each on another connection may come before the first")
			if b.Real {
				break // others use its scripts
			}
			require.NoError(t, b.Client(t).ScriptFlush(t.Context()).Err())
		}
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

// Once the server was found to lack one script, the others need one round trip.
func TestScript_NextOneIsSentInFullAtOnceToAServerThatLackedOne(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, x, first := forgetful(t, b)
		second := NewScript("return 2")
		run := func(s *Script) {
			t.Helper()
			_, out := x.Run(t.Context(), patiently(time.Minute), s, []any{redistest.Key(t)})
			require.NoError(t, out.Err)
		}
		run(first)
		require.Equal(t, 1, notKnown(relay))
		run(second)
		require.Equal(t, 1, notKnown(relay))
		require.Equal(t, 2, relay.Count(evals))
		run(first)
		run(second)
		require.Equal(t, 2, relay.Count(evals), "the server has both")
	})
}

// The call that sends the script keeps no other from locking.
func TestScript_OneThatGoesUnansweredKeepsNoOtherCallWaiting(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, x, s := forgetful(t, b)
		x.Unpipelined = true // no command waits for another's connection
		stopped := relay.Block(evals)
		first := make(chan Outcome, 1)
		go func() {
			_, out := x.Run(context.Background(), patiently(time.Minute), s, []any{redistest.Key(t)})
			first <- out
		}()
		redistest.Receive(t, stopped.Caught())
		_, out := x.Run(t.Context(), patiently(time.Minute), s, []any{redistest.Key(t)})
		stopped.Release()
		require.NoError(t, out.Err)
		require.NoError(t, redistest.Receive(t, first).Err)
		require.Equal(t, 2, relay.Count(evals))
	})
}

// The server has executed nothing before it answers that it does not have the script. That time is no part of the lease.
func TestScript_LeaseCountsFromTheCopyInFullHoweverLateItsAnswer(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, x, s := forgetful(t, b)
		refused := make(chan clock.Instant, 16) // the number of copies does not matter
		relay.After(redistest.Named("EVALSHA"), func(redistest.Command, string) { refused <- x.Now() }).Always()
		full := relay.Block(evals)
		unanswered := make(chan error, 16)
		answered := make(chan Outcome, 1)
		go func() {
			e := CallOptions{Patience: MinCopyPatience, Unanswered: func(err error) { unanswered <- err }}
			_, out := x.Run(t.Context(), e, s, []any{redistest.Key(t)})
			answered <- out
		}()
		redistest.Receive(t, full.Caught())
		relay.Block(redistest.Scripts).Always() // no other copy is answered
		redistest.Receive(t, unanswered)
		full.Release()
		out := redistest.Receive(t, answered)
		require.NoError(t, out.Err)
		require.GreaterOrEqual(t, out.Sent.Since(redistest.Receive(t, refused)), time.Duration(0))
	})
}

func TestScript_IsMissedOnceByCallsThatComeTogether(t *testing.T) {
	t.Parallel()
	var k cache
	at := clock.Instant{}.After
	s, other := NewScript("return 1"), NewScript("return 2")
	require.False(t, k.lacks(s, at(1)), "nothing was missed yet")
	require.True(t, k.missed(s, at(1), at(5)))
	require.False(t, k.missed(s, at(2), at(6)), "it was sent after that")
	require.False(t, k.lacks(s, at(7)))
	require.True(t, k.lacks(other, at(7)))
	require.False(t, k.lacks(other, at(7)), "of two at the same time one sends it")

	require.True(t, k.missed(s, at(8), at(9)), "it was forgotten again")
	require.True(t, k.lacks(other, at(10)))
	require.False(t, k.lacks(s, at(10)))
}
