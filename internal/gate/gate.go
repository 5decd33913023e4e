// Package gate finds what a process knows of a key: its holds, the queue of those that want it, and
// what was learned of it. A gate exists while a hold uses it.
//
//	none --Enter: the first hold comes--> in use --Exit: the last hold goes--> none
//
// A hold enters the gates of its keys before it waits, and is added there. It exits when it is gone.
//
// Invariants:
//   - There is one gate at a time for one side of a key: all holds whose uses overlap meet there. So its
//     queue lets one of them at a time ask Redis.
//   - A gate counts the holds that have entered and not exited. Count and map change under the mutex of the
//     shard, so no hold can get a gate that goes.
//   - An owner has one hold at most at a gate.
//   - There is a subscription exactly while there are listeners.
//   - What was learned of a key is a hint: it decides how long a waiter is patient, who has the next turn, and
//     what an error says. It never decides who has the lock.
//
// What can come late: a message for a gate that is not in use any more, which counts as a wake-up there and
// wakes no waiter; and an answer about the key that is recorded after a newer one. The next answer sets that
// right.
package gate

import (
	"hash/maphash"
	"sync"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/wake"
)

// Gate is what this process knows of one side of a key: who holds it or wants it, in which order,
// and whether a waiter has to be woken.
type Gate[H Hold] struct {
	// These three never change.
	ID       ID
	Channel  string // where releases of the key are published
	registry *Registry[H]

	// Queue gives one hold at a time the right to talk to Redis about the key.
	Queue queue.Queue[H]

	// line is the places of this process in the line of the key on Redis; made for the first.
	line     *line.Line[H]
	lineOnce sync.Once

	refs int // holds that have entered and not exited; guarded by the shard

	// mu guards the fields below. A message does not need it: the queue has a mutex of its own.
	mu sync.Mutex
	// holds are the holds of all owners, in any state: several are here at once if all but one
	// are waiting, or lost and not unwound yet.
	holds holds[H]
	// subscription exists while there are listeners.
	subscription *wake.Subscription
	listeners    int
	// What this process has learned of the key, for all who wait for it: most of them stand in
	// line, and never ask.
	seen      Sighting[H]
	outage    Outage
	alone     bool // no one stood in the line of the key when that was last told
	strangers strangers
}

// ID is what a gate is found by: a side of a key.
type ID struct {
	Key  string
	Side keys.Side
}

// Hold is what gates know of a hold.
type Hold interface {
	comparable
	Owner() keys.Owner
}

// Hub has waiters woken by messages.
type Hub interface {
	Subscribe(channel string, wake func()) *wake.Subscription
}

// NewRegistry returns a registry whose gates are told of releases by hub.
func NewRegistry[H Hold](hub Hub) *Registry[H] {
	return &Registry[H]{hub: hub, seed: maphash.MakeSeed()}
}

// Registry finds the gates in use.
// It is in shards, because every Lock and Unlock of the process comes by. A shard is locked for the look into its map
// only; what happens at a gate is under the lock of that gate.
type Registry[H Hold] struct {
	// NewLine makes the line of a gate. It is set before the first needs one; nil: none does.
	NewLine func(*Gate[H]) *line.Line[H]

	hub    Hub
	seed   maphash.Seed
	shards [64]struct {
		mu    sync.Mutex
		gates map[ID]*Gate[H]
	}
}

func (r *Registry[H]) shard(key string) int {
	return int(maphash.String(r.seed, key) % uint64(len(r.shards)))
}

// Enter returns the gate of id for a hold that will use it until Exit.
// All holds for a key are at the same gate as long as their uses overlap, so that its queue is the only one of the process.
func (r *Registry[H]) Enter(id ID, channel string) *Gate[H] {
	s := &r.shards[r.shard(id.Key)]
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gates[id]
	if g == nil {
		if s.gates == nil {
			s.gates = make(map[ID]*Gate[H])
		}
		g = &Gate[H]{ID: id, Channel: channel, registry: r}
		s.gates[id] = g
	}
	g.refs++
	return g
}

// Exit ends one use of a gate. The caller must not touch the gate after that: another one may be in its place.
// With the last one the gate goes, and what was learned of the key: a name that is used once leaves nothing.
func (r *Registry[H]) Exit(g *Gate[H]) {
	s := &r.shards[r.shard(g.ID.Key)]
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.refs--; g.refs == 0 {
		delete(s.gates, g.ID)
	}
}

// Gate returns the gate of id if it is in use, or nil.
func (r *Registry[H]) Gate(id ID) *Gate[H] {
	s := &r.shards[r.shard(id.Key)]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gates[id]
}

