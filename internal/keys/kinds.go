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

// FairKeys are the names of what a fair lock has besides those of a plain one.
type FairKeys struct {
	Queue, Entries string
	Grants         string // prefix of the channels
	Words          []any  // KEYS of all scripts
	Freeing        []any  // and those of the release
}

// NewFair derives the names of a fair lock.
func NewFair(key string) *FairKeys {
	k := &FairKeys{
		Queue:   derived(fairQueuePrefix, key),
		Entries: derived(fairEntriesPrefix, key),
		Grants:  GrantsPrefix(key),
	}
	k.Freeing = boxed(key, k.Queue, k.Entries, derived(counterPrefix, key), derived(javaQueuePrefix, key))
	k.Words = k.Freeing[:4:4]
	return k
}

// GrantsPrefix is what the channels begin with on which processes are told of grants of key.
func GrantsPrefix(key string) string { return derived(fairGrantsPrefix, key) + ":" }

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
