package relock

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/wake"
)

// A gate is the state of a key in one process: its holds, the queue of the owners that want it, and the last known state on
// Redis. It exists while a hold uses it.
//
//	none --enter: the first hold comes--> in use --exit: the last hold goes--> none
//
// A hold enters the gates of its keys before it waits, and exits at its end.
//
// Invariants:
//   - There is one gate at a time for one side of a key: all holds whose uses overlap share it. So its
//     queue lets one of them at a time ask Redis.
//   - A gate is in the map exactly while it has a hold. Both change under the mutex of the shard, so no hold can get a gate that
//     is being removed.
//   - An owner has at most one hold at a gate, besides those whose Unlock has returned before their release.
//   - There is a subscription exactly while there are listeners.
//   - The last known state of a key is a hint. It decides how long a waiter is patient, which hold has the next turn,
//     and what an error reports. It never decides who has the lock.
//
// What can come late: a message for a gate that is no longer in use, which counts as a wake-up there and
// wakes no waiter; and an answer about the key that is recorded after a newer one. The next answer corrects that.

// gate is the state of one side of a key in this process: who holds it or wants it, in which order, and whether a
// waiter has to be woken.
type gate struct {
	// These three never change.
	id       gateID
	channel  string // of releases of the key
	registry *registry

	// queue gives one hold at a time the right to ask Redis for the key.
	queue queue.Queue[*hold]

	// ownLine is what this process has in the line of the key; made for its first entry.
	ownLine     *ownLine
	ownLineOnce sync.Once

	// mu guards the fields below. A message does not need it: the queue has a mutex of its own.
	mu sync.Mutex
	// one and others are the holds of all owners, in any phase. There is more than one if the others are waiting, or are
	// lost and not unlocked yet. Most gates have a single hold, and need no map.
	one    *hold // any of them, or nil
	others map[keys.Owner]*hold
	// detached are the holds whose Unlock has returned, and whose release is not answered yet. The next Lock of the
	// owner makes another hold, which waits in the queue behind them.
	detached map[*hold]struct{}
	// subscription exists while there are listeners.
	subscription *wake.Subscription
	listeners    int
	// The last known state of the key on Redis, for all waiters: most of them wait in the queue and never ask.
	seen    sighting
	outage  outage
	foreign foreignTurns
	demand  demand
	batch   *batch // the last one of this key that is not over, or nil
}

// ownLine is what one process has in the line of a key.
type ownLine struct {
	*line.Line // its entries

	// polls gives one of the waiters with an entry the turn to poll for all of them.
	polls queue.Queue[*hold]
}

// gateID identifies a gate: a side of a key. The two sides of a read-write lock have separate gates, because
// each side has its own waiters.
type gateID struct {
	key  string
	side keys.Side
}

// registry finds the gates in use. It is sharded, because every Lock and Unlock of the process uses it. A shard is
// locked only for the access to its map; the state of a gate has its own mutex.
type registry struct {
	// newLine creates the line of a gate, which wakes polls. It is set before the first use; nil if no gate has a line.
	newLine func(g *gate, polls *queue.Bell) *line.Line

	now clock.Clock
	hub hub // notifies the gates of releases
	// announcements delivers those of waiters. It is set before the first use; nil on a quorum.
	announcements messageHub

	seed   maphash.Seed
	shards [64]shard
}

type shard struct {
	mu    sync.Mutex
	gates map[gateID]*gate
}

// newRegistry returns a registry whose gates are notified of releases by hub.
func newRegistry(hub hub, now clock.Clock) *registry {
	return &registry{hub: hub, now: now, seed: maphash.MakeSeed()}
}

// shard returns the locked shard for the gates of key.
func (r *registry) shard(key string) *shard {
	s := &r.shards[maphash.String(r.seed, key)%uint64(len(r.shards))]
	s.mu.Lock()
	return s
}

// enter puts h into the gate of id, until exit, and returns that gate. nil: the owner of h has a hold there.
// All holds of a key whose uses overlap share one gate, so its queue is the only one of the process.
func (r *registry) enter(id gateID, channel string, h *hold) *gate {
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
	if !g.add(h) {
		return nil
	}
	return g
}

// exit ends the use of a gate by h. The caller must not touch the gate after that, because another may have replaced it.
// From then on a Lock of the same owner makes a new hold. The last exit removes the gate and the last known state of
// the key, so a name that is used once leaves nothing.
func (r *registry) exit(g *gate, h *hold) {
	s := r.shard(g.id.key)
	defer s.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	switch h {
	case g.one:
		g.one = nil
	case g.others[h.owner]:
		delete(g.others, h.owner)
	}
	delete(g.detached, h)
	if g.one == nil && len(g.others)+len(g.detached) == 0 {
		delete(s.gates, g.id)
		g.unwatch()
	}
}

// gate returns the gate of id, or nil.
func (r *registry) gate(id gateID) *gate {
	s := r.shard(id.key)
	defer s.mu.Unlock()
	return s.gates[id]
}

// find returns the hold of o at id, or nil. The hold may be in any phase.
func (r *registry) find(id gateID, o keys.Owner) *hold {
	s := r.shard(id.key)
	g := s.gates[id]
	s.mu.Unlock()
	if g == nil {
		return nil
	}
	return g.find(o)
}

// all returns every hold in use, each once, although a hold of several keys is at several gates.
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
			for h := range g.detached {
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

// findDetached returns a detached hold of o here that does not linger, and whose kind is not except, or nil.
func (g *gate) findDetached(o keys.Owner, except *kind) *hold {
	g.mu.Lock()
	defer g.mu.Unlock()
	for h := range g.detached {
		if h.owner == o && h.kind != except && !g.lingers(h) {
			return h
		}
	}
	return nil
}

// detach makes h, a hold that has ended, nobody's.
func (g *gate) detach(h *hold) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.one == h {
		g.one = nil
	} else {
		delete(g.others, h.owner)
	}
	if g.detached == nil {
		g.detached = make(map[*hold]struct{})
	}
	g.detached[h] = struct{}{}
}

// add registers h, unless its owner already has a hold here. This makes locks reentrant: the second Lock of an owner
// finds the hold of the first.
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

// beginBatch records a batch.
func (g *gate) beginBatch(b *batch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.batch = b
}

// endBatch records that b is over. It may be called again when the next one has begun.
func (g *gate) endBatch(b *batch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.batch == b {
		g.batch = nil
	}
}

// batchHas reports whether Redis may have n as the name of a batch.
func (g *gate) batchHas(n keys.Name) bool {
	g.mu.Lock()
	b := g.batch
	g.mu.Unlock()
	return b != nil && slices.ContainsFunc(b.names(), func(has keys.Name) bool { return has.Field == n.Field })
}

// line returns the entries of this process in the line of the key. Most gates never need one.
func (g *gate) line() *ownLine {
	g.ownLineOnce.Do(func() {
		g.ownLine = new(ownLine)
		g.ownLine.Line = g.registry.newLine(g, &g.ownLine.polls.Bell)
	})
	return g.ownLine
}

// listen makes messages wake the queue, until unlisten.
// All listeners share one subscription: the first opens it, and the last closes it.
func (g *gate) listen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listeners++; g.listeners == 1 {
		g.subscription = g.registry.hub.Subscribe(g.channel, g.queue.Wake)
		if g.subscription.Live() {
			// No confirmation will follow, and a message since the last request had no recipient.
			g.queue.Wake()
		}
	}
}

// unlisten removes a listener.
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
	// A subscription that is unconfirmed or lost receives nothing: then waiters poll more often.
	return g.subscription != nil && g.subscription.Live()
}
