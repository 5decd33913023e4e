package relock

import (
	"fmt"
	"slices"
	"strings"
)

// Derived names are Redisson's, so that Java processes meet ours on the same keys.
const (
	channelPrefix = "redisson_lock__channel"
	counterPrefix = "redisson_lock_token"
	rwPrefix      = "redisson_rwlock"
)

// What only this library has is called by its own name.
const (
	fairQueuePrefix   = "relock_fair_queue"
	fairEntriesPrefix = "relock_fair_entries"
	fairGrantsPrefix  = "relock_fair_grants"
	rwClaimPrefix     = "relock_rw_claim"
)

// target is what a handle locks: one key, or several taken together. It is made once for
// a handle and never changes.
type target struct {
	kind     *kind    // of lock
	name     string   // as the user wrote it, for errors and hooks
	keys     []string // sorted, without doubles
	counters []string // of the fencing tokens, one for each key; and others (see fencedWith)
	channels []string // of the wake-ups, one for each key
	words    []any    // KEYS of a script that may mint a token: keys and counters, as go-redis takes them

	fair *fairKeys // of a fair lock, which has one key; else nil
	rw   *rwKeys   // of a read-write lock, which has one key; else nil

	id targetID
}

// targetID is the same for two targets exactly if their keys are.
type targetID struct {
	n    int    // of the keys
	text string // the key, or all of them, each after its length
}

// newTarget derives the keys of names. The error says which name cannot be a lock.
func newTarget(prefix string, names []string) (*target, error) {
	t := &target{name: strings.Join(names, ",")}
	if len(names) == 0 {
		return t, fmt.Errorf("%w: no names", ErrInvalidName)
	}
	for i, name := range names {
		if name == "" {
			return t, fmt.Errorf("%w: name %d of %d is empty", ErrInvalidName, i+1, len(names))
		}
		if !derivable(prefix + name) {
			return t, fmt.Errorf("%w: %q, with the prefix %q, has braces that are no {tag}: its helper keys would fall into other Cluster slots",
				ErrInvalidName, prefix+name, prefix)
		}
		t.keys = append(t.keys, prefix+name)
	}
	if len(t.keys) > 1 {
		slices.Sort(t.keys)
		t.keys = slices.Compact(t.keys)
	}
	t.derive()
	return t, nil
}

func (t *target) derive() {
	for _, key := range t.keys {
		t.counters = append(t.counters, derived(counterPrefix, key))
		t.channels = append(t.channels, derived(channelPrefix, key))
	}
	t.words = boxed(append(slices.Clone(t.keys), t.counters...)...)
	t.id = targetID{n: len(t.keys), text: t.keys[0]}
	if len(t.keys) > 1 {
		// Lengths keep two lists of keys apart that read the same when joined.
		var id strings.Builder
		for _, key := range t.keys {
			fmt.Fprintf(&id, "%d:%s,", len(key), key)
		}
		t.id.text = id.String()
	}
}

// boxed returns texts as go-redis takes them. Made once, they cost no allocation at each call.
func boxed(texts ...string) []any {
	boxes := make([]any, len(texts))
	for i, text := range texts {
		boxes[i] = text
	}
	return boxes
}

// gate is what the gate of key i is found by.
func (t *target) gate(i int) gateID { return gateID{key: t.keys[i], side: t.kind.side} }

// has reports whether key is one of t's.
func (t *target) has(key string) bool {
	if len(t.keys) == 1 {
		return t.keys[0] == key
	}
	_, found := slices.BinarySearch(t.keys, key)
	return found
}

// only returns the part of t with the given keys, which are sorted.
func (t *target) only(keys []string) *target {
	if len(keys) == len(t.keys) {
		return t
	}
	part := &target{kind: t.kind, name: t.name, keys: keys}
	part.derive()
	return part
}

// fencedWith returns t with the counters of whole besides: a token that is minted for it is
// above those, too, and kept in all of them. Whoever holds whole by several holds has so one
// token that is below that of the next holder of any part.
func (t *target) fencedWith(whole *target) *target {
	if !whole.spans(t) {
		return t
	}
	fenced := *t
	fenced.counters = slices.Clone(t.counters)
	for _, counter := range whole.counters {
		if !slices.Contains(fenced.counters, counter) {
			fenced.counters = append(fenced.counters, counter)
		}
	}
	fenced.words = boxed(append(slices.Clone(t.keys), fenced.counters...)...)
	return &fenced
}

// spans reports whether t has keys that part has not.
func (t *target) spans(part *target) bool {
	return slices.ContainsFunc(t.keys, func(key string) bool { return !part.has(key) })
}

// without returns the part of t of which there are no levels; nil if there is none.
func (t *target) without(counts []int) *target {
	var keys []string
	for i, key := range t.keys {
		if counts[i] == 0 {
			keys = append(keys, key)
		}
	}
	if keys == nil {
		return nil
	}
	return t.only(keys)
}

// derived returns the name of a helper of key. Redisson asks only whether the key
// contains a brace; see [derivable] for the keys for which that is right.
func derived(prefix, key string) string {
	if strings.Contains(key, "{") {
		return prefix + ":" + key
	}
	return prefix + ":{" + key + "}"
}

// derivable reports whether the names derived from key stay in key's Cluster slot.
func derivable(key string) bool {
	return hashTag(derived(channelPrefix, key)) == hashTag(key)
}

// helped says why key cannot be a lock that has keys beside it which hold or grant it. Those of a
// name that is a {tag} and nothing else would be those of the tag, another lock.
func helped(key string) error {
	if tag := hashTag(key); key == "{"+tag+"}" {
		return fmt.Errorf("%w: %q would share its helper keys with %q, another lock: leave the braces out", ErrInvalidName, key, tag)
	}
	return nil
}

// hashTag returns the part of key that decides its Cluster slot: what stands between the
// first '{' and the first '}' after it, or all of the key if there is nothing.
func hashTag(key string) string {
	_, rest, opened := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(rest, "}")
	if !opened || !closed || tag == "" {
		return key
	}
	return tag
}

// oneSlot reports whether all keys have one hash tag, and so one Cluster slot.
func (t *target) oneSlot() bool {
	for _, key := range t.keys[1:] {
		if hashTag(key) != hashTag(t.keys[0]) {
			return false
		}
	}
	return true
}
