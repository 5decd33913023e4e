package keys

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relock-go/relock/internal/lockerr"
)

// Set is what a handle locks: one key, or several taken together. It is made once for a handle. Init, and
// ReadWrite and Mints after it, fill it in. It never changes after that, and so needs no mutex: what looks
// like a change (Only, Lacking, FencedWith) returns another set. Such a copy still points into the set it was
// made of.
type Set struct {
	Side     Side
	Name     string   // as the user wrote it, for errors and hooks
	Keys     []string // sorted, without doubles
	Counters []string // of the fencing tokens, one for each key; and others (see FencedWith)
	Channels []string // of the wake-ups, one for each key

	// As go-redis takes them: made once, they cost no allocation at each call. Their order is that of the
	// KEYS in the header of the script.
	Freeing []any // KEYS of a script that gives locks back: keys, and the queues of Java's fair lock
	Line    []any // KEYS of one that minds the line of one key: key, counter, line, entries, queue of Java's; nil: several keys
	Lined   []any // KEYS of one that asks if there is a line for one key: key and line; nil: several keys
	Lines   []any // KEYS of one that minds the lines of several keys: these
	Minting []any // KEYS of one that may mint a token: keys and counters; nil: they are made at each call

	RW *RWKeys // of a read-write lock, which has one key; else nil

	// Absent are the nodes of a quorum that do not have the name of a hold. It goes with one name: Lacking puts
	// it into a copy. The set of a handle has none.
	Absent *Nodes

	// ID tells whether two sets have the same keys, by one comparison.
	ID ID

	// first is room for the slices above, if the set has one key, as most have. Without it each would be an
	// allocation.
	first struct {
		key, counter, channel [1]string
		rest                  [3]string // line, entries, queue of Java's
		words                 [9]any    // of Line, Freeing and Lined
	}
}

// ID is the same for two sets if they have the same keys, and only then. The side does not count.
type ID struct {
	n    int    // of the keys
	Text string // the key, or all of them, each after its length
}

// Init derives the keys of names. The error says which name cannot be a lock. After an error the set must not
// be used.
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
		if helper := helperPrefix(prefix + name); helper != "" {
			return fmt.Errorf("%w: %q may be a helper key of another lock: use a name that does not begin with %q",
				lockerr.ErrInvalidName, prefix+name, helper)
		}
		t.Keys = append(t.Keys, prefix+name)
	}
	// Sorted, the same names are the same lock, however the user has ordered them. And owners that wait for one
	// key while they keep others wait in one order, never in a circle.
	if len(t.Keys) > 1 {
		slices.Sort(t.Keys)
		t.Keys = slices.Compact(t.Keys)
	}
	t.derive()
	return nil
}

// derive fills in what follows from the keys, all but what ReadWrite and Mints add.
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

// deriveOne derives what a set of one key has besides its counter and channel. The words hold pointers to
// texts, because a text that becomes an any is allocated. Lined and Lines share their last word.
func (t *Set) deriveOne(h helpers) {
	own := &t.first
	own.rest = [...]string{h.line, h.entries, h.javaQueue}
	key := any(t.Keys[0])
	line, java := &own.rest[0], &own.rest[2]
	own.words = [...]any{key, &t.Counters[0], line, &own.rest[1], java, key, java, key, line}
	// The bounds keep an append from writing into the words of another slice.
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

// Only returns the part of t with the given keys, which are sorted, and are keys of t. If that is all of
// them, it is t itself. The KEYS that mint a token are then made at each call: a part seldom mints.
func (t *Set) Only(keys []string) *Set {
	if len(keys) == len(t.Keys) {
		return t
	}
	part := &Set{Side: t.Side, Name: t.Name, Keys: keys, Absent: t.Absent}
	part.derive()
	return part
}

// FencedWith returns t with the counters of whole as well. A token that is minted for it is above those, too,
// and is kept in all of them. An owner may hold the keys of whole by several holds. Then it has one token that
// is lower than that of the next holder of any part.
func (t *Set) FencedWith(whole *Set) *Set {
	if !whole.Spans(t) {
		return t
	}
	fenced := *t // its words still point into t
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

// Without returns the part of t whose keys have no level: counts are the levels of each key of t. nil: there is
// no such key.
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

// OneSlot reports whether all keys have one hash tag, and so one Cluster slot. Keys with different tags may be
// in one slot by chance. That does not count: it would be so for some names, and not for others like them.
func (t *Set) OneSlot() bool {
	for _, key := range t.Keys[1:] {
		if HashTag(key) != HashTag(t.Keys[0]) {
			return false
		}
	}
	return true
}

// LocksAndCounters returns the KEYS of a script that may mint a token: the keys, and the counters if it is to.
// The caller must not write into the result: it is that of all calls.
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

// Mints says that tokens will be minted for t, so that their KEYS are made once. It is called before t is used.
func (t *Set) Mints() { t.Minting = t.LocksAndCounters(true) }

// Locks returns the KEYS of a script that mints no token. It has no room: an append makes a copy.
func (t *Set) Locks() []any { return t.Freeing[:len(t.Keys):len(t.Keys)] }
