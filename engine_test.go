package relock

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// dawdle is a script of no effect.
var dawdle = redisexec.NewScript("return 1")

// Many holds that are renewed at once by a slow machine look like this to each of them.
func TestARenewalWaitsForItsTurnInAPipelineThatIsBusy(t *testing.T) {
	t.Parallel()
	relay := redistest.NewRelay(t, redistest.NewServer(t).Addr)
	rdb, events := faultRedis(t, relay.Addr), &chronicle{}
	for _, s := range []*redisexec.Script{dawdle, protocol.RenewScript} {
		require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source).Err())
	}
	c := locksOn(t, rdb, WithTTL(16*time.Second), WithHooks(events.hooks()))
	m := c.Mutex(redistest.Key(t), WithRenewInterval(500*time.Millisecond))
	requireLocked(t, m)
	relay.Delay(120*time.Millisecond, redistest.Script(dawdle.Source)).Always() // and all that follow

	var busy sync.WaitGroup
	defer busy.Wait()
	for range 30 { // together longer than a command is usually waited for
		busy.Go(func() {
			e := redisexec.CallOptions{Attempts: 1, Patience: time.Minute}
			_, _ = c.session.execs[0].Run(context.WithoutCancel(t.Context()), e, dawdle, []any{m.Name()})
		})
	}
	eventually(t, "a renewal in a busy pipeline", func() bool {
		return slices.ContainsFunc(events.of("renewed"), func(e Event) bool { return e.Elapsed > c.session.execs[0].Patience })
	})
	require.Empty(t, events.of("renew failed"), "a second copy would have followed")
	requireUnlocked(t, m)
}

func TestACommandThatComesAloneGoesPastThePipeline(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb := backend.Client(t)
		c := locksOn(t, rdb)
		m := c.Mutex(redistest.Key(t))
		for range 3 {
			require.NoError(t, m.Lock(context.Background())) // nothing but the clock ends it
			require.NoError(t, m.Lock(context.Background()))
			requireUnlocked(t, m)
			requireUnlocked(t, m)
		}
		require.Zero(t, c.session.execs[0].EngineAt(rdb).Answers.Load())
	})
}

func TestACommandDoesNotQueueForAConnectionOfAPoolThatIsInUse(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: redistest.NewServer(t).Addr, PoolSize: 1})
	t.Cleanup(func() { _ = rdb.Close() })
	busy := rdb.Conn()
	t.Cleanup(func() { _ = busy.Close() })
	require.NoError(t, busy.Ping(t.Context()).Err()) // from now on it is the application's

	m := locksOn(t, rdb).Mutex(redistest.Key(t))
	require.NoError(t, m.Lock(context.Background()))
	requireUnlocked(t, m)
	require.Zero(t, rdb.PoolStats().WaitCount)
	require.Zero(t, rdb.PoolStats().Timeouts)
}

func TestAClosedEngineSendsNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb := backend.Client(t)
		x := redisexec.New(rdb, clock.System, defaultTTL)
		key := redistest.Key(t)
		_, out := x.Run(t.Context(), acquireEffort, dawdle, []any{key})
		require.NoError(t, out.Err)
		engine := x.EngineAt(rdb)
		x.Close(t.Context())

		limit := x.Limits.After(x.Patience)
		a := engine.Send(limit, redisexec.CallOptions{Patience: x.Patience}, redisexec.NewCall(limit, "set", key, nil, []any{"1"}))
		require.ErrorIs(t, a.Err, redis.ErrClosed)
		require.Zero(t, rdb.Exists(t.Context(), key).Val())
	})
}

// Its patience is that of the connections, which could keep its caller for a second.
func TestALockThatIsGivenUpDoesNotWaitForTheTimeoutOfAConnection(t *testing.T) {
	t.Parallel()
	relay := redistest.NewRelay(t, redistest.NewServer(t).Addr)
	onceWithin(t, promptly, func() time.Duration {
		c := locksOn(t, faultRedis(t, relay.Addr))
		sent := relay.Block(redistest.Scripts)
		ctx, cancel := context.WithCancel(t.Context())
		locked := make(chan error, 1)
		go func() { locked <- c.Mutex(redistest.Key(t)).Lock(ctx) }()
		receives(t, sent.Caught())
		late := took(func() {
			cancel()
			require.ErrorIs(t, receives(t, locked), context.Canceled)
		})
		sent.Release()
		return late
	})
}

// A new connection says hello and more before it takes a command, each in a time-out of its own.
func TestACommandThatComesAloneEndsWithItsTime(t *testing.T) {
	t.Parallel()
	relay := redistest.NewRelay(t, redistest.NewServer(t).Addr)
	rdb := faultRedis(t, relay.Addr)
	x := redisexec.New(rdb, clock.System, defaultTTL)
	t.Cleanup(func() { x.Close(context.Background()) })
	const each, all = 400 * time.Millisecond, 600 * time.Millisecond
	relay.Delay(each, func(redistest.Command) bool { return true }).Always()

	limit := x.Limits.After(all)
	a := x.EngineAt(rdb).Send(limit, redisexec.CallOptions{Patience: all}, redisexec.NewCall(limit, "evalsha", dawdle.Digest, []any{redistest.Key(t)}, nil))
	require.Error(t, a.Err)
	require.LessOrEqual(t, len(relay.Log()), 2, "it went on for a third answer")
}

