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
	linePrefix    = "relock_line"
	entriesPrefix = "relock_line_entries"
	grantsPrefix  = "relock_line_grants"
	rwClaimPrefix = "relock_rw_claim"
	fencePrefix   = "relock_fence"
	clientPrefix  = "relock_client"
)

// OfClient is the key at which the client with that uuid is registered: a hash of host, pid, program and since.
// It has no prefix of the user's, because who finds a hold knows the uuid and nothing else of its client.
func OfClient(uuid string) string { return clientPrefix + ":" + uuid }

// ClientOf is the uuid of the client that a field is of.
func ClientOf(field string) string {
	uuid, _, _ := strings.Cut(field, ":")
	return uuid
}

// derived returns the name of a helper of key. Redisson asks only whether the key
// contains a brace; see [derivable] for the keys for which that is right.
func derived(prefix, key string) string {
	if strings.Contains(key, "{") {
		return prefix + ":" + key
	}
	return prefix + ":{" + key + "}"
}

// ofLine returns the name of what belongs to the line of key. No two keys share one, as "a" and "{a}"
// do where names are derived as Redisson does.
func ofLine(prefix, key string) string {
	if strings.Contains(key, "{") {
		return prefix + "::" + key
	}
	return prefix + ":{" + key + "}"
}

// helpers are the names that belong to a key.
type helpers struct {
	counter, channel, javaQueue string
	line, entries               string
}

// helpersOf returns the helpers of key, which are parts of one text: a handle is made for each use of a
// lock, and each text is an allocation.
func helpersOf(key string) (h helpers) {
	before, own, after := ":{", ":{", "}"
	if strings.Contains(key, "{") {
		before, own, after = ":", "::", ""
	}
	all := counterPrefix + before + key + after + channelPrefix + before + key + after + javaQueuePrefix + before + key + after +
		linePrefix + own + key + after + entriesPrefix + own + key + after
	next := func(length int) (name string) {
		name, all = all[:length], all[length:]
		return name
	}
	rest, ownRest := len(before)+len(key)+len(after), len(own)+len(key)+len(after)
	h.counter, h.channel, h.javaQueue = next(len(counterPrefix)+rest), next(len(channelPrefix)+rest), next(len(javaQueuePrefix)+rest)
	h.line, h.entries = next(len(linePrefix)+ownRest), all
	return h
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
		return fmt.Errorf("%w: %q would share its helper keys with the lock %q: leave the braces out", lockerr.ErrInvalidName, key, tag)
	}
	return nil
}

// FenceOf returns the name of the key that remembers the highest token that came with a write to key, which
// is in key's Cluster slot.
func FenceOf(key string) (string, error) {
	switch tag := HashTag(key); {
	case key == "":
		return "", fmt.Errorf("%w: the name is empty", lockerr.ErrInvalidName)
	case !derivable(key):
		return "", fmt.Errorf("%w: %q has braces that do not form a {tag}: remove them, or the key of its token would be in another Cluster slot", lockerr.ErrInvalidName, key)
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