// Find returns the hold of o at id, or nil. It may be waiting, held, lost, or just ending: its phase says.
func (r *Registry[H]) Find(id ID, o keys.Owner) H {
	g := r.Gate(id)
	if g == nil {
		var none H
		return none
	}
	return g.Find(o)
}

// Len returns how many gates are in use.
func (r *Registry[H]) Len() int {
	n := 0
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		n += len(s.gates)
		s.mu.Unlock()
	}
	return n
}

// All returns every hold in use, each once.
// A hold of several keys is at several gates.
func (r *Registry[H]) All() []H {
	seen := make(map[H]bool)
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		for _, g := range s.gates {
			g.mu.Lock()
			for h := range g.holds.all {
				seen[h] = true
			}
			g.mu.Unlock()
		}
		s.mu.Unlock()
	}
	holds := make([]H, 0, len(seen))
	for h := range seen {
		holds = append(holds, h)
	}
	return holds
}

// Find returns the hold of o here, or the zero H.
func (g *Gate[H]) Find(o keys.Owner) H {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.holds.find(o)
}

// Add registers h, unless its owner has a hold here already.
// That is what makes re-entry: the second Lock of an owner finds the hold of the first.
func (g *Gate[H]) Add(h H) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.holds.add(h)
}

// Remove takes h away. From then on a Lock of the same owner makes a new hold.
func (g *Gate[H]) Remove(h H) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holds.remove(h)
}

// Line returns the places of this process in the line of the key.
// Most gates never need one.
func (g *Gate[H]) Line() *line.Line[H] {
	g.lineOnce.Do(func() { g.line = g.registry.NewLine(g) })
	return g.line
}

// InLine is a gate that listens for what is told to those in the line of its key. It does so by the line, which
// hears of grants too; the gate itself hears of releases only.
type InLine[H Hold] struct{ gate *Gate[H] }

// InLine returns g as one that listens for what is told to those in the line.
func (g *Gate[H]) InLine() InLine[H] { return InLine[H]{g} }

// Listen has waiters in the line woken by messages, until Unlisten.
func (l InLine[H]) Listen() { l.gate.Line().Listen() }

// Unlisten takes a listener away.
func (l InLine[H]) Unlisten() { l.gate.Line().Unlisten() }

// Listening reports whether messages arrive.
func (l InLine[H]) Listening() bool { return l.gate.Line().Listening() }

// Listen has the queue woken by messages, until Unlisten.
// Listeners share one subscription: the first opens it, and the last closes it.
func (g *Gate[H]) Listen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listeners++; g.listeners == 1 {
		g.subscription = g.registry.hub.Subscribe(g.Channel, g.Queue.Wake)
		if g.subscription.Live() {
			// No confirmation is to come, and a message that came since the last try was
			// no one's.
			g.Queue.Wake()
		}
	}
}

// Unlisten takes a listener away.
func (g *Gate[H]) Unlisten() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listeners--; g.listeners == 0 {
		g.subscription.Close()
		g.subscription = nil
	}
}

// Listening reports whether messages arrive.
func (g *Gate[H]) Listening() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	// A subscription that Redis has not confirmed, or that was lost, brings nothing: then waiters poll more often.
	return g.subscription != nil && g.subscription.Live()
}

// holds finds the holds at a gate by their owners: each has at most one. Most gates have a single
// hold, and for that need no map.
type holds[H Hold] struct {
	one  H // any of them, or the zero H
	rest map[keys.Owner]H
}

func (s *holds[H]) find(o keys.Owner) H {
	var none H
	if s.one != none && s.one.Owner() == o {
		return s.one
	}
	return s.rest[o]
}

// add adds h, unless its owner has a hold here already.
func (s *holds[H]) add(h H) bool {
	var none H
	switch {
	case s.find(h.Owner()) != none:
		return false
	case s.one == none:
		s.one = h
	case s.rest == nil:
		s.rest = map[keys.Owner]H{h.Owner(): h}
	default:
		s.rest[h.Owner()] = h
	}
	return true
}

func (s *holds[H]) remove(h H) {
	var none H
	switch h {
	case s.one:
		s.one = none
	case s.rest[h.Owner()]:
		delete(s.rest, h.Owner())
	}
}

// all yields each hold.
func (s *holds[H]) all(yield func(H) bool) {
	var none H
	if s.one != none && !yield(s.one) {
		return
	}
	for _, h := range s.rest {
		if !yield(h) {
			return
		}
	}
}
