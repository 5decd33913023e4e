package relock

import (
	"context"

	"github.com/relock-go/relock/internal/acquire"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/session"
)

// What Close does to one hold; internal/session does it to all of them.

// Close ends a hold because the client is closed. Its levels are left to be unlocked, to no effect.
func (h *hold) Close(ctx context.Context, failed func(error)) {
	if !h.endForClose(ctx) {
		return
	}
	h.mu.Lock()
	event, hooks := h.event(h.session.Now().Since(h.lease.Acquired()), nil), *h.hooks()
	failed(lockerr.Wrap("close", event.Name, h.unheard(lockerr.NoAnswerWithin(session.CloseTimeout))))
	h.mu.Unlock()

	h.endBatch(ctx)
	if h.slot.Take(ctx) {
		err := h.giveBack(ctx, h.settings, false)
		h.batch.End(err)
		event.Err = lockerr.Wrap("close", event.Name, err)
		h.slot.Free()
	} else {
		event.Err = lockerr.Wrap("close", event.Name, h.abandon(lockerr.Ended(ctx)))
	}
	failed(event.Err)
	h.mu.Lock()
	h.setPhase(lost)
	h.mu.Unlock()
	report(hooks.Released, h.owner, event)
}

// endForClose ends a hold here, as soon as no Lock acquires it and no Unlock releases it. false: there is nothing
// to be released, or another call is at it, and reports what becomes of it.
func (h *hold) endForClose(ctx context.Context) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ctx.Err() == nil && (h.phase == ending || h.phase == acquiring && !h.excused) {
		changed := h.changes()
		h.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		h.mu.Lock()
	}
	if h.phase != held {
		return false
	}
	h.end(ending, ErrClosed)
	return true
}

// Excuse has Close not wait for h if the goroutine caller acquires it: that one is in a hook, which has called
// Close.
func (h *hold) Excuse(caller int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.acquirer == caller {
		h.excused = true
		h.tellChange()
	}
}

// Stands returns the name that Redis knows h by, and the places in lines where it waits.
func (h *hold) Stands() (field string, waits []acquire.Place) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase == acquiring && h.kind.inLine {
		waits = h.places
	}
	return h.name.Field, waits
}
