package relock

import (
	"slices"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/undo"
)

// A grant of the keys of a hold is recorded, or rejected, and what a failed attempt may have on Redis is undone.
//
// Invariants:
//   - A grant counts only while its lease is proven here. If it comes later, it is rejected: its name is
//     retired, and released in the background.
//   - After a failure nothing remains, here or on Redis, that is not being undone.

// named reports whether h has a name on Redis: it was granted.
func (h *hold) named() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.name.Field != ""
}

// receive records a grant, by a request or by a hand-over from the previous holder.
func (h *hold) receive(n keys.Name, sent clock.Instant, lasts, found time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.name = n
	h.lease.Grant(sent, lasts)
	h.lease.Note(found, sent)
}

// raiseSoon schedules the extension of a lease that was granted for less than the TTL.
func (h *hold) raiseSoon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lease.RaiseSoon(h.session.now())
}

// prove records an answered request that made the lease so long.
func (h *hold) prove(sent clock.Instant, lasts time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lease.Prove(sent, lasts, h.locks.ttl())
}

// late reports whether the grant that h received is past its deadline, or was found not to count;
// then it is rejected, which counts as a failed try.
func (h *hold) late() bool {
	h.mu.Lock()
	late := h.lease.Left(h.session.now()) <= 0 || h.batch.isOver()
	h.mu.Unlock()
	if late {
		h.reject()
	}
	return late
}

// reject gives a grant back that does not count.
func (h *hold) reject() {
	h.giveUp(errLate)
	h.forget()
}

// undo retires the name n, so that no later request uses a name that is being undone, and releases, in the background, what it
// may have of t. Without the release that expires within lasts. unobserved: no one can have waited for that.
func (h *hold) undo(p protocol.Protocol, t *keys.Set, n keys.Name, lasts time.Duration, unobserved bool) {
	h.session.identities.Retire(n.Identity)
	u := undo.Name{Keys: t, Until: h.session.now().After(lasts), PlaceholderUntil: h.placeholderUntil(), Unobserved: unobserved, Late: n.Late}
	h.addUndo(h.session.undo(p, u, n.Field))
}

// undoGrace is how long a failed Lock waits for its undo. After the undo the next attempt finds a free key, and if the
// program exits because of the failure, no other process has to wait for the end of the lease. It is enough for a round
// trip on a slow link.
const undoGrace = 50 * time.Millisecond

// awaitUndo waits, for undoGrace at most, until what a failed attempt may have on Redis is released.
func (h *hold) awaitUndo() {
	timer := time.NewTimer(undoGrace)
	defer timer.Stop()
	for {
		next := h.nextUndo()
		if next == nil {
			return
		}
		select {
		case <-next:
		case <-timer.C:
			return
		case <-h.session.closing:
			return
		}
	}
}

// addUndo adds an undo that the caller of Lock waits for. settled is closed sooner or later.
func (h *hold) addUndo(settled <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.undos = append(slices.DeleteFunc(h.undos, goroutine.Closed), settled)
}

// nextUndo returns an undo that is not settled yet; nil: all are. Others may be added while the caller waits for it.
func (h *hold) nextUndo() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.undos = slices.DeleteFunc(h.undos, goroutine.Closed); len(h.undos) == 0 {
		return nil
	}
	return h.undos[0]
}

// forgetUndos has nobody wait for the undos. They go on in the background.
func (h *hold) forgetUndos() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.undos = nil
}
