package keys

import "strings"

// Side distinguishes the holds that one owner can have of one key at the same time: an owner that writes may
// also read. Permits never share a key with holds of another side.
type Side int

const (
	_       Side = iota // of a lock with one side
	Writing             // of a read-write lock
	Reading
	Permits // of a semaphore
)

// SideOf returns the side of a read-write lock that a field belongs to. It is meaningless for a lock with one side.
func SideOf(field string) Side {
	if strings.HasSuffix(field, WriteSuffix) {
		return Writing
	}
	return Reading
}

// WriteSuffix ends the field of a write hold. An owner contains no ':', and "write" is no owner. So the
// field of a reader never ends like this.
const WriteSuffix = ":write"

// LineKeys are the names of the line of a key: a sorted set, and a hash of the entries.
type LineKeys struct{ Queue, Entries string }

// LineOf returns the names of the line of key.
func LineOf(key string) LineKeys {
	return LineKeys{Queue: ofLine(linePrefix, key), Entries: ofLine(entriesPrefix, key)}
}

// PermitLineOf returns the names of the line of key, if it is a semaphore. They differ from those of a lock, so no script grants
// a lock to a waiter for permits, or the other way round.
func PermitLineOf(key string) LineKeys {
	return LineKeys{Queue: ofLine(permitLinePrefix, key), Entries: ofLine(permitEntriesPrefix, key)}
}

// GrantsPrefix begins the names of the channels for grants of key. Each process
// has one, whose name ends with its uuid.
func GrantsPrefix(key string) string { return ofLine(grantsPrefix, key) + ":" }

// WantedOf returns the channel on which the requests of waiters for key are announced.
func WantedOf(key string) string { return ofLine(wantedPrefix, key) }

// Semaphore makes t, of one key, the key of a semaphore. Init comes before it.
func (t *Set) Semaphore() {
	key := t.Keys[0]
	t.Side = Permits
	line := PermitLineOf(key)
	t.Line = boxed(key, t.Counters[0], line.Queue, line.Entries)
}

// RWKeys are the names of a read-write lock besides its key. They are Redisson's, except the claim.
type RWKeys struct {
	Claim    string // of the waiting writer, which keeps new readers out
	Timeouts string // prefix of the timeout keys: one for each count of each reader
	words    []any  // KEYS of a script that uses the claim, and may create a token: key, claim, counter
}

// ReadWrite makes t, of one key, the key of a read-write lock. Init comes before it.
func (t *Set) ReadWrite() {
	key := t.Keys[0]
	t.RW = &RWKeys{Claim: derived(rwClaimPrefix, key), Timeouts: key}
	if !strings.Contains(key, "{") {
		t.RW.Timeouts = "{" + key + "}"
	}
	t.RW.words = boxed(key, t.RW.Claim, t.Counters[0])
	t.Channels = []string{derived(rwPrefix, key)}
}

// WithClaim returns the KEYS of a script that uses the claim. A script that only renews or releases has only the
// lock's key: a claim is rare, and while a slot moves Redis refuses a command with two keys
// if one of them is missing. The result is shared, and has no room to append to.
func (t *Set) WithClaim(mint bool) []any {
	if !mint {
		return t.RW.words[:2:2]
	}
	return t.RW.words
}
