package keys

import (
	"fmt"
	"strings"

	"github.com/relock-go/relock/internal/lockerr"
)

// Derived names are Redisson's, so that Java processes meet ours on the same keys.
const (
	channelPrefix = "redisson_lock__channel"
	counterPrefix = "redisson_lock_token"
	rwPrefix      = "redisson_rwlock"

	javaQueuePrefix = "redisson_lock_queue" // of Java's fair lock
)

// What only this library has is called by its own name.
const (
	fairQueuePrefix   = "relock_fair_queue"
	fairEntriesPrefix = "relock_fair_entries"
	fairGrantsPrefix  = "relock_fair_grants"
	rwClaimPrefix     = "relock_rw_claim"
	fencePrefix       = "relock_fence"
)

// derived returns the name of a helper of key. Redisson asks only whether the key
// contains a brace; see [derivable] for the keys for which that is right.
func derived(prefix, key string) string {
	if strings.Contains(key, "{") {
		return prefix + ":" + key
	}
	return prefix + ":{" + key + "}"
}

// helpersOf returns the names of the token counter of key, of its wake-up channel, and of the queue
// of Java's fair lock, which are parts of one text: a handle is made for each use of a lock, and
// each text is an allocation.
func helpersOf(key string) (counter, channel, queue string) {
	before, after := ":{", "}"
	if strings.Contains(key, "{") {
		before, after = ":", ""
	}
	all := counterPrefix + before + key + after + channelPrefix + before + key + after + javaQueuePrefix + before + key + after
	rest := len(before) + len(key) + len(after)
	n := len(counterPrefix) + rest
	m := n + len(channelPrefix) + rest
	return all[:n], all[n:m], all[m:]
}

// derivable reports whether the names derived from key stay in key's Cluster slot.
func derivable(key string) bool {
	if !strings.ContainsAny(key, "{}") {
		return true
	}
	return HashTag(derived(channelPrefix, key)) == HashTag(key)
}

// CheckHelperKeys says why key cannot be a lock that has keys beside it which hold or grant it. Those of a
// name that is a {tag} and nothing else would be those of the tag, another lock.
func CheckHelperKeys(key string) error {
	if tag := HashTag(key); key == "{"+tag+"}" {
		return fmt.Errorf("%w: %q would share its helper keys with %q, another lock: leave the braces out", lockerr.ErrInvalidName, key, tag)
	}
	return nil
}

// FenceOf returns the name of the key that remembers the highest token that came with a write to key, which
// is in key's Cluster slot.
func FenceOf(key string) (string, error) {
	switch tag := HashTag(key); {
	case key == "":
		return "", fmt.Errorf("%w: empty", lockerr.ErrInvalidName)
	case !derivable(key):
		return "", fmt.Errorf("%w: %q has braces that are no {tag}: the key of its token would fall into another Cluster slot", lockerr.ErrInvalidName, key)
	case key == "{"+tag+"}":
		return "", fmt.Errorf("%w: %q would share the key of its token with %q: leave the braces out", lockerr.ErrInvalidName, key, tag)
	}
	return derived(fencePrefix, key), nil
}

// HashTag returns the part of key that decides its Cluster slot: what stands between the
// first '{' and the first '}' after it, or all of the key if there is nothing.
func HashTag(key string) string {
	_, rest, opened := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(rest, "}")
	if !opened || !closed || tag == "" {
		return key
	}
	return tag
}
