package redisexec

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/redistest"
)

// usualTTL is the lease that the executors of most tests are for.
const usualTTL = 30 * time.Second

// idle is a script of no effect.
var idle = NewScript("return 1")

// counting is a script that says by a key how often it ran.
var counting = NewScript("return redis.call('incr', KEYS[1])")

// once is one copy of a command.
var once = CallOptions{Attempts: 1}

// tryOf is the first copy of a call, whose caller waits for it until ctx ends.
func tryOf(ctx context.Context) *try { return &try{ctx: ctx, wait: ctx, n: 1} }

// executorOn returns an executor that is closed before rdb is.
func executorOn(t *testing.T, rdb redis.UniversalClient) *Executor {
	t.Helper()
	x := New(rdb, clock.System, usualTTL)
	x.Unpipelined = redistest.WithoutPipelining()
	t.Cleanup(func() { x.Close(context.Background()) })
	return x
}

// clientOf returns a client of what is at addr, with go-redis' default options.
func clientOf(t *testing.T, addr string) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(redistest.Options(addr))
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// relayedTo returns a relay to b and a client that goes through it. The scripts are known to the
// server, so that a rule for one meets a run of it.
func relayedTo(t *testing.T, b *redistest.Backend, scripts ...*Script) (*redistest.Relay, *redis.Client) {
	t.Helper()
	loadScripts(t, b.Client(t), scripts...)
	relay := redistest.NewRelay(t, b.Addr)
	return relay, clientOf(t, relay.Addr)
}

// loadScripts loads scripts into a server.
func loadScripts(t *testing.T, rdb redis.UniversalClient, scripts ...*Script) {
	t.Helper()
	for _, s := range scripts {
		require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source()).Err())
	}
}

func runsOf(s *Script) redistest.Match { return redistest.Script(s.Source()) }

// meant is the verdict on an error that means that.
func meant(m redistest.Meaning) verdict {
	return verdict{notExecuted: m.NotExecuted, resend: m.Resend, permanent: m.Permanent}
}
