package keys

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relock-go/relock/internal/lockerr"
)

// Derived names are Redisson's, so that Java processes and ours use the same keys and channels.
const (
	channelPrefix = "redisson_lock__channel"
	counterPrefix = "redisson_lock_token"
	rwPrefix      = "redisson_rwlock"

	javaQueuePrefix   = "redisson_lock_queue" // of Java's fair lock
	javaTimeoutPrefix = "redisson_lock_timeout"
)

// Names that only this library uses begin with its own name. So no key of Redisson's can be one of them.
const (
	linePrefix    = "relock_line"
	entriesPrefix = "relock_line_entries"
	grantsPrefix  = "relock_line_grants"
	wantedPrefix  = "relock_wanted"

	permitLinePrefix    = "relock_line_permits"
	permitEntriesPrefix = "relock_line_permit_entries"

	rwClaimPrefix = "relock_rw_claim"
	fencePrefix   = "relock_fence"
	clientPrefix  = "relock_client"
	waitsPrefix   = "relock_line_waits"
)

// OfClient returns the key at which the client with that uuid is registered: a hash of host, pid, program and
// since. It does not have the user's prefix, because an operator who finds a hold knows only the uuid of its client.
func OfClient(uuid string) string { return clientPrefix + ":" + uuid }

// WaitsOf returns the key at which the holders of key publish what they wait for.
func WaitsOf(key string) string { return ofLine(waitsPrefix, key) }

// ClientOf returns the uuid of the client of a field: a uuid contains no ':'.
func ClientOf(field string) string {
	uuid, _, _ := strings.Cut(field, ":")
	return uuid
}

// derived returns the name of a helper of key by Redisson's rule, which only checks whether the key contains a
// brace. For some keys the helper is then in another slot: see [derivable].
func derived(prefix, key string) string {
	if strings.Contains(key, "{") {
		return prefix + ":" + key
	}
	return prefix + ":{" + key + "}"
}

// ofLine returns the name of a key of the line of key. No two keys share one. By Redisson's rule "a" and
// "{a}" would: both would have prefix:{a}, and a release of one lock would grant the other one.
func ofLine(prefix, key string) string {
	if strings.Contains(key, "{") {
		return prefix + "::" + key
	}
	return prefix + ":{" + key + "}"
}

// helpers are the names that belong to a key. All of them are in its slot.
type helpers struct {
	counter, channel, javaQueue string
	line, entries               string
}

// helpersOf returns the helpers of key.
func helpersOf(key string) helpers {
	return helpers{
		counter: derived(counterPrefix, key), channel: derived(channelPrefix, key), javaQueue: derived(javaQueuePrefix, key),
		line: ofLine(linePrefix, key), entries: ofLine(entriesPrefix, key),
	}
}

// helperPrefixes begin the keys that belong to a lock, or to a client. Each is followed by a ':'.
var helperPrefixes = []string{counterPrefix, javaQueuePrefix, javaTimeoutPrefix, linePrefix, entriesPrefix, permitLinePrefix, permitEntriesPrefix, rwClaimPrefix, fencePrefix, clientPrefix, waitsPrefix}

// helperPrefix returns the prefix of key if key may be a helper of a lock with another name, and "" otherwise. A lock of
// such a name would be confused with the helper.
func helperPrefix(key string) string {
	prefix, _, found := strings.Cut(key, ":")
	if !found || !slices.Contains(helperPrefixes, prefix) {
		return ""
	}
	return prefix + ":"
}

// derivable reports whether the names derived from key stay in key's Cluster slot. They do not if it has a
// brace that is not part of a {tag}: then the scripts, which take key and helpers together, would be refused.
func derivable(key string) bool {
	if !strings.ContainsAny(key, "{}") {
		return true
	}
	return HashTag(derived(channelPrefix, key)) == HashTag(key)
}

// CheckHelperKeys returns why key cannot be a lock whose helper keys hold or grant it; nil if it can. The name
// must not be only a {tag}: its helpers would be those of the tag, which is another lock.
func CheckHelperKeys(key string) error {
	if tag := HashTag(key); key == "{"+tag+"}" {
		return fmt.Errorf("%w: %q would share its helper keys with the lock %q: remove the braces", lockerr.ErrInvalidName, key, tag)
	}
	return nil
}

// FenceOf returns the name of the key with the highest token that came with a write to key. It is in
// key's Cluster slot, so one script can use both. If there cannot be such a key, the error contains the reason.
func FenceOf(key string) (string, error) {
	switch tag := HashTag(key); {
	case key == "":
		return "", fmt.Errorf("%w: the name is empty", lockerr.ErrInvalidName)
	case !derivable(key):
		return "", fmt.Errorf("%w: %q has braces that do not form a {tag}: remove them, or the key of its token would be in another Cluster slot", lockerr.ErrInvalidName, key)
	case key == "{"+tag+"}":
		return "", fmt.Errorf("%w: %q would share the key of its token with %q: remove the braces", lockerr.ErrInvalidName, key, tag)
	}
	return derived(fencePrefix, key), nil
}

// HashTag returns the part of key that decides its Cluster slot: what is between the first '{' and the first
// '}' after it. If nothing is between them, or one of them is missing, that is the whole key.
func HashTag(key string) string {
	_, rest, opened := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(rest, "}")
	if !opened || !closed || tag == "" {
		return key
	}
	return tag
}
