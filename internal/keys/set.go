package keys

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relock-go/relock/internal/lockerr"
)

// Set is what a handle locks: one key, or several taken together. It is made once for
// a handle and never changes.
type Set struct {
	Side     Side
	Name     string   // as the user wrote it, for errors and hooks
	Keys     []string // sorted, without doubles
	Counters []string // of the fencing tokens, one for each key; and others (see FencedWith)
	Channels []string // of the wake-ups, one for each key

	// As go-redis takes them: made once, they cost no allocation at each call.
	Freeing []any // KEYS of a script that gives locks back: keys, and the queues of Java's fair lock
	Line    []any // KEYS of one that minds the line of one key: key, counter, line, entries, queue of Java's; nil: several keys
	Lined   []any // KEYS of one that asks if there is a line for one key: key and line; nil: several keys
	Lines   []any // KEYS of one that minds the lines of several keys: these
	Minting []any // KEYS of one that may mint a token: keys and counters; nil: they are made at each call

	RW *RWKeys // of a read-write lock, which has one key; else nil

	// absent goes with the name under which a hold on a quorum has the keys. A handle's has none.
	Absent *Nodes

	ID ID

	first struct { // room for those of the usual target, which has one key
		key, counter, channel [1]string
		rest                  [3]string // line, entries, queue of Java's
		words                 [9]any    // of Line, Freeing and Lined
	}
}

// ID is the same for two targets exactly if their keys are.
type ID struct {
	n    int    // of the keys
	Text string // the key, or all of them, each after its length
}

// Init derives the keys of names. The error says which name cannot be a lock.
func (t *Set) Init(prefix string, names []string) error {
	t.Name = strings.Join(names, ",")
	if len(names) == 0 {
		return fmt.Errorf("%w: no names: MultiMutex needs at least one", lockerr.ErrInvalidName)
	}
	t.Keys = t.first.key[:0]
	for i, name := range names {
		if name == "" {
			return fmt.Errorf("%w: name %d of %d is empty", lockerr.ErrInvalidName, i+1, len(names))
		}
		if !derivable(prefix + name) {
			return fmt.Errorf("%w: %q, with the prefix %q, has braces that do not form a {tag}: remove them, or its helper keys would be in other Cluster slots",
				lockerr.ErrInvalidName, prefix+name, prefix)
		}
		t.Keys = append(t.Keys, prefix+name)
	}
	if len(t.Keys) > 1 {
		slices.Sort(t.Keys)
		t.Keys = slices.Compact(t.Keys)
	}
	t.derive()
	return nil
}

func (t *Set) derive() {
	t.Counters, t.Channels = t.first.counter[:0], t.first.channel[:0]
	var queues, lines []string
	for _, key := range t.Keys {
		h := helpersOf(key)
		t.Counters, t.Channels = append(t.Counters, h.counter), append(t.Channels, h.channel)
		if len(t.Keys) == 1 {
			t.deriveOne(h)
			return
		}
		queues, lines = append(queues, h.javaQueue), append(lines, h.line)
	}
	t.Freeing, t.Lines = box(box(nil, t.Keys), queues), box(nil, lines)
	// Lengths keep two lists of keys apart that read the same when joined.
	var id strings.Builder
	for _, key := range t.Keys {
		fmt.Fprintf(&id, "%d:%s,", len(key), key)
	}
	t.ID = ID{n: len(t.Keys), Text: id.String()}
}

// deriveOne derives what a set of one key has besides its counter and channel. Pointers to texts cost
// no allocation.
func (t *Set) deriveOne(h helpers) {
	own := &t.first
	own.rest = [...]string{h.line, h.entries, h.javaQueue}
	key := any(t.Keys[0])
	line, java := &own.rest[0], &own.rest[2]
	own.words = [...]any{key, &t.Counters[0], line, &own.rest[1], java, key, java, key, line}
	t.Line, t.Freeing, t.Lined, t.Lines = own.words[:5:5], own.words[5:7:7], own.words[7:], own.words[8:]
	t.ID = ID{n: 1, Text: t.Keys[0]}
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

// Has reports whether key is one of t's.
func (t *Set) Has(key string) bool {
	if len(t.Keys) == 1 {
		return t.Keys[0] == key
	}
	_, found := slices.BinarySearch(t.Keys, key)
	return found
}

// Only returns the part of t with the given keys, which are sorted.
func (t *Set) Only(keys []string) *Set {
	if len(keys) == len(t.Keys) {
		return t
	}
	part := &Set{Side: t.Side, Name: t.Name, Keys: keys, Absent: t.Absent}
	part.derive()
	return part
}

// FencedWith returns t with the counters of whole besides: a token that is minted for it is
// above those, too, and kept in all of them. An owner that holds whole by several holds has so one
// token that is below that of the next holder of any part.
func (t *Set) FencedWith(whole *Set) *Set {
	if !whole.Spans(t) {
		return t
	}
	fenced := *t // what words point to stays t's
	fenced.Counters = slices.Clone(t.Counters)
	for _, counter := range whole.Counters {
		if !slices.Contains(fenced.Counters, counter) {
			fenced.Counters = append(fenced.Counters, counter)
		}
	}
	fenced.Minting = nil
	return &fenced
}

// Spans reports whether t has keys that part has not.
func (t *Set) Spans(part *Set) bool {
	return slices.ContainsFunc(t.Keys, func(key string) bool { return !part.Has(key) })
}

// Without returns the part of t of which there are no levels; nil if there is none.
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

// OneSlot reports whether all keys have one hash tag, and so one Cluster slot.
func (t *Set) OneSlot() bool {
	for _, key := range t.Keys[1:] {
		if HashTag(key) != HashTag(t.Keys[0]) {
			return false
		}
	}
	return true
}

// LocksAndCounters returns the KEYS of a script that may mint a token.
func (t *Set) LocksAndCounters(mint bool) []any {
	switch {
	case !mint:
		return t.Locks()
	case t.Minting != nil:
		return t.Minting
	default:
		return box(slices.Clone(t.Locks()), t.Counters)
	}
}

// Mints says that tokens will be minted for t.
func (t *Set) Mints() { t.Minting = t.LocksAndCounters(true) }

// Locks returns the KEYS of a script that mints none.
func (t *Set) Locks() []any { return t.Freeing[:len(t.Keys):len(t.Keys)] }
