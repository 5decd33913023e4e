package redisexec

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestLane_IsReplacedWhenItsMasterHasBecomeAReplica(t *testing.T) {
	t.Parallel()
	redistest.NeedsPipelining(t)
	s := redistest.NewTwoServers(t)
	rdb := s.Client()
	x, key := executorOn(t, rdb), redistest.Key(t)
	run := func() error {
		_, out := x.Run(t.Context(), CallOptions{Attempts: 3}, counting, []any{key}) // with a context that may end
		return out.Err
	}
	require.NoError(t, run())
	g := x.engineAt(rdb)
	g.underWay.Add(1) // no command is alone
	defer g.underWay.Add(-1)
	require.Positive(t, g.shared.answers.Load())
	s.Failover(false)
	redistest.Eventually(t, "an answer", func() bool { return run() == nil })
	redistest.Eventually(t, "a new lane", func() bool { return run() == nil && g.lane.Load() != g.shared })
	require.Same(t, g, x.engineAt(rdb))
	piped := g.lane.Load().answers.Load()
	for range 10 {
		require.NoError(t, run(), "it still asks the replica")
	}
	require.Equal(t, piped+10, g.lane.Load().answers.Load())
	require.Positive(t, s.Next.Client(t).Exists(t.Context(), key).Val())
}

// It says so in other words.
func TestLane_IsSuspectAfterTheAnswerOfAReplicaBeforeVersion7(t *testing.T) {
	t.Parallel()
	redistest.NeedsPipelining(t)
	relay, rdb := relayedTo(t, redistest.Redis(t), idle)
	x, key := executorOn(t, rdb), []any{redistest.Key(t)}
	_, out := x.Run(t.Context(), CallOptions{Attempts: 3}, idle, key)
	require.NoError(t, out.Err)
	relay.ReplyWith("-ERR Error running script (call to f_6b1bf486c81ceb7edf3c093f4a4dbbe1d2e0d1fc): "+
		"@user_script:1: @user_script: 1: -READONLY You can't write against a read only replica.\r\n", runsOf(idle)).Always()
	_, out = x.Run(t.Context(), CallOptions{Attempts: 3}, idle, key)
	require.ErrorContains(t, out.Err, "READONLY")
	require.NotSame(t, x.engineAt(rdb).shared, x.engineAt(rdb).lane.Load())
}

// A lane that is opening still is waited for. One that has answered need not be.
func TestLane_IsLeftWhenItFallsSilentHoweverNewItIs(t *testing.T) {
	redistest.NeedsPipelining(t)
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b, idle)
		x, key := executorOn(t, rdb), []any{redistest.Key(t)}
		for range 3 { // within one patience of the executor
			lost := relay.LoseReply(runsOf(idle))
			_, out := x.Run(t.Context(), CallOptions{Attempts: 2, Patience: x.Patience / 5}, idle, key)
			require.NoError(t, out.Err)
			lost.Wait(t)
		}
	})
}

// go-redis closes the connections of its pools when Sentinel reports a failover, and no others.
func TestLane_BehindSentinelIsLeftForThePoolAfterASilence(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, direct := relayedTo(t, b, idle)
		o := *direct.Options()
		dial, addr := o.Dialer, o.Addr
		o.Addr = behindSentinel
		o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) { return dial(ctx, network, addr) }
		rdb := redis.NewClient(&o)
		defer rdb.Close()
		x, key := executorOn(t, rdb), []any{redistest.Key(t)}
		run := func() {
			t.Helper()
			_, out := x.Run(t.Context(), CallOptions{Attempts: 2}, idle, key)
			require.NoError(t, out.Err)
		}
		run()
		g := x.engineAt(rdb)
		lost := relay.LoseReply(runsOf(idle))
		run()
		lost.Wait(t)
		require.True(t, g.lane.Load().ours)
		time.Sleep(x.longest() - 2*x.Patience)
		run()
		require.True(t, g.lane.Load().ours, "the connections of the pool may be dead")
		time.Sleep(3 * x.Patience)
		own, pooled := g.lane.Load(), g.shared.answers.Load()
		run() // nobody else does: it may go on the goroutine of its caller
		require.Equal(t, pooled+1, g.shared.answers.Load())

		g.shared.answers.Store(0) // as if the pool had been dead from the beginning
		g.answered(own, 0)        // a command of long ago
		run()
		require.EqualValues(t, 1, g.shared.answers.Load())
	})
}
