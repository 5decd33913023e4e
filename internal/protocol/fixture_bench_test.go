package protocol

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

const (
	me, you, them = "uuid-1:7", "uuid-1:8", "uuid-2:7" // fields

	usualTTL = 30 * time.Second // of a client; its executor waits for a reply accordingly

	short, asked, long, day = redistest.Short, redistest.Asked, redistest.Long, redistest.Day
	forever                 = redistest.Forever
)

var (
	options = redisexec.CallOptions{Attempts: 3} // as an acquisition has it
	once    = redisexec.CallOptions{Attempts: 1}
)

type picture = redistest.Picture

var (
	absent = redistest.Absent
	hashOf = redistest.HashOf
	textOf = redistest.TextOf
	listOf = redistest.ListOf
)

// bench is a protocol to be tested on its own, and a look at what it does to Redis.
type bench struct {
	*Plain
	t   *testing.T
	rdb *redis.Client
}

func newBench(t *testing.T, rdb *redis.Client) *bench {
	t.Helper()
	return &bench{Plain: plainOn(t, rdb), t: t, rdb: rdb}
}

func plainOn(tb testing.TB, rdb redis.UniversalClient) *Plain {
	tb.Helper()
	return NewPlain(executorOn(tb, rdb, clock.System, usualTTL), false)
}

func executorOn(tb testing.TB, rdb redis.UniversalClient, now clock.Clock, ttl time.Duration) *redisexec.Executor {
	tb.Helper()
	x := redisexec.New(rdb, now, ttl)
	x.Unpipelined = redistest.WithoutPipelining()
	x.Patience = 10 * time.Second // a busy machine answers late, and then a second copy would be sent
	tb.Cleanup(func() { x.Close(context.Background()) })
	return x
}

// eachBench runs fn against both backends.
func eachBench(t *testing.T, fn func(t *testing.T, b *bench)) {
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		fn(t, newBench(t, backend.Client(t)))
	})
}

// target returns n keys that no other test uses.
func (b *bench) target(n int) *keys.Set {
	b.t.Helper()
	prefix := redistest.Key(b.t)
	names := make([]string, n)
	for i := range names {
		names[i] = prefix + ":" + string(rune('a'+i))
	}
	return keysOf(b.t, names...)
}

// keysOf returns the keys of these names.
func keysOf(tb testing.TB, names ...string) *keys.Set {
	tb.Helper()
	t := new(keys.Set)
	require.NoError(tb, t.Init("", names))
	return t
}

// termsOf are the terms of a test's lock.
func termsOf(changes ...func(*Terms)) *Terms {
	s := &Terms{TTL: asked, Renewed: true, SafetyPoll: 5 * time.Second}
	for _, change := range changes {
		change(s)
	}
	return s
}

func fencing(s *Terms)       { s.Fencing, s.CounterLife = true, day }
func sharedFencing(s *Terms) { s.Fencing, s.CounterLife = true, 0 }

// paint makes key look like p.
func (b *bench) paint(key string, p picture) {
	b.t.Helper()
	redistest.Paint(b.t, b.rdb, key, p)
}

// paintAll makes the keys of t look like the pictures.
func (b *bench) paintAll(t *keys.Set, pictures ...picture) {
	b.t.Helper()
	require.Len(b.t, pictures, len(t.Keys))
	for i, p := range pictures {
		b.paint(t.Keys[i], p)
	}
}

// look returns what key looks like.
func (b *bench) look(key string) picture {
	b.t.Helper()
	return redistest.Look(b.t, b.rdb, key)
}

// lookAll returns what the keys of t look like.
func (b *bench) lookAll(t *keys.Set) []picture {
	b.t.Helper()
	pictures := make([]picture, len(t.Keys))
	for i, key := range t.Keys {
		pictures[i] = b.look(key)
	}
	return pictures
}

// counted are n keys that all have one count.
func counted(n int, p picture) []picture {
	pictures := make([]picture, n)
	for i := range pictures {
		pictures[i] = p
	}
	return pictures
}

// messages returns what is published on the channels of t while fn runs, channel by channel.
func (b *bench) messages(t *keys.Set, fn func()) [][]string {
	b.t.Helper()
	return redistest.MessagesDuring(b.t, b.rdb, t.Channels, fn)
}

// ttl is what is left of the life of key.
func (b *bench) ttl(key string) time.Duration {
	b.t.Helper()
	return b.rdb.PTTL(b.t.Context(), key).Val()
}

// mustDo fails the test unless the outcome is a clean answer.
func mustDo(tb testing.TB, out redisexec.Outcome) {
	tb.Helper()
	require.NoError(tb, out.Err)
	require.False(tb, out.Ambiguous, "answered at once, so nothing is in doubt")
}

// refusedAs checks an outcome that says that the call was refused and changed nothing.
func refusedAs(t *testing.T, out redisexec.Outcome, sentinel error, text string) {
	t.Helper()
	require.ErrorIs(t, out.Err, sentinel)
	require.ErrorContains(t, out.Err, text)
	require.True(t, out.Permanent, "no retry helps")
	require.False(t, out.Ambiguous, "nothing was changed")
}

// throughout requires cond whenever it looks, for as long as d.
func throughout(t *testing.T, d time.Duration, cond func() bool, what string) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(redistest.LookEvery) {
		require.True(t, cond(), what)
	}
}
