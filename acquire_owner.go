package relock

import (
	"context"
	"errors"
	"slices"

	"github.com/relock-go/relock/internal/goid"
	"github.com/relock-go/relock/internal/lockerr"
)

// errHookEnded is the failure of an acquisition of which a hook called runtime.Goexit, or panicked.
var errHookEnded = errors.New("a hook panicked, or ended the goroutine that it was called on")

// A fixed owner may be used by several goroutines at once. One acquisition serves them all:
// it runs on a goroutine of its own, for as long as any of its callers is there. The caller that
// began it has the first level; the others add theirs when it is settled.

// sharers are the Locks that one attempt serves. They are guarded by the mutex of the hold.
type sharers struct {
	callers int
	ctx     context.Context // of the attempt
	abort   context.CancelFunc
}

// share prepares a hold for callers to join it, the one with ctx being the first. It comes
// before another call can find the hold.
func (h *hold) share(ctx context.Context) {
	if h.owner.Fixed != "" {
		h.sharers.callers = 1
		h.sharers.ctx, h.sharers.abort = context.WithCancel(context.WithoutCancel(ctx))
	}
}

// beginShared is begin for an owner that others may act as.
func (h *hold) beginShared(ctx context.Context, c call) (bool, error) {
	defer h.part()

	var granted bool
	var err error
	settled := make(chan struct{})
	attempt := h.sharers.ctx // before the last caller can have gone
	h.session.Goroutines.Go(func() {
		defer close(settled)
		defer h.endAttempt()
		defer func() { // also after a hook that ended the goroutine
			if !granted {
				h.unregister()
				if err == nil && c.waits {
					err = errHookEnded
				}
			}
		}()
		h.mu.Lock()
		h.acquirer = goid.Get()
		h.mu.Unlock()
		if granted, err = h.acquire(attempt, &c); !granted {
			return
		}
		if granted, err = h.opened(nil, c.record); granted {
			h.other.wakeOwner()
		}
		h.dropUnclaimed()
	})
	select {
	case <-settled:
	case <-ctx.Done():
		return false, h.explain(lockerr.Ended(ctx))
	}
	if !granted {
		return false, err
	}
	if err := h.claim(ctx, c.level); err != nil {
		return false, err
	}
	return true, nil
}

// claim gives the level lv to the caller that began the acquisition of h, unless another caller's
// came first. A lease that a hook outlasts, and that is not to be renewed, is over by then: the
// next would be, too.
func (h *hold) claim(ctx context.Context, lv level) error {
	if !h.slot.Take(ctx) {
		return lockerr.Ended(ctx)
	}
	defer h.slot.Free()
	h.Check()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case errors.Is(h.cause, ErrLost):
		return h.cause
	case h.phase != held || h.levels.Len() > 0:
		return errAgain
	}
	now := h.session.Now()
	h.levels.Push(lv, now)
	h.replan(now)
	return nil
}

// part is how a caller leaves an acquisition: with the last of them it is given up, which is
// waited for for a moment.
func (h *hold) part() {
	h.mu.Lock()
	h.sharers.callers--
	abandoned := h.sharers.callers == 0
	h.mu.Unlock()
	if abandoned {
		h.endAttempt()
		h.dropUnclaimed()
		h.awaitUndo()
	}
}

// endAttempt gives up the acquisition, if it is still under way. Its context is not kept: the
// caller's, from which it comes, may lead to holds that ended long before this one.
func (h *hold) endAttempt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sharers.abort != nil {
		h.sharers.abort()
	}
	h.sharers.ctx, h.sharers.abort = nil, nil
}

// dropUnclaimed gives back what has no level and no caller left to claim one: the hold, or some
// of its keys, if a caller that wanted only the others has come first.
func (h *hold) dropUnclaimed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != held || h.sharers.callers > 0 {
		return
	}
	if h.levels.Len() > 0 {
		if len(h.target.Keys) > 1 && slices.Contains(h.levels.Counts(h.target.Keys), 0) {
			h.session.Goroutines.Go(func() { h.stepLate(h.settings) })
		}
		return
	}
	h.end(ending, ErrReleased)
	h.session.Goroutines.Go(func() {
		ctx := h.session.Limits.After(h.settings.UnlockTimeout)
		// An error is already being dealt with: the name is undone in the background.
		_ = h.release(ctx, h.settings)
	})
}
