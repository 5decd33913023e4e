package relock

import (
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// What a process has learned of a key is kept at its gates. All who wait for the key share it: one of
// them asks, and most of the others stand in line and never do.

// sighting is who had a key when that was last told. The zero sighting: no one was seen.
type sighting struct {
	at     clock.Instant
	holder string        // the holder's field on Redis
	hold   *hold         // its hold, if it is of this client
	claims bool          // it did not hold the key: it waited to write
	lease  time.Duration // what it had left then, if it is of another client; negative: for ever
}

// outage says since when Redis has not answered about a key. The zero outage: it answers.
type outage struct {
	asked   clock.Instant // when the first request began that was not answered
	failed  clock.Instant // when the first of those failed; zero: none has
	failure error         // of the last one that has
}

// seenAt has those who wait at places know that h holds the lock. A reader keeps no other reader out.
func (h *hold) seenAt(places []place, seen sighting) {
	if h.other.shared() {
		return
	}
	for _, p := range places {
		p.gate.sees(seen)
	}
}

// requestBegins records that a request begins.
func (a *attempt) requestBegins() {
	now := a.hold.client.now()
	for _, p := range a.hold.places {
		p.gate.asks(now)
	}
}

// requestEnded records how the request has ended.
func (a *attempt) requestEnded(g protocol.Grant, out redisexec.Outcome) {
	h, now := a.hold, a.hold.client.now()
	for _, p := range h.places {
		switch {
		case out.Err == nil, out.Permanent: // the latter ends the wait
			p.gate.heard()
		case byContext(out.Err):
			p.gate.stopsAsking(now)
		default:
			p.gate.failsToAsk(now, out.Err)
		}
	}
	if out.Err == nil && g.Holder != "" {
		here := h.client.holder(h.target, g.Key, g.Holder)
		h.places[g.Key].gate.sees(sighting{at: now, holder: g.Holder, hold: here, claims: g.Claimed, lease: g.TTL})
	}
}

func (g *gate) sees(s sighting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen = s
}

// asks records that a request begins.
func (g *gate) asks(now clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.outage.asked == (clock.Instant{}) {
		g.outage.asked = now
	}
}

// heard records that Redis answered a request.
func (g *gate) heard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.outage = outage{}
}

// stopsAsking records that the caller did not wait for the answer: if it was given little time,
// that says nothing of Redis.
func (g *gate) stopsAsking(now clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.outage.failure == nil && now.Since(g.outage.asked) < redisexec.MinCopyPatience {
		g.outage = outage{}
	}
}

// failsToAsk records that a request has failed. One whose answer came too late counts from now.
func (g *gate) failsToAsk(now clock.Instant, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.outage.failure = err
	if g.outage.asked == (clock.Instant{}) {
		g.outage.asked = now
	}
}

// unheard records at now that Redis did not answer, and returns since when it does not.
func (g *gate) unheard(now clock.Instant) clock.Instant {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.outage.failed == (clock.Instant{}) {
		g.outage.failed = now
	}
	return g.outage.failed
}

func (g *gate) learned() (sighting, outage) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen, g.outage
}

// since is how long Redis has not answered by now, of the time from start on. It may have
// been silent before, but then for lack of questions.
func (o *outage) since(start, now clock.Instant) time.Duration {
	if o.asked == (clock.Instant{}) {
		return 0
	}
	return now.Since(clock.Latest(o.asked, start))
}

// outage is the error of a TryLock that does not ask, because another waiter of this process is
// before it: nil if Redis answers that one, or may be about to.
func (h *hold) outage() error {
	now := h.client.now()
	patience := h.paced(redisexec.CallOptions{}).ConfirmedBy(h.settings.replicas).Patience
	h.mu.Lock()
	places := h.places
	h.mu.Unlock()
	for _, p := range places {
		_, o := p.gate.learned()
		switch silence := o.since(o.asked, now); {
		case o.failure != nil:
			return fmt.Errorf("no success with Redis%s: %w", lasting(silence), o.failure)
		case silence > patience:
			return fmt.Errorf("%w%s", lockerr.NoAnswer, lasting(silence))
		}
	}
	return nil
}
