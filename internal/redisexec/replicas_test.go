package redisexec

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redistest"
)

var waits = redistest.Named("WAIT")

// replicated is an executor whose way to a master with one replica leads through a relay.
type replicated struct {
	*redistest.Replicated
	t      *testing.T
	relay  *redistest.Relay
	rdb    *redis.Client // through the relay
	master *redis.Client // past it
	exec   *Executor
	key    string
}

func newReplicated(t *testing.T, opts redis.Options) *replicated {
	t.Helper()
	t.Parallel()
	r := &replicated{Replicated: redistest.NewReplicated(t, 1), t: t, key: redistest.Key(t)}
	r.master = r.Master.Client(t)
	loadScripts(t, r.master, idle, counting)
	r.relay = redistest.NewRelay(t, r.Master.Addr)
	opts.Addr = r.relay.Addr
	r.rdb = redis.NewClient(&opts)
	t.Cleanup(func() { _ = r.rdb.Close() })
	r.exec = executorOn(t, r.rdb)
	return r
}

// run has a script that writes key confirmed within d.
func (r *replicated) run(ctx context.Context, key string, d time.Duration) Outcome {
	e := CallOptions{Attempts: 3, Patience: r.exec.Patience}.ConfirmedBy(Replicas{N: 1, Timeout: d})
	_, out := r.exec.Run(ctx, e, counting, []any{key})
	return out
}

// begin is run in a goroutine of its own.
func (r *replicated) begin(ctx context.Context, key string) <-chan Outcome {
	done := make(chan Outcome, 1)
	go func() { done <- r.run(ctx, key, 5*time.Second) }()
	return done
}

// confirmed has a script confirmed, however long a loaded machine takes to replicate.
func (r *replicated) confirmed() {
	r.t.Helper()
	redistest.Eventually(r.t, "confirmed", func() bool {
		out := r.run(r.t.Context(), r.key, time.Second)
		return out.Err == nil && out.Unconfirmed == nil
	})
}

func TestReplicas_ForgottenScriptIsSentInFullWithItsWait(t *testing.T) {
	r := newReplicated(t, redis.Options{})
	require.NoError(t, r.master.ScriptFlush(t.Context()).Err())
	out := r.run(t.Context(), r.key, 4*time.Second)
	require.NoError(t, out.Err)
	require.NoError(t, out.Unconfirmed)
	require.False(t, out.Ambiguous, "nothing was in doubt")
	require.Equal(t, 2, r.relay.Count(waits), "behind both")
	require.Equal(t, 1, r.relay.Count(evals.And(redistest.With(r.key))))
}

func TestReplicas_ConcurrencyFollowsThePoolSize(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]int{1: 8, 16: 8, 20: 10, 200: 100} {
		rdb := redis.NewClient(&redis.Options{PoolSize: size})
		require.Equal(t, want, mostConfirmers(rdb), "of %d connections", size)
		require.NoError(t, rdb.Close())
	}
}

// What waits for replicas that do not answer is bounded.
func TestReplicas_ScriptWaitingForItsTurnIsNotUncertain(t *testing.T) {
	r := newReplicated(t, redis.Options{PoolSize: 2, PoolTimeout: 10 * time.Second})
	require.NoError(t, r.rdb.Ping(t.Context()).Err())
	require.NoError(t, r.Replicas[0].Pause())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var first []<-chan Outcome
	for i := range mostConfirmers(r.rdb) {
		first = append(first, r.begin(ctx, fmt.Sprintf("%s-%d", r.key, i)))
	}
	redistest.Eventually(t, "they wait", func() bool { return r.relay.Count(waits) == len(first) })
	brief, end := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer end()
	out := redistest.Receive(t, r.begin(brief, r.key))
	require.ErrorIs(t, out.Err, context.DeadlineExceeded)
	require.False(t, out.Ambiguous, "it was not sent")
	require.Equal(t, len(first), r.relay.Count(waits))
	require.EqualValues(t, 1, r.rdb.PoolStats().TotalConns, "none of the application's")
	cancel()
	for _, done := range first {
		out := redistest.Receive(t, done)
		require.ErrorIs(t, out.Err, context.Canceled)
		require.True(t, out.Ambiguous)
	}
	require.Zero(t, r.master.Exists(t.Context(), r.key).Val())
}

// They are not notified of a later failover.
func TestReplicas_FailedConnectionsAreNotReused(t *testing.T) {
	r := newReplicated(t, redis.Options{})
	used := func() (conn int) {
		r.relay.ResetLog()
		r.confirmed()
		for _, e := range r.relay.Log() {
			if waits(e.Command) {
				conn = e.Conn
			}
		}
		return conn
	}
	one := used()
	require.Equal(t, one, used())
	r.relay.ReplyWith("-READONLY You can't write against a read only replica.\r\n", runsOf(counting))
	two := used()
	require.NotEqual(t, one, two)
	require.NoError(t, r.Promote(t.Context(), r.Replicas[0])) // none is left to confirm
	unconfirmed := func() {
		t.Helper()
		out := r.run(t.Context(), r.key, time.Second)
		require.NoError(t, out.Err)
		require.ErrorIs(t, out.Unconfirmed, lockerr.ErrNotReplicated)
	}
	unconfirmed()
	r.relay.ResetLog()
	unconfirmed()
	for _, e := range r.relay.Log() {
		require.False(t, waits(e.Command) && e.Conn == two)
	}
}
