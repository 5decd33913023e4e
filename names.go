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

	javaQueuePrefix = "redisson_lock_queue" // of Java's fair lock
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
	side     side
	name     string   // as the user wrote it, for errors and hooks
	keys     []string // sorted, without doubles
	counters []string // of the fencing tokens, one for each key; and others (see fencedWith)
	channels []string // of the wake-ups, one for each key

	// As go-redis takes them: made once, they cost no allocation at each call.
	freeing []any // KEYS of a script that gives locks back: keys, and the queues of Java's fair lock
	minting []any // KEYS of one that may mint a token: keys and counters; nil: they are made at each call

	fair *fairKeys // of a fair lock, which has one key; else nil
	rw   *rwKeys   // of a read-write lock, which has one key; else nil

	// absent goes with the name under which a hold on a quorum has the keys. A handle's has none.
	absent *absences

	id targetID

	first struct { // room for those of the usual target, which has one key
		key, counter, channel [1]string
		words                 [2]any
	}
}

// targetID is the same for two targets exactly if their keys are.
type targetID struct {
	n    int    // of the keys
	text string // the key, or all of them, each after its length
}

// newTarget derives the keys of names. The error says which name cannot be a lock.
func newTarget(prefix string, names []string) (*target, error) {
	t := new(target)
	return t, t.init(prefix, names)
}

// init is newTarget for a target that is part of something else.
func (t *target) init(prefix string, names []string) error {
	t.name = strings.Join(names, ",")
	if len(names) == 0 {
		return fmt.Errorf("%w: no names", ErrInvalidName)
	}
	t.keys = t.first.key[:0]
	for i, name := range names {
		if name == "" {
			return fmt.Errorf("%w: name %d of %d is empty", ErrInvalidName, i+1, len(names))
		}
		if !derivable(prefix + name) {
			return fmt.Errorf("%w: %q, with the prefix %q, has braces that are no {tag}: its helper keys would fall into other Cluster slots",
				ErrInvalidName, prefix+name, prefix)
		}
		t.keys = append(t.keys, prefix+name)
	}
	if len(t.keys) > 1 {
		slices.Sort(t.keys)
		t.keys = slices.Compact(t.keys)
	}
	t.derive()
	return nil
}

func (t *target) derive() {
	t.counters, t.channels = t.first.counter[:0], t.first.channel[:0]
	queues := make([]string, 0, 1)
	for _, key := range t.keys {
		counter, channel, queue := helpersOf(key)
		t.counters, t.channels, queues = append(t.counters, counter), append(t.channels, channel), append(queues, queue)
	}
	t.freeing = box(box(t.first.words[:0], t.keys), queues)
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
func boxed(texts ...string) []any { return box(make([]any, 0, len(texts)), texts) }

// box appends texts to boxes as go-redis takes them.
func box(boxes []any, texts []string) []any {
	for _, text := range texts {
		boxes = append(boxes, text)
	}
	return boxes
}

// gate is what the gate of key i is found by.
func (t *target) gate(i int) gateID { return gateID{key: t.keys[i], side: t.side} }

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
	part := &target{side: t.side, name: t.name, keys: keys, absent: t.absent}
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
	fenced.minting = nil
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
