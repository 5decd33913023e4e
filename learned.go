package relock

import (
	"fmt"

	"github.com/relock-go/relock/internal/gate"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// seenAt has those who wait at places know that h holds the lock. A reader keeps no other reader out.
func (h *hold) seenAt(places []place, seen gate.Sighting[*hold]) {
	if h.other.shared() {
		return
	}
	for _, p := range places {
		p.gate.Sees(seen)
	}
}

// requestBegins records that a request begins.
func (a *attempt) requestBegins() {
	now := a.hold.session.now()
	for _, p := range a.hold.places {
		p.gate.Asks(now)
	}
}

// requestEnded records how the request has ended.
func (a *attempt) requestEnded(g protocol.Grant, out redisexec.Outcome) {
	h, now := a.hold, a.hold.session.now()
	for _, p := range h.places {
		switch {
		case out.Err == nil, out.Permanent: // the latter ends the wait
			p.gate.Heard()
		case byContext(out.Err):
			p.gate.StopsAsking(now)
		default:
			p.gate.FailsToAsk(now, out.Err)
		}
	}
	if out.Err == nil && g.Holder != "" {
		here := h.session.holder(h.target, g.Key, g.Holder)
		h.places[g.Key].gate.Sees(gate.Sighting[*hold]{At: now, Holder: g.Holder, Hold: here, Claims: g.Claimed, Lease: g.TTL})
	}
}

// outage is the error of a TryLock that does not ask, because another waiter of this process is
// before it: nil if Redis answers that one, or may be about to.
func (h *hold) outage() error {
	now := h.session.now()
	patience := h.paced(redisexec.CallOptions{}).ConfirmedBy(h.settings.replicas).Patience
	h.mu.Lock()
	places := h.places
	h.mu.Unlock()
	for _, p := range places {
		_, o := p.gate.Learned()
		switch silence := o.Since(o.Asked, now); {
		case o.Failure != nil:
			return fmt.Errorf("no success with Redis%s: %w", lasting(silence), o.Failure)
		case silence > patience:
			return fmt.Errorf("%w%s", lockerr.NoAnswer, lasting(silence))
		}
	}
	return nil
}
