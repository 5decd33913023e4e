package keys

import "strings"

// Side tells apart the holds that one owner can have of one key at the same time.
type Side int

const (
	Alone   Side = iota // of a lock with one side
	Writing             // of a read-write lock
	Reading
)

// SideOf is the side of a read-write lock that a field is on.
func SideOf(field string) Side {
	if strings.HasSuffix(field, WriteSuffix) {
		return Writing
	}
	return Reading
}

// WriteSuffix ends the field of a write hold. An owner has no ':' in it.
const WriteSuffix = ":write"

// LineKeys are the names of the line of a key: a sorted set, and a hash of what is known of each entry.
type LineKeys struct{ Queue, Entries string }

// LineOf returns the names of the line of key.
func LineOf(key string) LineKeys {
	return LineKeys{Queue: ofLine(linePrefix, key), Entries: ofLine(entriesPrefix, key)}
}

// GrantsPrefix is what the channels begin with on which processes are told of grants of key.
func GrantsPrefix(key string) string { return ofLine(grantsPrefix, key) + ":" }

// RWKeys are the names of what a read-write lock has besides its key, which are Redisson's
// but for the claim.
type RWKeys struct {
	Claim    string
	Timeouts string // prefix of the timeout keys
	Words    []any  // KEYS of a script that minds the claim, and may mint a token
}

// ReadWrite makes t, of one key, that of a read-write lock.
func (t *Set) ReadWrite() {
	key := t.Keys[0]
	t.RW = &RWKeys{Claim: derived(rwClaimPrefix, key), Timeouts: key}
	if !strings.Contains(key, "{") {
		t.RW.Timeouts = "{" + key + "}"
	}
	t.RW.Words = boxed(key, t.RW.Claim, t.Counters[0])
	t.Channels = []string{derived(rwPrefix, key)}
}

// WithClaim returns the KEYS of a script that minds the claim. Those of one that only renews or gives back
// are the lock's: the claim is rarely there, and two keys of which one is missing are refused while
// their slot moves.
func (t *Set) WithClaim(mint bool) []any {
	if !mint {
		return t.RW.Words[:2:2]
	}
	return t.RW.Words
}
