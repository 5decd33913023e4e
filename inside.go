package relock

// Tests outside of this package look at clients and handles through package inside, which this file opens.

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/inside"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/session"
)

func init() {
	inside.SessionOf = sessionOf
	inside.HoldsOn = func(client any, key string) (views []inside.Hold) {
		for _, h := range holdsOn(sessionOf(client), key) {
			views = append(views, h.inside())
		}
		return views
	}
	inside.TellFirst = func(client any) { client.(*Client).plain.batches = nil }
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
func sessionOf(client any) *session.Session {
	if m, ok := client.(*Mutex); ok {
		return m.session
	}
	return client.(*Client).session
}

func (m *Mutex) inside() inside.Mutex {
	return inside.Mutex{Keys: m.target, Terms: &m.settings.Terms, Protocol: m.kind.protocol}
}

// holdsOn returns the holds of all owners on key.
func holdsOn(s *session.Session, key string) (holds []*hold) {
	for _, x := range s.Registry.All() {
		h := asHold(x)
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
		Occupy: func() (free func()) { slot.Take(context.Background()); return slot.Free },
	}
	for i, p := range h.places {
		state, _ := p.Ticket.State()
		view.Waiting = view.Waiting || state != queue.Gone && h.phase == acquiring && len(h.places) == len(h.target.Keys)
		if i == 0 {
			view.Listening = p.Messages.Listening()
			view.Line = func() inside.Line { return p.Gate.Line() }
			view.Turn = func() inside.Turn { return &p.Gate.Line().Queue }
		}
	}
	return view
}
