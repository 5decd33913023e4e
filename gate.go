package relock

import (
	"hash/maphash"
	"sync"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/wake"
)

// gate is what this process knows of one key: who holds it or wants it, in which order,
// and whether somebody has to be woken. It exists while anybody uses it.
type gate struct {
	gateID
	channel string
	hub     hub

	// queue gives one hold at a time the right to talk to Redis about the key.
	queue queue.Queue[*hold]

	// fair is those of this process who wait for the key as a fair lock; made for the first.
	fair     *party
	fairOnce sync.Once

	refs int // of holds, guarded by the shard

	mu sync.Mutex
	// holds are the holds of all owners, in any state: several are here at once if all but one
	// are waiting, or lost and not unwound yet.
	holds holds
	// subscription exists while somebody listens.
	subscription *wake.Subscription
	listeners    int
	// What this process has learned of the key, for all who wait for it: most of them stand in
	// line, and never ask.
	seen   sighting
	outage outage
}

// gateID is what a gate is found by: a side of a key.
type gateID struct {
	key  string
	side keys.Side
}

// gateOf is what the gate of key i of t is found by.
func gateOf(t *keys.Set, i int) gateID { return gateID{key: t.Keys[i], side: t.Side} }

// registry finds the gates in use.
type registry struct {
	hub    hub
	seed   maphash.Seed
	shards [64]struct {
		mu    sync.Mutex
		gates map[gateID]*gate
	}
}

func (r *registry) shard(key string) int {
	return int(maphash.String(r.seed, key) % uint64(len(r.shards)))
}

// enter returns the gate of id for a hold that will use it until exit.
func (r *registry) enter(id gateID, channel string) *gate {
	s := &r.shards[r.shard(id.key)]
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gates[id]
	if g == nil {
		if s.gates == nil {
			s.gates = make(map[gateID]*gate)
		}
		g = &gate{gateID: id, channel: channel, hub: r.hub}
		s.gates[id] = g
	}
	g.refs++
	return g
}

// exit ends one use of a gate.
func (r *registry) exit(g *gate) {
	s := &r.shards[r.shard(g.key)]
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.refs--; g.refs == 0 {
		delete(s.gates, g.gateID)
	}
}

// gate returns the gate of id if it is in use, or nil.
func (r *registry) gate(id gateID) *gate {
	s := &r.shards[r.shard(id.key)]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gates[id]
}

// find returns the hold of o at id, or nil.
func (r *registry) find(id gateID, o owner) *hold {
	g := r.gate(id)
	if g == nil {
		return nil
	}
	return g.find(o)
}

// all returns every hold in use, each once.
func (r *registry) all() []*hold {
	seen := make(map[*hold]bool)
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
	holds := make([]*hold, 0, len(seen))
	for h := range seen {
		holds = append(holds, h)
	}
	return holds
}

func (g *gate) find(o owner) *hold {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.holds.find(o)
}

// add registers h, unless its owner has a hold here already.
func (g *gate) add(h *hold) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.holds.add(h)
}

func (g *gate) remove(h *hold) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holds.remove(h)
}

// holder returns the hold that has the given field on Redis, or nil.
func (g *gate) holder(field string) *hold {
	if h := g.find(ownerNamed(field)); h != nil && h.holdsAs(field) {
		return h
	}
	return nil
}

// holder returns the hold of this client that has field on key i of t, or nil.
func (c *Client) holder(t *keys.Set, i int, field string) *hold {
	id := gateOf(t, i)
	if id.side != keys.Alone {
		id.side = keys.SideOf(field) // of whichever a handle is
	}
	g := c.registry.gate(id)
	if g == nil {
		return nil
	}
	return g.holder(field)
}

// fairly returns the line of this process for the key as a fair lock.
func (g *gate) fairly(make func() *party) *party {
	g.fairOnce.Do(func() { g.fair = make() })
	return g.fair
}

// listen has the queue woken by messages, until unlisten.
func (g *gate) listen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listeners++; g.listeners == 1 {
		g.subscription = g.hub.Subscribe(g.channel, g.queue.Wake)
		if g.subscription.Live() {
			// No confirmation is to come, and a message that came since the last try was
			// nobody's.
			g.queue.Wake()
		}
	}
}

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
	return g.subscription != nil && g.subscription.Live()
}

// holds finds the holds at a gate by their owners: each has at most one. Most gates have a single
// hold, and for that need no map.
type holds struct {
	one  *hold // any of them, or nil
	rest map[owner]*hold
}

func (s *holds) find(o owner) *hold {
	if s.one != nil && s.one.owner == o {
		return s.one
	}
	return s.rest[o]
}

// add adds h, unless its owner has a hold here already.
func (s *holds) add(h *hold) bool {
	switch {
	case s.find(h.owner) != nil:
		return false
	case s.one == nil:
		s.one = h
	case s.rest == nil:
		s.rest = map[owner]*hold{h.owner: h}
	default:
		s.rest[h.owner] = h
	}
	return true
}

func (s *holds) remove(h *hold) {
	switch h {
	case s.one:
		s.one = nil
	case s.rest[h.owner]:
		delete(s.rest, h.owner)
	}
}

// all yields each hold.
func (s *holds) all(yield func(*hold) bool) {
	if s.one != nil && !yield(s.one) {
		return
	}
	for _, h := range s.rest {
		if !yield(h) {
			return
		}
	}
}
