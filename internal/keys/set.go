package keys

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relock-go/relock/internal/lockerr"
)

// Set is what a handle locks: one key, or several keys that are acquired together. It is created once for a handle, by
// Init, and then ReadWrite, Semaphore and Mints if they are needed. After that it never changes, and so it needs no mutex. Only,
// Without, Lacking and FencedWith return another set.
type Set struct {
	Side     Side
	Name     string   // as the user wrote it, for errors and hooks
	Keys     []string // sorted, without duplicates
	Counters []string // of the fencing tokens, one for each key; after FencedWith also the counters of other keys
	Channels []string // of the wake-ups, one for each key

	// KEYS as go-redis takes them, in the order of the header of the script. They are created once, to save an
	// allocation at each call.
	Freeing []any // of a script that releases locks: keys, and the queues of Java's fair lock
	Line    []any // of a script that serves the line of one key: key, counter, line, entries, Java's queue; nil for several keys
	Lined   []any // of a script that checks for a line of one key: key and line; nil for several keys
	Lines   []any // of a script that serves the lines of several keys: the lines
	minting []any // of a script that may mint a token: keys and counters; nil: created at each call

	RW *RWKeys // of a read-write lock, which has one key; otherwise nil

	// Absent are the nodes of a quorum that do not have the name of a hold. It belongs to one name: Lacking sets it in a
	// copy. In the set of a handle it is nil.
	Absent *Nodes

	// ID is equal for sets with the same keys: one comparison is enough.
	ID ID
}

// ID is equal for two sets if and only if they have the same keys. The side does not matter.
type ID struct {
	n    int    // number of keys
	text string // the key; of several keys, each after its length
}

// Init derives the keys of names. If a name cannot be a lock, the error contains the name, and the set must not be used.
func (t *Set) Init(prefix string, names []string) error {
	t.Name = strings.Join(names, ",")
	if len(names) == 0 {
		return fmt.Errorf("%w: no names: MultiMutex needs at least one", lockerr.ErrInvalidName)
	}
	for i, name := range names {
		if name == "" {
			return fmt.Errorf("%w: name %d of %d is empty", lockerr.ErrInvalidName, i+1, len(names))
		}
		if !derivable(prefix + name) {
			return fmt.Errorf("%w: %q, with the prefix %q, has braces that do not form a {tag}: remove them, or its helper keys would be in other Cluster slots",
				lockerr.ErrInvalidName, prefix+name, prefix)
		}
		if helper := helperPrefix(prefix + name); helper != "" {
			return fmt.Errorf("%w: %q may be a helper key of another lock: use a name that does not begin with %q",
				lockerr.ErrInvalidName, prefix+name, helper)
		}
		t.Keys = append(t.Keys, prefix+name)
	}
	// The keys are sorted, so that the same names are the same lock in any order. And if owners keep keys while they wait
	// for another key, they all do so in one order, and never wait in a circle.
	if len(t.Keys) > 1 {
		slices.Sort(t.Keys)
		t.Keys = slices.Compact(t.Keys)
	}
	t.derive()
	return nil
}

// derive sets all fields that follow from the keys. ReadWrite and Mints set the other fields.
func (t *Set) derive() {
	var queues []any
	for _, key := range t.Keys {
		h := helpersOf(key)
		t.Counters, t.Channels = append(t.Counters, h.counter), append(t.Channels, h.channel)
		t.Freeing, queues, t.Lines = append(t.Freeing, key), append(queues, h.javaQueue), append(t.Lines, h.line)
		if len(t.Keys) == 1 {
			t.Line, t.Lined = boxed(key, h.counter, h.line, h.entries, h.javaQueue), boxed(key, h.line)
		}
	}
	t.Freeing = slices.Clip(append(t.Freeing, queues...)) // calls share it: an append has to make a copy
	if len(t.Keys) == 1 {
		t.ID = ID{n: 1, text: t.Keys[0]}
		return
	}
	// The lengths distinguish two lists of keys that are equal when joined.
	var id strings.Builder
	for _, key := range t.Keys {
		fmt.Fprintf(&id, "%d:%s,", len(key), key)
	}
	t.ID = ID{n: len(t.Keys), text: id.String()}
}

// boxed returns texts as go-redis takes them. If they are created once, a call allocates nothing for them.
func boxed(texts ...string) []any { return box(make([]any, 0, len(texts)), texts) }

// box appends texts to boxes as go-redis takes them.
func box(boxes []any, texts []string) []any {
	for _, text := range texts {
		boxes = append(boxes, text)
	}
	return boxes
}

// Has reports whether key is a key of t.
func (t *Set) Has(key string) bool {
	if len(t.Keys) == 1 {
		return t.Keys[0] == key
	}
	_, found := slices.BinarySearch(t.Keys, key)
	return found
}

// Only returns the part of t with the given keys, which are sorted, and are keys of t. If these are all keys, it returns t
// itself. A part has no minting, because it seldom mints a token.
func (t *Set) Only(keys []string) *Set {
	if len(keys) == len(t.Keys) {
		return t
	}
	part := &Set{Side: t.Side, Name: t.Name, Keys: keys, Absent: t.Absent}
	part.derive()
	return part
}

// FencedWith returns t with the counters of whole as well. A token that is minted for the result is higher than all these
// counters, and is stored in all of them. So if an owner holds the keys of whole by several holds, it has one token, and
// that token is lower than the token of the next holder of any part.
func (t *Set) FencedWith(whole *Set) *Set {
	if !whole.Spans(t) {
		return t
	}
	fenced := *t
	fenced.Counters = slices.Clone(t.Counters)
	for _, counter := range whole.Counters {
		if !slices.Contains(fenced.Counters, counter) {
			fenced.Counters = append(fenced.Counters, counter)
		}
	}
	fenced.minting = nil
	return &fenced
}

// Spans reports whether t has keys that are not in part.
func (t *Set) Spans(part *Set) bool {
	return slices.ContainsFunc(t.Keys, func(key string) bool { return !part.Has(key) })
}

// Without returns the part of t whose keys have the hold count 0. counts has the hold count of each key of t. If no key has
// the count 0, it returns nil.
func (t *Set) Without(counts []int) *Set {
	var keys []string
	for i, key := range t.Keys {
		if counts[i] == 0 {
			keys = append(keys, key)
		}
	}
	if keys == nil {
		return nil
	}
	return t.Only(keys)
}

// OneSlot reports whether all keys have one hash tag, and so one Cluster slot. Keys with different tags may be in one slot
// by chance. Then OneSlot returns false, because similar names would be in different slots.
func (t *Set) OneSlot() bool {
	for _, key := range t.Keys[1:] {
		if HashTag(key) != HashTag(t.Keys[0]) {
			return false
		}
	}
	return true
}

// LocksAndCounters returns the KEYS of a script that may mint a token: the keys, and if mint is set, the counters. The
// caller must not write into the result, because calls share it.
func (t *Set) LocksAndCounters(mint bool) []any {
	switch {
	case !mint:
		return t.Locks()
	case t.minting != nil:
		return t.minting
	default:
		return box(slices.Clone(t.Locks()), t.Counters)
	}
}

// Mints creates the KEYS of scripts that mint a token once for all calls. It is called before t is used.
func (t *Set) Mints() { t.minting = t.LocksAndCounters(true) }

// Locks returns the KEYS of a script that mints no token. Its capacity is limited, so that an append makes a copy.
func (t *Set) Locks() []any { return t.Freeing[:len(t.Keys):len(t.Keys)] }
