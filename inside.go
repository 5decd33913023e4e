package relock

// Tests outside of this package look at clients and handles through package inside, which this file opens.

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/inside"
	"github.com/relock-go/relock/internal/queue"
)

func init() {
	inside.TryOptions, inside.TrySplits, inside.GatheringMax = tryOptions, trySplits, gatheringMax
	inside.ClientOf = func(client any) inside.Client { return sessionOf(client).inside() }
	inside.HoldsOn = func(client any, key string) (views []inside.Hold) {
		for _, h := range holdsOn(sessionOf(client), key) {
			views = append(views, h.inside())
		}
		return views
	}
	inside.TellFirst = func(client any) { client.(*Client).plain.rename = nil }
	inside.OfMutex = func(mutex any) inside.Mutex { return mutex.(*Mutex).inside() }
	inside.Sides = func(m any) (write, read any) { return &m.(*RWMutex).write, &m.(*RWMutex).read }
	inside.Pipelining = func(on bool) { pipelinedByDefault = on }
	inside.NewClient = func(rdb redis.UniversalClient, opts any, now clock.Clock) any {
		s := defaultSettings()
		for _, opt := range opts.([]ClientOption) {
			opt.applyToClient(&s)
		}
		return newClient(rdb, s, now)
	}
}

// sessionOf is the session of a client, or of the client of a handle.
func sessionOf(client any) *session {
	if m, ok := client.(*Mutex); ok {
		return m.session
	}
	return client.(*Client).session
}

func (s *session) inside() inside.Client {
	return inside.Client{
		Patience: s.patience, Hub: s.hub, Undos: s.undos, Identities: s.identities, Goroutines: &s.goroutines, Tickets: &s.tickets,
		Closed: s.closed, Undo: s.undo,
		Names: func() (n int) {
			for i := range s.registry.shards {
				shard := &s.registry.shards[i]
				shard.mu.Lock()
				n += len(shard.gates)
				shard.mu.Unlock()
			}
			return n
		},
	}
}

func (m *Mutex) inside() inside.Mutex {
	return inside.Mutex{
		Keys: m.target, Terms: &m.settings.Terms, Protocol: m.kind.protocol,
		Learned: func() (string, inside.Outage) {
			g := m.session.registry.gate(gateID{m.target.Keys[0], m.target.Side})
			if g == nil {
				return "", inside.Outage{}
			}
			seen, out := g.learned()
			return seen.holder, inside.Outage{Asked: out.asked, Failed: out.failed, Failure: out.failure}
		},
		Wakes: func() uint64 { return m.session.registry.gate(gateID{m.target.Keys[0], m.target.Side}).queue.Wakes() },
	}
}

// holdsOn returns the holds of all owners on key.
func holdsOn(s *session, key string) (holds []*hold) {
	for _, h := range s.registry.all() {
		h.mu.Lock()
		if h.target.Has(key) {
			holds = append(holds, h)
		}
		h.mu.Unlock()
	}
	return holds
}

func (h *hold) inside() inside.Hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	slot := h.slot
	view := inside.Hold{
		Keys: h.target, Field: h.name.Field, Deadline: h.lease.Deadline(), Longest: h.lease.Longest(),
		Protocol: h.kind.protocol, Terms: &h.settings.Terms, Held: h.phase == held, Awaited: h.changed != nil,
		Occupy: func() (free func()) { slot.take(context.Background()); return slot.free },
	}
	for i, p := range h.places {
		state, _ := p.ticket.State()
		view.Waiting = view.Waiting || state != queue.Gone && h.phase == acquiring && len(h.places) == len(h.target.Keys)
		if i == 0 {
			view.Listening = p.listening()
			view.Line = p.gate.line
			view.Turn = func() *queue.Bell { return &p.gate.polls.Bell }
		}
	}
	return view
}
