package relock

import (
	"errors"
	"fmt"

	"github.com/relock-go/relock/internal/clock"
)

// check loses the hold if its deadline has passed: the watchdog may not have run yet.
func (h *hold) check() {
	h.mu.Lock()
	now := h.session.now()
	if h.phase != held || h.lease.Left(now) > 0 {
		h.mu.Unlock()
		return
	}
	why := h.leaseOver(now)
	h.mu.Unlock()
	h.lose(why)
}

// leaseOver says why the lease of h has run out. mu is held.
func (h *hold) leaseOver(now clock.Instant) error {
	renewed, bounded := false, false
	for _, lv := range h.renewable() {
		renewed = renewed || lv.renewedAt(now)
		bounded = bounded || lv.Renewed
	}
	switch {
	case h.watchdog.failure != nil:
		return fmt.Errorf("%w before it was renewed: %w", errLeaseOver, h.watchdog.failure)
	case renewed:
		return fmt.Errorf("%w before it was renewed", errLeaseOver)
	case bounded:
		return fmt.Errorf("%w, and was not to be renewed any more (WithMaxHold)", errLeaseOver)
	default:
		return fmt.Errorf("%w, and was not to be renewed (WithoutRenewal)", errLeaseOver)
	}
}

// How a loss was found out.
var (
	errLeaseOver = errors.New("the lease ran out")
	errForced    = errors.New("it was forced open")
)

// lose ends the hold without its holder's doing. Its name is given up, and released in
// the background in case it still stands on Redis; the next waiter of this process tries
// at once.
func (h *hold) lose(why error) {
	h.mu.Lock()
	if h.phase != held {
		h.mu.Unlock()
		return
	}
	// Before the loss can be seen: the owner may unlock, and acquire again, from then on.
	h.session.retire(h.name.identity)
	h.end(lost, fmt.Errorf("%w: %w", ErrLost, why))
	event := h.event(h.session.now().Since(h.lease.Acquired()), why)
	hooks := h.hooks()
	unclaimed := len(h.levels) == 0
	for _, p := range h.places {
		p.ticket.Leave()
	}
	h.mu.Unlock()

	h.retireAndUndo()
	h.other.wake()
	if unclaimed { // nobody will unlock it
		h.unregister()
	}
	report(hooks.Lost, event)
}
