package relock

import (
	"context"
	"sync"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
)

// The contexts that end with a hold.
//
// If a goroutine holds one lock and acquires a second one with the context of the first, the context of the second hold
// is derived from the context of the first. So contexts of holds form a chain (above). The end of a context ends all
// contexts that are derived from it. But a hold checks only its own lease.

// holdContext is the context of a hold. It ends with its parent, or with the hold. Its fields do not change.
type holdContext struct {
	context.Context
	above  *holdContext // the nearest context of a hold from which this one is derived, or nil
	hold   *hold
	target *keys.Set // the keys whose end ends it; some of them may be in another hold
	cancel context.CancelCauseFunc
}

// newHoldContext returns a context of h for the keys of t. It ends with ctx, or when its cancel is called.
func newHoldContext(ctx context.Context, h *hold, t *keys.Set) *holdContext {
	x := &holdContext{above: nearestHoldContext(ctx), hold: h, target: t}
	x.Context, x.cancel = context.WithCancelCause(ctx)
	return x
}

// nearest is the key under which Value returns the nearest context of a hold.
type nearest struct{}

// nearestHoldContext returns ctx if it is the context of a hold; otherwise the nearest such context from which ctx is
// derived, or nil.
func nearestHoldContext(ctx context.Context) *holdContext {
	x, _ := ctx.Value(nearest{}).(*holdContext)
	return x
}

// Value returns x itself for the key nearest, so that x is found from any context that is derived from it.
func (x *holdContext) Value(key any) any {
	if key == (nearest{}) {
		return x
	}
	return x.Context.Value(key)
}

// Err checks the deadline of the hold before it returns. If the deadline has passed, the hold is lost. For example after
// the machine was suspended, the watchdog may not have run yet. Without the check, a program that calls Err before it
// writes would write without the lock. Err also checks the holds above, because the loss of one of them ends x, too.
func (x *holdContext) Err() error {
	if x.above != nil {
		_ = x.above.Err()
	}
	x.hold.check()
	return x.Context.Err()
}

// endUpTo ends x and the contexts of holds from which x is derived, up to above, but not above itself. If x is nil, it
// does nothing.
func (x *holdContext) endUpTo(above *holdContext, cause error) {
	for ; x != nil && x != above; x = x.above {
		x.cancel(cause)
	}
}

// contextSet is the set of the contexts of a hold that have not ended. It has its own mutex, so that many contexts that
// end together do not delay a renewal by the watchdog. This mutex is taken under the hold's mu, never the other way
// round. The zero contextSet is empty.
type contextSet struct {
	mu  sync.Mutex
	all map[*holdContext]bool
}

// add adds a context. The set removes a context when the context ends, which may be long before the hold ends. Otherwise
// a hold that lasts for days would collect all its contexts. If x has already ended, it is removed soon.
func (s *contextSet) add(x *holdContext) {
	s.mu.Lock()
	if s.all == nil {
		s.all = make(map[*holdContext]bool)
	}
	s.all[x] = true
	s.mu.Unlock()
	context.AfterFunc(x.Context, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, x)
	})
}

// take removes the contexts that which selects, and returns them for the caller to end. If which is nil, it selects all.
// which is called with the mutex held.
func (s *contextSet) take(which func(*holdContext) bool) []*holdContext {
	s.mu.Lock()
	defer s.mu.Unlock()
	var taken []*holdContext
	for x := range s.all {
		if which == nil || which(x) {
			taken = append(taken, x)
			delete(s.all, x)
		}
	}
	return taken
}

// contextOfAll returns a context that ends with ctx, or with any of holds as far as it has keys of t. All holds have the
// same owner.
func contextOfAll(ctx context.Context, holds []*hold, t *keys.Set) *holdContext {
	above, x := nearestHoldContext(ctx), (*holdContext)(nil)
	for _, h := range holds {
		x = h.context(ctx, t)
		ctx = x
	}
	if x.Context.Err() != nil { // otherwise the other contexts would remain until their holds end
		x.endUpTo(above, context.Cause(x))
	}
	return x
}

// context returns a context for the keys of t that ends with ctx or with the hold, whichever ends first.
func (h *hold) context(ctx context.Context, t *keys.Set) *holdContext {
	x := newHoldContext(ctx, h, t)
	h.check()
	h.mu.Lock()
	cause, name := h.cause, h.target.Name
	if cause == nil && (h.phase != held || h.unlocked(t)) { // being acquired, or released
		cause = notHeld(h.owner)
	}
	if cause != nil {
		h.mu.Unlock()
		x.cancel(lockerr.Wrap("hold", name, cause))
		return x
	}
	h.contexts.add(x)
	h.mu.Unlock()
	return x
}

// unlocked reports whether h has no open Lock on some key of t that is in h. mu is held.
func (h *hold) unlocked(t *keys.Set) bool {
	if len(h.locks.open) == 0 || len(h.target.Keys) == 1 {
		return len(h.locks.open) == 0
	}
	counts := h.locks.counts(h.target.Keys)
	for i, key := range h.target.Keys {
		if counts[i] == 0 && t.Has(key) {
			return true
		}
	}
	return false
}

// endFreed ends the contexts of keys on which h has no open Lock left. mu is held.
func (h *hold) endFreed() {
	if len(h.target.Keys) == 1 {
		return
	}
	for _, x := range h.contexts.take(func(x *holdContext) bool { return h.unlocked(x.target) }) {
		x.cancel(lockerr.Wrap("hold", h.target.Name, ErrReleased))
	}
}
