package relock

import (
	"hash/maphash"
	"slices"
	"sync"

	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/wake"
)

// gate is what this process knows of one key: who holds it or wants it, in which order,
// and whether somebody has to be woken. It exists while anybody uses it.
type gate struct {
	gateID
	channel string

	// queue gives one hold at a time the right to talk to Redis about the key.
	queue queue.Queue[*hold]

	// fair is those of this process who wait for the key as a fair lock; made for the first.
	fair     *party
	fairOnce sync.Once

	refs int // of holds, guarded by the shard

	mu sync.Mutex
	// holds are the holds of all owners, in any state. One owner has at most one; several
	// are here at once if all but one are waiting, or lost and not unwound yet.
	holds []*hold
	first [1]*hold // room for the usual one
	// subscription exists while somebody listens.
	subscription *wake.Subscription
	listeners    int
	// silent is when Redis stopped answering requests about this key, if it has.
	silent      bool
	silentSince instant
}

// gateID is what a gate is found by: a side of a key.
type gateID struct {
	key  string
	side side
}

// registry finds the gates in use.
type registry struct {
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
		g = &gate{gateID: id, channel: channel}
		g.holds = g.first[:0]
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
			for _, h := range g.holds {
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
	for _, h := range g.holds {
		if h.owner == o {
			return h
		}
	}
	return nil
}

// add registers h, unless its owner has a hold here already.
func (g *gate) add(h *hold) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, other := range g.holds {
		if other.owner == h.owner {
			return false
		}
	}
	g.holds = append(g.holds, h)
	return true
}

func (g *gate) remove(h *hold) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.holds, h); i >= 0 {
		g.holds = slices.Delete(g.holds, i, i+1)
	}
}

// holder returns the hold that has the given field on Redis, or nil.
func (g *gate) holder(field string) *hold {
	for _, h := range g.all() {
		if h.holdsAs(field) {
			return h
		}
	}
	return nil
}

// all returns the holds of all owners.
func (g *gate) all() []*hold {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.holds)
}

// holder returns the hold of this client that has field on key i of t, or nil.
func (c *Client) holder(t *target, i int, field string) *hold {
	id := t.gate(i)
	if id.side != alone {
		id.side = sideOf(field) // of whichever a handle is
	}
	g := c.registry.gate(id)
	if g == nil {
		return nil
	}
	return g.holder(field)
}

func (g *gate) fairly() *party {
	g.fairOnce.Do(func() { g.fair = new(party) })
	return g.fair
}

// listen has the queue woken by messages, until unlisten.
func (g *gate) listen(hub hub) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listeners++; g.listeners == 1 {
		g.subscription = hub.Subscribe(g.channel, g.queue.Wake)
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

// heard records that Redis answered a request.
func (g *gate) heard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.silent = false
}

// unheard records at now that Redis did not answer, and returns since when it does not.
func (g *gate) unheard(now instant) instant {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.silent {
		g.silent, g.silentSince = true, now
	}
	return g.silentSince
}
