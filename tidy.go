package relock

import (
	"slices"
	"time"
)

// giveUp retires the hold's name and has it released in the background.
func (h *hold) giveUp() {
	h.mu.Lock()
	identity, field, longest := h.identity, h.field, h.longest
	h.mu.Unlock()
	h.client.retire(identity)
	h.undo(field, longest, false)
}

// undo has what h may have on Redis by the name field, which has been retired, given up in
// the background. It ends by itself within lasts.
func (h *hold) undo(field string, lasts time.Duration, unseen bool) {
	h.mu.Lock()
	t := h.target
	h.mu.Unlock()
	h.owe(h.client.undo(t, field, h.client.now().after(lasts), unseen))
}

// owe has tidy wait until settled is closed.
func (h *hold) owe(settled <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.undone = append(slices.DeleteFunc(h.undone, closed), settled)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// moment is how long a Lock that has failed waits until Redis has nothing of it any more:
// whoever tries next does not meet that, and nobody has to wait for it to end by itself if
// the failure makes the program exit. It is time for a round trip on a slow link.
const moment = 50 * time.Millisecond

// forgetUndone has tidy not wait for what was undone on the way of an attempt that did not fail.
func (h *hold) forgetUndone() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.undone = nil
}

// tidy waits for a moment until an attempt that has failed is over, here and on Redis. It is
// over for good, unless somebody else of the same owner has made it his hold.
func (h *hold) tidy() {
	timer := time.NewTimer(moment)
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
		case <-h.client.closing:
			return
		}
	}
}

// untidy returns what tidy has to wait for next; nil if there is nothing.
func (h *hold) untidy() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case len(h.levels) > 0:
		return nil
	case h.phase != gone:
		return h.changes()
	}
	if h.undone = slices.DeleteFunc(h.undone, closed); len(h.undone) > 0 {
		return h.undone[0]
	}
	return nil
}
