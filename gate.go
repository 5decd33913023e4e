package relock

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/wake"
)

// A gate is what a process knows of a key: its holds, the queue of those that want it, and what was learned of it. It
// exists while a hold uses it.
//
//	none --enter: the first hold comes--> in use --exit: the last hold goes--> none
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

// gate is what this process knows of one side of a key: who holds it or wants it, in which order,
// and whether a waiter has to be woken.
type gate struct {
	// These three never change.
	id       gateID
	channel  string // where releases of the key are published
	registry *registry

	// queue gives one hold at a time the right to talk to Redis about the key.
	queue queue.Queue[*hold]

	// polls gives one of those that each have a place in the line of the key on Redis the turn to poll for all.
	polls queue.Queue[*hold]
	// places are those of this process in that line; made for the first.
	places    *line.Line
	placesNow sync.Once

	refs int // holds that have entered and not exited; guarded by the shard

	// mu guards the fields below. A message does not need it: the queue has a mutex of its own.
	mu sync.Mutex
	// one and others are the holds of all owners, in any state: several are here at once if all but one are
	// waiting, or lost and not unwound yet. Most gates have a single hold, and for that need no map.
	one    *hold // any of them, or nil
	others map[keys.Owner]*hold
	// subscription exists while there are listeners.
	subscription *wake.Subscription
	listeners    int
	// What this process has learned of the key, for all who wait for it: most of them stand in
	// line, and never ask.
	seen      sighting
	outage    outage
	alone     bool // no one stood in the line of the key when that was last told
	strangers strangers
}

// gateID is what a gate is found by: a side of a key. The two sides of a read-write lock have a gate each, because
// each side has waiters of its own.
type gateID struct {
	key  string
	side keys.Side
}

// registry finds the gates in use.
// It is in shards, because every Lock and Unlock of the process comes by. A shard is locked for the look into its map
// only; what happens at a gate is under the lock of that gate.
type registry struct {
	// newLine makes the line of a gate. It is set before the first needs one; nil: none does.
	newLine func(*gate) *line.Line

	hub    hub // tells the gates of releases
	seed   maphash.Seed
	shards [64]shard
}

type shard struct {
	mu    sync.Mutex
	gates map[gateID]*gate
}

// newRegistry returns a registry whose gates are told of releases by hub.
func newRegistry(hub hub) *registry { return &registry{hub: hub, seed: maphash.MakeSeed()} }

// shard returns the one that has the gates of key. It is locked.
func (r *registry) shard(key string) *shard {
	s := &r.shards[maphash.String(r.seed, key)%uint64(len(r.shards))]
	s.mu.Lock()
	return s
}

// enter returns the gate of id for a hold that will use it until exit.
// All holds for a key are at the same gate as long as their uses overlap, so that its queue is the only one of the process.
func (r *registry) enter(id gateID, channel string) *gate {
	s := r.shard(id.key)
	defer s.mu.Unlock()
	g := s.gates[id]
	if g == nil {
		if s.gates == nil {
			s.gates = make(map[gateID]*gate)
		}
		g = &gate{id: id, channel: channel, registry: r}
		s.gates[id] = g
	}
	g.refs++
	return g
}

// exit ends one use of a gate, by h. The caller must not touch the gate after that: another one may be in its place.
// From then on a Lock of the same owner makes a new hold. With the last use the gate goes, and what was learned of
// the key: a name that is used once leaves nothing.
func (r *registry) exit(g *gate, h *hold) {
	g.mu.Lock()
	switch h {
	case g.one:
		g.one = nil
	case g.others[h.owner]:
		delete(g.others, h.owner)
	}
	g.mu.Unlock()
	s := r.shard(g.id.key)
	defer s.mu.Unlock()
	if g.refs--; g.refs == 0 {
		delete(s.gates, g.id)
	}
}

// gate returns the gate of id if it is in use, or nil.
func (r *registry) gate(id gateID) *gate {
	s := r.shard(id.key)
	defer s.mu.Unlock()
	return s.gates[id]
}

// find returns the hold of o at id, or nil. It may be waiting, held, lost, or just ending: its phase says.
func (r *registry) find(id gateID, o keys.Owner) *hold {
	s := r.shard(id.key)
	g := s.gates[id]
	s.mu.Unlock()
	if g == nil {
		return nil
	}
	return g.find(o)
}

// all returns every hold in use, each once.
// A hold of several keys is at several gates.
func (r *registry) all() []*hold {
	seen := make(map[*hold]bool)
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		for _, g := range s.gates {
			g.mu.Lock()
			if g.one != nil {
				seen[g.one] = true
			}
			for _, h := range g.others {
				seen[h] = true
			}
			g.mu.Unlock()
		}
		s.mu.Unlock()
	}
	return slices.Collect(maps.Keys(seen))
}

// find returns the hold of o here, or nil.
func (g *gate) find(o keys.Owner) *hold {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.one != nil && g.one.owner == o {
		return g.one
	}
	return g.others[o]
}

// add registers h, unless its owner has a hold here already.
// That is what makes re-entry: the second Lock of an owner finds the hold of the first.
func (g *gate) add(h *hold) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.one != nil && g.one.owner == h.owner, g.others[h.owner] != nil:
		return false
	case g.one == nil:
		g.one = h
	default:
		if g.others == nil {
			g.others = make(map[keys.Owner]*hold)
		}
		g.others[h.owner] = h
	}
	return true
}

// line returns the places of this process in the line of the key.
// Most gates never need one.
func (g *gate) line() *line.Line {
	g.placesNow.Do(func() { g.places = g.registry.newLine(g) })
	return g.places
}

// listen has the queue woken by messages, until unlisten.
// Listeners share one subscription: the first opens it, and the last closes it.
func (g *gate) listen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listeners++; g.listeners == 1 {
		g.subscription = g.registry.hub.Subscribe(g.channel, g.queue.Wake)
		if g.subscription.Live() {
			// No confirmation is to come, and a message that came since the last try was
			// no one's.
			g.queue.Wake()
		}
	}
}

// unlisten takes a listener away.
func (g *gate) unlisten() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listeners--; g.listeners == 0 {
		g.subscription.Close()
		g.subscription = nil
	}
}

// listening reports whether messages arrive.
func (g *gate) listening() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	// A subscription that Redis has not confirmed, or that was lost, brings nothing: then waiters poll more often.
	return g.subscription != nil && g.subscription.Live()
}
