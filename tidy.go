package relock

import (
	"slices"
	"time"

	"github.com/relock-go/relock/internal/group"
)

// retireAndUndo retires the hold's name and has it released in the background.
func (h *hold) retireAndUndo() {
	h.mu.Lock()
	n, lasts := h.name, h.lease.Longest()
	h.mu.Unlock()
	h.session.retire(n.identity)
	h.undo(n, lasts, false)
}

// undo has what h may have on Redis by the name n, which has been retired, given up in
// the background. It ends by itself within lasts.
func (h *hold) undo(n name, lasts time.Duration, unobserved bool) {
	h.mu.Lock()
	t := h.target.Lacking(n.absent)
	h.mu.Unlock()
	h.trackUndo(h.session.undo(h.kind, t, n.field, h.session.now().After(lasts), unobserved))
}

// trackUndo has awaitUndo wait until settled is closed.
func (h *hold) trackUndo(settled <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attempt.undone = append(slices.DeleteFunc(h.attempt.undone, group.Closed), settled)
}

// undoGrace is how long a Lock that has failed waits until Redis has nothing of it any more:
// whoever tries next does not meet that, and nobody has to wait for it to end by itself if
// the failure makes the program exit. It is time for a round trip on a slow link.
const undoGrace = 50 * time.Millisecond

// forgetUndone has awaitUndo not wait for what was undone on the way of an attempt that did not fail.
func (h *hold) forgetUndone() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attempt.undone = nil
}

// awaitUndo waits for a moment until an attempt that has failed is over, here and on Redis. It is
// over for good, unless somebody else of the same owner has made it his hold.
func (h *hold) awaitUndo() {
	timer := time.NewTimer(undoGrace)
	defer timer.Stop()
	for {
		next := h.untidy()
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

// untidy returns what awaitUndo has to wait for next; nil if there is nothing.
func (h *hold) untidy() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case len(h.levels) > 0:
		return nil
	case h.phase != gone:
		return h.changes()
	}
	if h.attempt.undone = slices.DeleteFunc(h.attempt.undone, group.Closed); len(h.attempt.undone) > 0 {
		return h.attempt.undone[0]
	}
	return nil
}