// After a fault, or with contexts that can be cancelled, the pool may be empty. To open a connection
// takes several round trips, if it can be done at all.
func TestACommandGoesThroughThePipelineThatHasAnsweredRatherThanDial(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb := backend.Client(t)
		x := redisexec.New(rdb, clock.System, defaultTTL)
		t.Cleanup(func() { x.Close(context.Background()) })
		run := func(ctx context.Context) {
			t.Helper()
			_, out := x.Run(ctx, redisexec.CallOptions{Attempts: 1}, dawdle, []any{redistest.Key(t)})
			require.NoError(t, out.Err)
		}
		piped := func() uint64 { return x.EngineAt(rdb).Answers.Load() }
		run(t.Context()) // it can be cancelled
		first := piped()
		require.NotZero(t, first)
		require.Zero(t, rdb.PoolStats().TotalConns)

		run(context.Background())
		require.Equal(t, first+1, piped())
		eventually(t, "a connection, opened beside it", func() bool { return rdb.PoolStats().IdleConns == 1 })
		run(context.Background())
		require.Equal(t, first+1, piped(), "there is a connection now")
		require.EqualValues(t, 1, rdb.PoolStats().TotalConns)
	})
}

func TestACommandGoesThroughThePipelineWhileThePoolDoesNotDial(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	var refused atomic.Int32
	var up atomic.Bool
	rdb := redis.NewClient(&redis.Options{
		Addr: server.Addr, PoolSize: 1, MaxRetries: -1, DialerRetries: 1,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if !up.Load() {
				refused.Add(1)
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	require.Error(t, rdb.Ping(t.Context()).Err()) // from now on the pool only looks once a second
	eventually(t, "a look", func() bool { return refused.Load() == 2 })
	up.Store(true)

	m := locksOn(t, rdb).Mutex(redistest.Key(t))
	require.NoError(t, m.Lock(context.Background()))
	requireUnlocked(t, m)
	eventually(t, "the pool", func() bool { return rdb.Ping(t.Context()).Err() == nil })
}

// orderly is an engine behind a relay, and what sends a script directly, others first.
func orderly(t *testing.T, backend *redistest.Backend) (*redistest.Relay, func() redisexec.Answer) {
	t.Helper()
	relay, rdb := relayedTo(t, backend)
	x := redisexec.New(rdb, clock.System, defaultTTL)
	t.Cleanup(func() { x.Close(context.Background()) })
	require.NoError(t, rdb.ScriptLoad(t.Context(), dawdle.Source).Err())
	return relay, func() redisexec.Answer {
		limit := x.Limits.After(x.Patience)
		e := redisexec.CallOptions{Patience: x.Patience, PublishFirst: true}
		return x.EngineAt(rdb).Send(limit, e, redisexec.NewCall(limit, "evalsha", dawdle.Digest, []any{redistest.Key(t)}, nil))
	}
}

func TestTheReleaseOfAFairLockTellsOthersFirst(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		relay, rdb := relayedTo(t, backend)
		c := locksOn(t, rdb)
		for _, m := range []*Mutex{c.FairMutex(redistest.Key(t)), c.Mutex(redistest.Key(t))} {
			require.NoError(t, m.Lock(context.Background()))
			requireUnlocked(t, m)
		}
		require.Equal(t, 1, relay.Count(redistest.Named("TIME")), "nobody waits for what other scripts publish with a lock in it")
		log := relay.Log()
		release := slices.IndexFunc(log, func(e redistest.Entry) bool { return redistest.Script(protocol.FairReleaseScript.Source)(e.Command) })
		require.Equal(t, "TIME", log[release-1].Command.Name())
		require.Equal(t, log[release].Conn, log[release-1].Conn)
		require.EqualValues(t, 1, rdb.PoolStats().TotalConns)
		require.Zero(t, rdb.PoolStats().PipelineStats.TotalConns, "it took the connection that was there")
	})
}

func TestWhatBecameOfTheCommandBeforeOneIsNotTakenForItsAnswer(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		relay, send := orderly(t, backend)
		refused := relay.ReplyWith("-NOPERM this user has no permissions\r\n", redistest.Named("TIME"))
		a := send()
		refused.Wait(t)
		require.NoError(t, a.Err)
		require.EqualValues(t, 1, a.Value)

		relay.ReplyWith("-BUSY Redis is busy running a script\r\n", redistest.Scripts)
		require.ErrorContains(t, send().Err, "BUSY")

		relay.DropReply(redistest.Scripts)
		a = send()
		require.Error(t, a.Err)
		require.False(t, redisexec.Judge(a.Err).NotExecuted, "%v", a.Err)
		require.Equal(t, 2, relay.Count(redistest.Named("TIME")), "besides the one that did not get there")
	})
}

// go-redis does not tell the commands of a pipeline what their new connection was refused with.
func TestAServerThatLetsNobodyInAnswersNoCommand(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	for name, e := range map[string]redisexec.CallOptions{
		"alone":              {},
		"which tells others": {PublishFirst: true},
		"past the engine":    {Avoid: redisexec.Piped},
		"for replicas":       {Replicas: redisexec.Replicas{N: 1, Timeout: time.Second}},
	} {
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr, Username: "nobody", Password: "wrong"})
		t.Cleanup(func() { _ = rdb.Close() })
		x := redisexec.New(rdb, clock.System, defaultTTL)
		t.Cleanup(func() { x.Close(context.Background()) })
		e.Attempts = 1
		_, out := x.Run(context.Background(), e, dawdle, []any{redistest.Key(t)})
		require.ErrorContains(t, out.Err, "WRONGPASS", name)
		require.False(t, out.Ambiguous, name)
	}
}
