package redisexec

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// eachWay runs test with an executor on a client with these options for each way that a command may go. piped: copies go
// through a pipeline, too, which does not say whether it had a connection.
func eachWay(t *testing.T, o func(t *testing.T) *redis.Options, test func(t *testing.T, out Outcome, piped bool)) {
	t.Helper()
	replicas := CallOptions{Patience: time.Second}.ConfirmedBy(Replicas{N: 1, Timeout: time.Second})
	for name, e := range map[string]CallOptions{"plainly": {}, "for replicas": replicas} {
		for _, unpipelined := range []bool{true, false} {
			eachContext(t, func(t *testing.T, ctx context.Context) {
				t.Run(name, func(t *testing.T) {
					rdb := redis.NewClient(o(t))
					t.Cleanup(func() { _ = rdb.Close() })
					x := executorOn(t, rdb)
					x.Unpipelined = unpipelined
					e := e
					e.Attempts = 3
					_, out := x.Run(ctx, e, idle, []any{redistest.Key(t)})
					test(t, out, !unpipelined && e.Replicas.N == 0)
				})
			})
		}
	}
}

// As behind a Sentinel without the master.
func TestRun_DoesNotTakeNilForAnAnswer(t *testing.T) {
	t.Parallel()
	dial := func(context.Context, string, string) (net.Conn, error) { return nil, redis.Nil }
	eachWay(t, func(*testing.T) *redis.Options { return &redis.Options{Dialer: dial, DialerRetries: 1} },
		func(t *testing.T, out Outcome, piped bool) {
			require.ErrorIs(t, out.Err, errNoServer)
			require.NotErrorIs(t, out.Err, redis.Nil, "for which callers would take it")
			require.False(t, out.Permanent)
			require.True(t, piped || !out.Ambiguous)
		})
}

// barring is a Limiter that lets nothing through.
type barring struct{}

var errBarred = errors.New("too many requests")

func (barring) Allow() error       { return errBarred }
func (barring) ReportResult(error) {}

func TestRun_OutcomeIsKnownAfterALimiterHasRefused(t *testing.T) {
	t.Parallel()
	addr := redistest.Mini(t).Addr
	eachWay(t, func(*testing.T) *redis.Options { return &redis.Options{Addr: addr, Limiter: barring{}} },
		func(t *testing.T, out Outcome, _ bool) {
			require.ErrorIs(t, out.Err, errBarred)
			require.False(t, out.Ambiguous)
		})
}

func TestRun_OutcomeIsKnownAfterAHandshakeHasFailed(t *testing.T) {
	t.Parallel()
	addr := redistest.Mini(t).Addr
	eachWay(t, func(*testing.T) *redis.Options {
		return &redis.Options{Addr: addr, DialerRetries: 1, TLSConfig: &tls.Config{InsecureSkipVerify: true}}
	}, func(t *testing.T, out Outcome, piped bool) {
		require.Error(t, out.Err)
		require.True(t, piped || !out.Ambiguous, "%v", out.Err)
	})
}
