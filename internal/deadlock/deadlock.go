// Package deadlock finds owners that wait for each other, in one process or in several, on one Redis.
//
// An owner that holds locks, and has waited for another one for a while, publishes that wait beside each lock that it
// holds. Whoever waits for such a lock follows the published waits: from the lock to its holder, to the lock that the
// holder waits for, and so on. If all owners that it finds wait, and it comes back to itself, that is a deadlock.
//
// What is read may be old: a wait may have ended just now. So a deadlock counts only when it is found again, and every wait
// in it has been published twice in between, or more often if the first look was long: so often that the last of these
// publications was of a moment after the first look. So the wait was still going on when that look ended. The owner of a
// wait is its goroutine, which cannot unlock anything meanwhile. So at the end of the first look all of them waited, and
// held what they were found to hold: none of them can go on until one of them gives up.
//
// A wait for several locks gets none of them as long as it cannot get one. So one lock is enough for a deadlock, whoever has
// the others. Of a lock with several readers, all have to be in it.
//
// Invariants:
//   - An owner that is not known to wait is taken to go on. So an old version, a foreign program, and a
//     process that has stopped are in no deadlock.
//   - All processes that look at one deadlock choose the same wait to end: the one that began last.
package deadlock

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Wait is the wait of an owner, as it is published.
type Wait struct {
	ID    string   `json:"id"`             // of this wait: no other one has it
	Seq   uint64   `json:"seq"`            // how often it was published
	Since int64    `json:"since"`          // when it began, by the clock of its process, in ms
	For   []string `json:"for"`            // the keys
	Owner string   `json:"owner"`          // for people
	Host  string   `json:"host,omitempty"` // for people
	// Reported: the user wants the wait to go on.
	Reported bool `json:"reported,omitempty"`
	// Shared: several goroutines are the owner. One of them waits, another one may unlock what it holds.
	Shared bool `json:"shared,omitempty"`
}

// Holder is a holder of a lock.
type Holder struct {
	Field string
	Wait  *Wait // nil: it is not known to wait
}

// A link of a deadlock: a wait, and one of its keys, which Holder has.
type link struct {
	wait   *Wait
	key    string
	holder Holder
}

// mostWaits is how many waits one look follows.
const mostWaits = 64

// errTooMany ends a look that finds more.
var errTooMany = errors.New("too many waits")

// graph is what one look has found: the waits that can be reached from one of them.
type graph struct {
	look  func(key string) ([]Holder, error)
	waits map[string]*Wait
	// stuck has, by the ID of a wait, each of its keys that it cannot get, as the links to the holders of that key.
	stuck map[string][][]link
}

// explore follows w.
func (g *graph) explore(w *Wait) error {
	if g.waits[w.ID] != nil {
		return nil
	}
	if len(g.waits) == mostWaits {
		return errTooMany
	}
	g.waits[w.ID] = w
	for _, key := range w.For {
		holders, err := g.look(key)
		if err != nil {
			return err
		}
		links := linksOf(w, key, holders)
		if links == nil {
			continue
		}
		g.stuck[w.ID] = append(g.stuck[w.ID], links)
		for _, l := range links {
			if err := g.explore(l.holder.Wait); err != nil {
				return err
			}
		}
	}
	return nil
}

// linksOf returns the links from w to the holders of key; nil if one of them goes on, or w has the key.
func linksOf(w *Wait, key string, holders []Holder) (all []link) {
	for _, h := range holders {
		switch {
		case h.Wait == nil:
			return nil
		case h.Wait.ID != w.ID: // an owner of several names may have been granted one of them
			all = append(all, link{w, key, h})
		}
	}
	return all
}

// settle leaves in stuck what nobody can get: no holder goes on, nor any owner that a holder waits for.
func (g *graph) settle() {
	for again := true; again; {
		again = false
		for id, all := range g.stuck {
			left := slices.DeleteFunc(slices.Clone(all), func(links []link) bool {
				return slices.ContainsFunc(links, func(l link) bool { return len(g.stuck[l.holder.Wait.ID]) == 0 })
			})
			again = again || len(left) < len(all)
			g.stuck[id] = left
		}
	}
}

