package keys

import "strings"

// Side tells apart the holds that one owner can have of one key at the same time: an owner that writes may
// also read.
type Side int

const (
	Alone   Side = iota // of a lock with one side
	Writing             // of a read-write lock
	Reading
)

// SideOf is the side of a read-write lock that a field is on. It makes no sense for a lock with one side.
func SideOf(field string) Side {
	if strings.HasSuffix(field, WriteSuffix) {
		return Writing
	}
	return Reading
}

// WriteSuffix ends the field of a write hold. An owner has no ':' in it, and "write" is no owner: so the
// field of a reader never ends like this.
const WriteSuffix = ":write"

// LineKeys are the names of the line of a key: a sorted set, and a hash of what is known of each entry.
type LineKeys struct{ Queue, Entries string }

// LineOf returns the names of the line of key.
func LineOf(key string) LineKeys {
	return LineKeys{Queue: ofLine(linePrefix, key), Entries: ofLine(entriesPrefix, key)}
}

// GrantsPrefix begins the names of the channels on which processes are told of grants of key. Each process
// has one: its uuid follows.
func GrantsPrefix(key string) string { return ofLine(grantsPrefix, key) + ":" }

// RWKeys are the names of what a read-write lock has besides its key. They are Redisson's, except the claim.
type RWKeys struct {
	Claim    string // of the writer that waits and keeps new readers out
	Timeouts string // prefix of the timeout keys: one for each level of each reader
	Words    []any  // KEYS of a script that minds the claim, and may mint a token: key, claim, counter
}

// ReadWrite makes t, of one key, that of a read-write lock. Init comes before it.
func (t *Set) ReadWrite() {
	key := t.Keys[0]
	t.RW = &RWKeys{Claim: derived(rwClaimPrefix, key), Timeouts: key}
	if !strings.Contains(key, "{") {
		t.RW.Timeouts = "{" + key + "}"
	}
	t.RW.Words = boxed(key, t.RW.Claim, t.Counters[0])
	t.Channels = []string{derived(rwPrefix, key)}
}

// WithClaim returns the KEYS of a script that minds the claim. A script that only renews or gives back has the
// lock's key alone: the claim is rarely there, and while a slot moves Redis refuses a command with two keys
// if one of them is missing. The result is shared, and so it has no room to append to.
func (t *Set) WithClaim(mint bool) []any {
	if !mint {
		return t.RW.Words[:2:2]
	}
	return t.RW.Words
}
