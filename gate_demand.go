package relock

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/wake"
)

// Whether other owners want a key while this process has it: [Mutex.Wanted] reports it, and it ends a hold that lingers.
//
// A waiter of this process calls notifyWanted when it begins to wait. Waiters of other processes announce each of their
// requests on a channel of the key, to which nobody is subscribed as long as nobody wants to know.
//
// What can come late: an announcement of a waiter that has left, or that has been served since. Both are harmless,
// because it is a hint, as all messages are. If an announcement is lost, the next poll of the waiter makes another one.

// demand has the calls that want to know whether other owners want the key. The zero demand has none.
type demand struct {
	announcements *wake.Subscription    // from the first one that wants to know until the end of the gate; nil: none, or on a quorum
	since         clock.Instant         // when the first hold was to linger
	checked       bool                  // Redis was asked for the line since the subscription was confirmed: an announcement may have come before
	over          bool                  // the gate is no longer in use
	watchers      map[*watcher]struct{} // of Wanted
	line          lineState             // by the last answer, or a later announcement
	announced     clock.Instant         // the time of the last one
	lingering     *lingering            // the hold that lingers, or nil
}

// lineState is what is known of the line of a key: whether an owner of another process waits. It is a hint: the next command
// notices a waiter that enters the line later.
type lineState uint8

const (
	lineUnknown lineState = iota // or a grant has shown that those who waited do so no longer
	lineEmpty
	lineTaken
)

// lineIs returns the state after an answer that says whether an owner waits.
func lineIs(taken bool) lineState {
	if taken {
		return lineTaken
	}
	return lineEmpty
}

// watcher is a call of Wanted.
type watcher struct{ wanted func() }

// watchDemand calls wanted, which must not block, whenever another owner is found to wait for the key, until end.
func (g *gate) watchDemand(wanted func()) (end func()) {
	w := &watcher{wanted}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.subscribe()
	if g.demand.watchers == nil {
		g.demand.watchers = make(map[*watcher]struct{})
	}
	g.demand.watchers[w] = struct{}{}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.demand.watchers, w)
	}
}

// subscribe subscribes to the announcements, unless the gate has done that already, or is no longer in use: a call of Wanted
// may come that late. mu is held.
func (g *gate) subscribe() {
	if hub := g.registry.announcements; hub != nil && g.demand.announcements == nil && !g.demand.over {
		g.demand.announcements = hub.SubscribeTo(keys.WantedOf(g.id.key), g.subscriptionChanged, func(string) { g.announced() })
	}
}

// subscriptionChanged ends the lingering of a hold if announcements of waiters would be lost. When the subscription is
// confirmed, the hold may linger for its whole time, and Redis is asked for the line, because a waiter may have come before.
func (g *gate) subscriptionChanged() {
	g.mu.Lock()
	d := &g.demand
	l, live := d.lingering, d.announcements != nil && d.announcements.Live() // it may be called before there is a subscription here
	ask := live && l != nil && !d.checked
	if ask {
		l.timer.Reset(l.hold.session.now().Until(l.until))
	}
	d.checked = live && (d.checked || ask)
	g.mu.Unlock()
	switch {
	case l == nil:
	case ask:
		l.batch.keepLease()
	case !live:
		g.endLingering(l)
	}
}

// wantedChannel returns the channel that is closed when another owner waits for a key of h: the same one for each call. If h
// is not held, it is a channel that stays open.
func (h *hold) wantedChannel() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != held {
		return make(chan struct{})
	}
	if h.demand == nil {
		demand := make(chan struct{})
		h.demand = demand
		x := newHoldContext(context.Background(), h, h.target)
		h.contexts.add(x)
		h.watchDemand(x.Context, h.target, sync.OnceFunc(func() { close(demand) }))
	}
	return h.demand
}

// watchDemand calls wanted whenever another owner is found to wait for a key of t that is in h, until ctx ends. mu is held:
// ctx is not a caller's.
func (h *hold) watchDemand(ctx context.Context, t *keys.Set, wanted func()) {
	for _, p := range h.queueEntries {
		if !t.Has(p.gate.id.key) {
			continue
		}
		context.AfterFunc(ctx, p.gate.watchDemand(wanted))
		// The waiters in this queue called gate.notifyWanted before that, and will not ask Redis as long as h is held.
		if _, waiting := p.queue.Handoffs(); waiting {
			wanted()
		}
	}
}

// announced records that an owner waits in another process, or in this one with an entry in the line of its own.
func (g *gate) announced() {
	g.mu.Lock()
	g.demand.line, g.demand.announced = lineTaken, g.registry.now()
	g.mu.Unlock()
	g.notifyWanted()
}

// seesLine records what follows for the line from the answer to a command that was sent at sent. That nobody is known to wait does
// not count if the answer is older than an announcement. lineUnknown is for a grant, which says less than an answer about the line.
func (g *gate) seesLine(line lineState, sent clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case line == lineUnknown && g.demand.line == lineEmpty:
	case line == lineTaken || sent.Since(g.demand.announced) > 0:
		g.demand.line = line
	}
}

// wantedElsewhere reports whether an owner of another process is known to wait for the key.
func (g *gate) wantedElsewhere() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.demand.line == lineTaken
}

// notifyWanted notifies those who want to know that another owner waits for the key.
func (g *gate) notifyWanted() {
	g.mu.Lock()
	watchers := slices.Collect(maps.Keys(g.demand.watchers))
	g.mu.Unlock()
	g.endLingering(nil)
	for _, w := range watchers {
		w.wanted()
	}
}

// unwatch ends the subscription of a gate that is no longer in use. mu is held.
func (g *gate) unwatch() {
	g.demand.over = true
	if g.demand.announcements != nil {
		g.demand.announcements.Close()
	}
}