// path returns the shortest way from one wait to another, of at least one link; nil if there is none.
func (g *graph) path(from, to string) []link {
	ways := make(map[string][]link)
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, l := range slices.Concat(g.stuck[queue[0]]...) {
			if id := l.holder.Wait.ID; ways[id] == nil {
				ways[id] = append(slices.Clone(ways[queue[0]]), l)
				queue = append(queue, id)
			}
		}
		if ways[to] != nil {
			return ways[to]
		}
	}
	return nil
}

// Deadlock is one that a wait is in.
type Deadlock struct {
	links []link           // from that wait to itself, the shortest way
	waits map[string]*Wait // all that wait for each other
	took  time.Duration    // no longer ago, at the end of the look, was anything read that it follows from
}

// Find returns the deadlock that w is in, or nil. look returns the holders of a key.
func Find(w *Wait, look func(key string) ([]Holder, error)) (*Deadlock, error) {
	g := &graph{look: look, waits: make(map[string]*Wait), stuck: make(map[string][][]link)}
	if err := g.explore(w); err != nil {
		return nil, err
	}
	g.settle()
	way := g.path(w.ID, w.ID)
	if way == nil {
		return nil, nil // it may wait behind a deadlock
	}
	d := &Deadlock{links: way, waits: map[string]*Wait{}}
	for id, other := range g.waits {
		if g.path(w.ID, id) != nil && g.path(id, w.ID) != nil {
			d.waits[id] = other
		}
	}
	return d, nil
}

// is reports whether d and other are the same waits for the same holders.
func (d *Deadlock) is(other *Deadlock) bool {
	same := func(a, b link) bool {
		return a.wait.ID == b.wait.ID && a.key == b.key && a.holder.Field == b.holder.Field
	}
	return slices.EqualFunc(d.links, other.links, same) && slices.Equal(d.IDs(), other.IDs())
}

// confirms reports whether each wait in d was going on when earlier, which is the same, had been found. The first publication
// since then may be from within that look. The n-th after that is of a moment n intervals later.
func (d *Deadlock) confirms(earlier *Deadlock) bool {
	n := max(1, (earlier.took+interval-1)/interval)
	for id, w := range d.waits {
		if w.Seq < earlier.waits[id].Seq+1+uint64(n) {
			return false
		}
	}
	return true
}

// victim returns the ID of the wait to end: of the waits that are not only reported, the one that began last. "": none has to
// end; a deadlock with a shared owner may end by itself.
func (d *Deadlock) victim() string {
	var last *Wait
	for _, w := range d.waits {
		if w.Shared {
			return ""
		}
		if w.Reported {
			continue
		}
		// mutant: deadlock-first-ends
		if last == nil || cmp.Or(cmp.Compare(w.Since, last.Since), cmp.Compare(w.ID, last.ID)) > 0 {
			last = w
		}
	}
	if last == nil {
		return ""
	}
	return last.ID
}

// IDs returns the IDs of all waits in d, sorted.
func (d *Deadlock) IDs() []string { return slices.Sorted(maps.Keys(d.waits)) }

// String describes d, from the wait that it was found for.
func (d *Deadlock) String() string {
	text := d.links[0].wait.who()
	for i, l := range d.links {
		if i > 0 {
			text += ", who"
		}
		text += fmt.Sprintf(" waits for %q, held by %s", l.key, l.holder.Wait.who())
	}
	return text
}

// who is the owner, for people.
func (w *Wait) who() string {
	if w.Host == "" {
		return w.Owner
	}
	return w.Owner + " on " + w.Host
}

// Published returns the wait that was published as text, which is "end wait"; nil if it is none.
func Published(text string) *Wait {
	_, wait, _ := strings.Cut(text, " ")
	w := new(Wait)
	if json.Unmarshal([]byte(wait), w) != nil || w.ID == "" {
		return nil
	}
	return w
}
