package relock

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/acquire"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/undo"
)

// What a hold has to do with the attempt that gets it its keys (internal/acquire): it starts that, records
// the grant, and waits after a failure until Redis has nothing more of it.
//
// Invariants:
//   - A grant counts only while its lease is proven here. One that comes later is rejected: its name is
//     retired, and released in the background.
//   - After a failure nothing is left, here or on Redis, that is not being undone.

// asHold returns the hold that x is, or nil.
func asHold(x acquire.Hold) *hold {
	h, _ := x.(*hold)
	return h
}

// acquire gets h the keys; see [acquire.Attempt.Run].
func (h *hold) acquire(ctx context.Context, c *call) (granted bool, err error) {
	h.mu.Lock()
	places := h.places
	h.mu.Unlock()
	return h.attempt.Run(ctx, places, h.kind.newTurn, c.waits, c.record)
}

// explain adds to the end of a wait for h what it was waiting for. nil stays nil.
func (h *hold) explain(err error) error {
	h.mu.Lock()
	places := h.places
	h.mu.Unlock()
	return h.attempt.Explain(places, err)
}

// outage is the error of a TryLock that does not ask: see [acquire.Attempt.Outage].
func (h *hold) outage() error {
	h.mu.Lock()
	places := h.places
	h.mu.Unlock()
	return h.attempt.Outage(places)
}

// Attempt is the acquisition of h.
func (h *hold) Attempt() *acquire.Attempt { return &h.attempt }

// Named reports whether h has a name on Redis: it was granted.
func (h *hold) Named() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.name.Field != ""
}

// Receive records a grant: that of a request, or of a hand-over by the holder before.
func (h *hold) Receive(n identity.Name, sent clock.Instant, lasts, found time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.name = n
	h.lease.Grant(sent, lasts)
	h.lease.Note(found, sent)
}

// RaiseSoon has a lease that was granted for less than the whole raised.
func (h *hold) RaiseSoon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lease.RaiseSoon(h.session.Now())
}

// Prove records an answered request that made the lease so long.
func (h *hold) Prove(sent clock.Instant, lasts time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lease.Prove(sent, lasts, h.levels.ttl())
}

// Late reports whether the grant that h received is past its deadline, or was found not to count;
// then it is rejected, which counts as a failed try.
func (h *hold) Late() bool {
	h.mu.Lock()
	late := h.lease.Left(h.session.Now()) <= 0 || h.batch.IsOver()
	h.mu.Unlock()
	if late {
		h.Reject()
	}
	return late
}

// Reject gives a grant back that does not count.
func (h *hold) Reject() {
	h.giveUp(acquire.ErrLate)
	h.forget()
}

// Undo has what n may have of t given up in the background. It ends by itself within lasts.
func (h *hold) Undo(p protocol.Protocol, t *keys.Set, n identity.Name, lasts time.Duration, unobserved bool) {
	u := undo.Name{Keys: t, Until: h.session.Now().After(lasts), KeepUntil: h.keptUntil(), Unobserved: unobserved, Late: n.Late}
	h.attempt.Undos.Add(h.session.Undo(p, u, n.Field))
}

// Remaining is for how long h is proven yet; false: it is not held.
func (h *hold) Remaining(now clock.Instant) (time.Duration, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease.Left(now), h.phase == held
}

// undoGrace is how long a Lock that has failed waits until Redis has nothing of it any more:
// the next to try does not meet that, and no one has to wait for it to end by itself if
// the failure makes the program exit. It is time for a round trip on a slow link.
const undoGrace = 50 * time.Millisecond

// awaitUndo waits for a moment until Redis has nothing more of an attempt that has failed.
func (h *hold) awaitUndo() {
	timer := time.NewTimer(undoGrace)
	defer timer.Stop()
	for {
		h.mu.Lock()
		next := h.attempt.Undos.Next()
		h.mu.Unlock()
		if next == nil {
			return
		}
		select {
		case <-next:
		case <-timer.C:
			return
		case <-h.session.Closing:
			return
		}
	}
}
