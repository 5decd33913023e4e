package relock

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// What tests of verdicts and of the executor send, without a client: one request for a plain lock.

const me = "uuid-1:7" // a field

var once = redisexec.CallOptions{Attempts: 1}

// bench is the protocol of a plain lock on its own.
type bench struct {
	*protocol.Plain
	t   *testing.T
	rdb *redis.Client
}

func newBench(t *testing.T, rdb *redis.Client) *bench {
	t.Helper()
	return &bench{Plain: plainOn(t, rdb), t: t, rdb: rdb}
}

func plainOn(tb testing.TB, rdb redis.UniversalClient) *protocol.Plain {
	tb.Helper()
	x := redisexec.New(rdb, clock.System, defaultTTL)
	tb.Cleanup(func() { x.Close(context.Background()) })
	return protocol.NewPlain(x, false)
}

// target returns n keys that no other test uses.
func (b *bench) target(n int) *keys.Set {
	b.t.Helper()
	return targetOf(b.t, n)
}

// termsOf are the terms of a test's lock.
func termsOf(opts ...MutexOption) *protocol.Terms {
	s := resolved(defaultSettings().settings, opts)
	return &s.Terms
}

// mustDo fails the test unless the outcome is a clean answer.
func mustDo(tb testing.TB, out redisexec.Outcome) {
	tb.Helper()
	require.NoError(tb, out.Err)
	require.False(tb, out.Ambiguous, "answered at once, so nothing is in doubt")
}

// targetOf returns n keys that no other test uses.
func targetOf(tb testing.TB, n int) *keys.Set {
	tb.Helper()
	prefix := redistest.Key(tb)
	names := make([]string, n)
	for i := range names {
		names[i] = prefix + ":" + string(rune('a'+i))
	}
	t := new(keys.Set)
	require.NoError(tb, t.Init("", names))
	return t
}

func anys(words []string) []any {
	list := make([]any, len(words))
	for i, word := range words {
		list[i] = word
	}
	return list
}
