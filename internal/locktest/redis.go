package locktest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redistest"
)

// ChannelOf returns the channel on which the release of a plain lock is published.
func ChannelOf(key string) string { return derivedFrom(key).Channels[0] }

// ClaimOf is the claim of a writer that waits for a read-write lock.
func ClaimOf(key string) string {
	t := derivedFrom(key)
	t.ReadWrite()
	return t.RW.Claim
}

// CounterOf is the counter of the tokens of a lock.
func CounterOf(key string) string { return derivedFrom(key).Counters[0] }

func derivedFrom(key string) *keys.Set {
	t := new(keys.Set)
	if err := t.Init("", []string{key}); err != nil {
		panic(err)
	}
	return t
}

// NamesFrom returns n names that begin with key.
func NamesFrom(key string, n int) []string {
	var names []string
	for i := range n {
		names = append(names, key+"-"+string(rune('a'+i)))
	}
	return names
}

// OnRedis returns the fields of a key.
func OnRedis(t *testing.T, rdb redis.UniversalClient, key string) map[string]string {
	t.Helper()
	fields, err := rdb.HGetAll(t.Context(), key).Result()
	require.NoError(t, err)
	return fields
}

// RequireOnRedis requires that only field holds key, with the hold count count.
func RequireOnRedis(t *testing.T, rdb redis.UniversalClient, key, field string, count int) {
	t.Helper()
	require.Equal(t, map[string]string{field: fmt.Sprint(count)}, OnRedis(t, rdb, key))
}

// RequireFree requires that none of keys exists.
func RequireFree(t *testing.T, rdb redis.UniversalClient, keys ...string) {
	t.Helper()
	require.Zero(t, rdb.Exists(t.Context(), keys...).Val(), "keys left of %v", keys)
}

// TTLOf returns the TTL of key.
func TTLOf(rdb redis.UniversalClient, key string) time.Duration {
	return rdb.PTTL(context.Background(), key).Val()
}

// HeldByAnother makes another client hold key, as the field another:1. With ttl 0 it is without expiry.
func HeldByAnother(t *testing.T, rdb redis.UniversalClient, key string, ttl time.Duration) {
	t.Helper()
	require.NoError(t, rdb.HSet(t.Context(), key, "another:1", 1).Err())
	if ttl > 0 {
		require.NoError(t, rdb.PExpire(t.Context(), key, ttl).Err())
	}
}

// Publishes wakes the waiters of key.
func Publishes(t *testing.T, rdb redis.UniversalClient, key string) {
	t.Helper()
	require.NoError(t, rdb.Publish(t.Context(), ChannelOf(key), "0").Err())
}

// Listeners returns the number of connections that are subscribed to releases of key.
func Listeners(t *testing.T, rdb redis.UniversalClient, key string) int {
	t.Helper()
	channel := ChannelOf(key)
	n, err := rdb.PubSubNumSub(t.Context(), channel).Result()
	require.NoError(t, err)
	return int(n[channel])
}

// AwaitSubscribed waits until the process of c, which waits in the line of key, would receive the messages about it.
func AwaitSubscribed(t *testing.T, rdb redis.UniversalClient, key string, c interface{ ID() string }) {
	t.Helper()
	channels := []string{ChannelOf(key), keys.GrantsPrefix(key) + c.ID()}
	redistest.Eventually(t, "subscribed", func() bool {
		n, err := rdb.PubSubNumSub(t.Context(), channels...).Result()
		return err == nil && n[channels[0]] > 0 && n[channels[1]] > 0
	})
}

// FairQueueOf returns the fields in the line of key.
func FairQueueOf(t *testing.T, rdb redis.UniversalClient, key string) []string {
	t.Helper()
	fields, err := rdb.ZRange(t.Context(), keys.LineOf(key).Queue, 0, -1).Result()
	require.NoError(t, err)
	return fields
}

// AwaitFairQueue waits until the line of key has n entries.
func AwaitFairQueue(t *testing.T, rdb redis.UniversalClient, key string, n int) {
	t.Helper()
	redistest.Eventually(t, fmt.Sprintf("%d in the queue", n), func() bool { return len(FairQueueOf(t, rdb, key)) == n })
}

// ClientsOf returns a client of each node.
func ClientsOf(t *testing.T, nodes []*redistest.Backend) []redis.UniversalClient {
	t.Helper()
	var rdbs []redis.UniversalClient
	for _, n := range nodes {
		rdbs = append(rdbs, n.Client(t))
	}
	return rdbs
}

// TrafficOf describes what went through relay, with times since start, for failures that cannot be repeated.
func TrafficOf(relay *redistest.Relay, start time.Time) string {
	var text strings.Builder
	for _, e := range relay.Log() {
		fmt.Fprintf(&text, "%v connection %d: %.60q -> %.60q\n", e.Time.Sub(start), e.Conn, e.Command, e.Reply)
	}
	return text.String()
}
