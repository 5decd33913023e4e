package redistest

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Lives that identify the origin of a value. They are so far apart that even a slow machine does not confuse them.
const (
	Short = 100 * time.Second  // of a key that exists before
	Asked = 1000 * time.Second // requested by a command
	Long  = 9000 * time.Second // of a key that exists before
	Day   = 24 * time.Hour     // of a counter

	Forever = -time.Millisecond     // PTTL of a key without expiry
	Nothing = -2 * time.Millisecond // PTTL of no key
)

// Picture is the whole content of one key on Redis.
type Picture struct {
	Kind string            // as TYPE returns it
	Hash map[string]string // if it is a hash
	Text string            // if it is a string
	Life time.Duration     // one of the constants, or the PTTL
}

// Absent is the picture of no key.
var Absent = Picture{Kind: "none", Life: Nothing}

// HashOf returns the picture of a hash with these fields and values.
func HashOf(life time.Duration, pairs ...string) Picture {
	p := Picture{Kind: "hash", Hash: map[string]string{}, Life: life}
	for pair := range slices.Chunk(pairs, 2) {
		p.Hash[pair[0]] = pair[1]
	}
	return p
}

// TextOf returns the picture of a string.
func TextOf(life time.Duration, text string) Picture {
	return Picture{Kind: "string", Text: text, Life: life}
}

// ListOf returns the picture of a list, without its elements.
func ListOf(life time.Duration) Picture { return Picture{Kind: "list", Life: life} }

// Paint sets key to the content p.
func Paint(tb testing.TB, rdb redis.UniversalClient, key string, p Picture) {
	tb.Helper()
	ctx := tb.Context()
	must(tb, rdb.Del(ctx, key).Err())
	switch p.Kind {
	case "none":
		return
	case "hash":
		for _, field := range slices.Sorted(maps.Keys(p.Hash)) {
			must(tb, rdb.HSet(ctx, key, field, p.Hash[field]).Err())
		}
	case "string":
		must(tb, rdb.Set(ctx, key, p.Text, 0).Err())
	case "list":
		must(tb, rdb.RPush(ctx, key, "x").Err())
	default:
		tb.Fatalf("%s: a key that cannot be painted", p.Kind)
	}
	if p.Life > 0 {
		must(tb, rdb.PExpire(ctx, key, p.Life).Err())
	}
}

// Look returns the content of key.
func Look(tb testing.TB, rdb redis.UniversalClient, key string) Picture {
	tb.Helper()
	ctx := tb.Context()
	kind, err := rdb.Type(ctx, key).Result()
	must(tb, err)
	p := Picture{Kind: kind, Life: Life(tb, rdb, key)}
	switch kind {
	case "hash":
		p.Hash, err = rdb.HGetAll(ctx, key).Result()
	case "string":
		p.Text, err = rdb.Get(ctx, key).Result()
	}
	must(tb, err)
	return p
}

// Life returns the constant that is the initial TTL of key, or, if there is none, the rest of its TTL.
func Life(tb testing.TB, rdb redis.UniversalClient, key string) time.Duration {
	tb.Helper()
	left, err := rdb.Do(tb.Context(), "pttl", key).Int64()
	must(tb, err)
	ttl := time.Duration(left) * time.Millisecond
	for _, life := range []time.Duration{Short, Asked, Long, Day} {
		if ttl <= life && ttl > life-Short/2 {
			return life
		}
	}
	return ttl
}

// MessagesDuring returns the messages that are published on channels while fn runs, channel by channel.
func MessagesDuring(tb testing.TB, rdb *redis.Client, channels []string, fn func()) [][]string {
	tb.Helper()
	ctx := tb.Context()
	sub := rdb.Subscribe(ctx, channels...)
	defer sub.Close()
	for range channels {
		_, err := sub.Receive(ctx)
		must(tb, err)
	}
	fn()
	const end = "end of test"
	messages := make([][]string, len(channels))
	for _, channel := range channels {
		must(tb, rdb.Publish(ctx, channel, end).Err())
		for {
			message, err := sub.ReceiveMessage(ctx)
			must(tb, err)
			if message.Payload == end && message.Channel == channel {
				break
			}
			at := slices.Index(channels, message.Channel)
			messages[at] = append(messages[at], message.Payload)
		}
	}
	return messages
}
