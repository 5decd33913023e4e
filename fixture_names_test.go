package relock

import "github.com/relock-go/relock/internal/keys"

// channelOf is where the waiters of a plain lock are told of its release.
func channelOf(key string) string { return derivedFrom(key).Channels[0] }

// counterOf is the counter of the tokens of a lock.
func counterOf(key string) string { return derivedFrom(key).Counters[0] }

func derivedFrom(key string) *keys.Set {
	t := new(keys.Set)
	if err := t.Init("", []string{key}); err != nil {
		panic(err)
	}
	return t
}
