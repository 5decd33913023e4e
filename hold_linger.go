package relock

import (
	"errors"
	"time"

	"github.com/relock-go/relock/internal/clock"
)

// WithLinger: a hold of a Mutex that has ended keeps the lock for the next Lock of this process. Meanwhile it is a
// detached hold that keeps its turn in the local queue, and has a timer, but no goroutine:
//
//	ended --nobody else wants the lock--> lingers --a Lock of this process--> handed over, as in any batch
//	                                         |
//	                                         +--time, a waiter, Close--> released, as after WithAsyncUnlock
//
// Invariants:
//   - A hold that lingers is in demand.lingering of its gate. Who removes it there ends the lingering, and nobody else does.
//   - It lingers only while its lease is proven for another third of the TTL. So the next hold has the time to renew it.
//   - It lingers only while waiters of other processes can make themselves known: this process is subscribed to their
//     announcements, or the subscription is about to be confirmed. No owner is known to wait.
//   - After a TTL the lock is released, whatever is known: Redisson, and users without permission for the line, do not
//     announce that they wait.
//   - No Unlock waits for an answer on its behalf. So no command is sent for it, except to keep the lease.
//
// What can come late: the timer, which finds that another hold lingers now, or none; and a Lock that joins the queue just
// as the lingering ends, which waits for the release as after WithAsyncUnlock.

// confirmsWithin is for how long a hold may linger while the subscription is not confirmed yet. The first hold of a name that
// lingers subscribes.
const confirmsWithin = time.Second

// lingering is a hold that lingers.
type lingering struct {
	hold     *hold
	batch    *batch    // of the hold
	settings *settings // of the Unlock
	lasted   time.Duration
	until    clock.Instant // when it ends if nobody wants the lock
	timer    *time.Timer
}

// linger makes h, which has ended, linger. It returns false if the lock has to be released.
func (h *hold) linger(s *settings) bool {
	if s.linger == 0 || h.kind.rename == nil || s.localHandoffs == 0 || h.settings.replicas.N > 0 || h.inMinHold() {
		return false
	}
	p, now := h.queueEntries[0], h.session.now()
	lasts, proven := h.lingersFor(s, now)
	if _, waiting := p.queue.Handoffs(); waiting || lasts <= 0 {
		return false
	}
	p.gate.mu.Lock()
	most, _ := p.gate.mayLinger(now)
	p.gate.mu.Unlock()
	if most <= 0 {
		return false
	}
	h.detach()
	b := h.joinBatch()
	h.mu.Lock()
	h.lingered = true
	l := &lingering{hold: h, batch: b, settings: s, lasted: now.Since(h.lease.Acquired()), until: now.After(lasts)}
	h.mu.Unlock()
	begun, ask := p.gate.beginLingering(l, now)
	if !begun { // another owner has come, or the subscription was lost
		l.release()
		return true
	}
	if ask || !proven {
		b.keepLease()
	}
	h.mu.Lock()
	h.wake() // a TryLock of the same owner, which took it for a hold that is being released
	h.mu.Unlock()
	// What came just before that did not find it.
	if _, waiting := p.queue.Handoffs(); waiting || h.session.closed() || p.gate.wantedElsewhere() || b.isOver() {
		p.gate.endLingering(l)
	}
	return true
}

// lingersFor returns for how long h, which has ended, may linger after an Unlock by a handle with the settings s. proven: the
// lease was proven a short time ago.
func (h *hold) lingersFor(s *settings, now clock.Instant) (lasts time.Duration, proven bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	left, ttl := h.lease.Left(now), h.locks.ttl()
	if h.name.Late || h.batch.isOver() || h.batch != nil && now.Since(h.batch.began) > ttl || !s.canFollow(left) {
		return 0, false
	}
	return min(s.linger, left-ttl/3), left > ttl-ttl/6
}

// handOver hands the lock over to the first waiter in the local queue. If it cannot, the lock is released in the background.
func (l *lingering) handOver() bool {
	if answer, _, _ := l.hold.handOver(l.settings, false); answer == nil {
		l.release()
		return false
	}
	l.hold.unregister()
	l.hold.reportReleased(l.lasted, nil)
	return true
}

// release releases the lock in the background.
func (l *lingering) release() {
	h := l.hold
	h.session.releases.Go(func() {
		err := h.finish(h.session.limits.After(l.settings.unlockTimeout), l.settings)
		h.unregister()
		if errors.Is(err, ErrLost) {
			err = nil // nobody held it any more
		}
		h.reportReleased(l.lasted, err)
		h.session.noteRelease(err)
	})
}

// mayLinger returns for how long a hold may linger at g: 0 if another owner wants the key, or could not make itself known. live:
// another owner can. mu is held.
func (g *gate) mayLinger(now clock.Instant) (most time.Duration, live bool) {
	d := &g.demand
	if d.line == lineTaken {
		return 0, false
	}
	if g.subscribe(); d.since == (clock.Instant{}) {
		d.since = now
	}
	if !d.announcements.Live() {
		return confirmsWithin - now.Since(d.since), false
	}
	return maxTTL, true
}

// beginLingering lets l linger, if a hold still may. ask: Redis has to be asked for the line, because a waiter may have come before
// announcements arrived. Before they do, subscriptionChanged asks.
func (g *gate) beginLingering(l *lingering, now clock.Instant) (begun, ask bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	most, live := g.mayLinger(now)
	if most <= 0 {
		return false, false
	}
	d := &g.demand
	ask = live && !d.checked
	d.checked, d.lingering = live, l
	l.timer = time.AfterFunc(min(most, now.Until(l.until)), func() { g.endLingering(l) })
	return true, ask
}

// takeLingering removes the hold that lingers, and returns it for the caller to pass on or to release; nil: there is none.
// If only is not nil, it takes no other one.
func (g *gate) takeLingering(only *lingering) *lingering {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.demand.lingering
	if l == nil || only != nil && l != only {
		return nil
	}
	g.demand.lingering = nil
	l.timer.Stop()
	return l
}

// endLingering has the lock of the hold that lingers released in the background, and reports whether one lingered. only is
// as for takeLingering.
func (g *gate) endLingering(only *lingering) bool {
	l := g.takeLingering(only)
	if l != nil {
		l.release()
	}
	return l != nil
}

// endLingering is gate.endLingering for the keys of h.
func (h *hold) endLingering() {
	h.mu.Lock()
	queueEntries := h.queueEntries
	h.mu.Unlock()
	for _, p := range queueEntries {
		p.gate.endLingering(nil)
	}
}

// lingersNow reports whether h lingers. mu is held.
func (h *hold) lingersNow() bool {
	for _, p := range h.queueEntries {
		p.gate.mu.Lock()
		lingers := p.gate.lingers(h)
		p.gate.mu.Unlock()
		if lingers {
			return true
		}
	}
	return false
}

// lingers reports whether h lingers here. mu is held.
func (g *gate) lingers(h *hold) bool {
	return g.demand.lingering != nil && g.demand.lingering.hold == h
}
