package relock

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// Fields and lives that tell at a glance where a value came from: the lives are so far
// apart that no machine is slow enough to confuse them.
const (
	me, you, them = "uuid-1:7", "uuid-1:8", "uuid-2:7"

	short = 100 * time.Second  // of a key that is there before
	asked = 1000 * time.Second // that a script asks for
	long  = 9000 * time.Second // of a key that is there before

	forever = -time.Millisecond     // PTTL of a key without expiry
	nothing = -2 * time.Millisecond // PTTL of no key
)

// bench is a protocol to be tested on its own, and a look at what it does to Redis.
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

// eachBench runs fn against both backends.
func eachBench(t *testing.T, fn func(t *testing.T, b *bench)) {
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		fn(t, newBench(t, backend.Client(t)))
	})
}

// with returns b for a subtest.
func (b *bench) with(t *testing.T) *bench {
	t.Helper()
	return &bench{Plain: b.Plain, t: t, rdb: b.rdb}
}

// target returns a target of n keys that no other test uses.
func (b *bench) target(n int) *keys.Set {
	prefix := redistest.Key(b.t)
	names := make([]string, n)
	for i := range names {
		names[i] = prefix + ":" + string(rune('a'+i))
	}
	t, err := keys.New("", names)
	require.NoError(b.t, err)
	return t
}

// termsOf are the terms of a test's lock.
func termsOf(opts ...MutexOption) *protocol.Terms {
	s := resolved(defaultSettings().settings, append([]MutexOption{WithTTL(asked)}, opts...))
	return &s.Terms
}

// picture is all that Redis knows of one key.
type picture struct {
	kind string            // as TYPE says it
	hash map[string]string // if it is a hash
	text string            // if it is a string
	life time.Duration     // short, asked, long, forever or nothing
}

var absent = picture{kind: "none", life: nothing}

func hashOf(life time.Duration, pairs ...string) picture {
	p := picture{kind: "hash", hash: map[string]string{}, life: life}
	for pair := range slices.Chunk(pairs, 2) {
		p.hash[pair[0]] = pair[1]
	}
	return p
}

func textOf(life time.Duration, text string) picture {
	return picture{kind: "string", text: text, life: life}
}

// paint makes key look like p.
func (b *bench) paint(key string, p picture) {
	b.t.Helper()
	ctx := b.t.Context()
	require.NoError(b.t, b.rdb.Del(ctx, key).Err())
	switch p.kind {
	case "none":
		return
	case "hash":
		for _, field := range slices.Sorted(maps.Keys(p.hash)) {
			require.NoError(b.t, b.rdb.HSet(ctx, key, field, p.hash[field]).Err())
		}
	case "string":
		require.NoError(b.t, b.rdb.Set(ctx, key, p.text, 0).Err())
	case "list":
		require.NoError(b.t, b.rdb.RPush(ctx, key, "x").Err())
	}
	if p.life > 0 {
		require.NoError(b.t, b.rdb.PExpire(ctx, key, p.life).Err())
	}
}

// look returns what key looks like.
func (b *bench) look(key string) picture {
	b.t.Helper()
	ctx := b.t.Context()
	kind, err := b.rdb.Type(ctx, key).Result()
	require.NoError(b.t, err)
	p := picture{kind: kind, life: b.life(key)}
	switch kind {
	case "hash":
		p.hash, err = b.rdb.HGetAll(ctx, key).Result()
	case "string":
		p.text, err = b.rdb.Get(ctx, key).Result()
	}
	require.NoError(b.t, err)
	return p
}

// life returns the life that key was given, as long as it is one of those of the tests.
func (b *bench) life(key string) time.Duration {
	b.t.Helper()
	left, err := b.rdb.Do(b.t.Context(), "pttl", key).Int64()
	require.NoError(b.t, err)
	ttl := time.Duration(left) * time.Millisecond
	for _, life := range []time.Duration{short, asked, long, counterLife} {
		if ttl <= life && ttl > life-short/2 {
			return life
		}
	}
	return ttl
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

// heard returns what is published on the channels of t while fn runs, channel by channel.
func (b *bench) heard(t *keys.Set, fn func()) [][]string {
	b.t.Helper()
	ctx := b.t.Context()
	sub := b.rdb.Subscribe(ctx, t.Channels...)
	defer sub.Close()
	for range t.Channels {
		_, err := sub.Receive(ctx)
		require.NoError(b.t, err)
	}
	fn()
	const end = "end of test"
	heard := make([][]string, len(t.Channels))
	for _, channel := range t.Channels {
		require.NoError(b.t, b.rdb.Publish(ctx, channel, end).Err())
		for {
			message, err := sub.ReceiveMessage(ctx)
			require.NoError(b.t, err)
			if message.Payload == end && message.Channel == channel {
				break
			}
			at := slices.Index(t.Channels, message.Channel)
			heard[at] = append(heard[at], message.Payload)
		}
	}
	return heard
}

// mustDo fails the test unless the outcome is a clean answer.
func mustDo(t *testing.T, out redisexec.Outcome) {
	t.Helper()
	require.NoError(t, out.Err)
	require.False(t, out.Ambiguous, "answered at once, so nothing is in doubt")
}

// refusedAs checks an outcome that says that the call was refused and changed nothing.
func refusedAs(t *testing.T, out redisexec.Outcome, sentinel error, text string) {
	t.Helper()
	require.ErrorIs(t, out.Err, sentinel)
	require.ErrorContains(t, out.Err, text)
	require.True(t, out.Permanent, "no retry helps")
	require.False(t, out.Ambiguous, "nothing was changed")
}
