package relock

import (
	"context"
	"slices"
	"sync"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
)

// The contexts that end with a hold.
//
// A context may be derived from that of another hold: a goroutine that holds one lock takes a second one with
// the context of the first. So contexts of holds form a chain (above). The end of one ends those below, as
// with all contexts. But only the hold of each knows whether its lease is over.

// holdContext is the context of a hold: it ends with its parent, or with the hold. Its fields do not change.
type holdContext struct {
	context.Context
	above  *holdContext // the nearest one of a hold from which this one is derived; or nil
	hold   *hold
	target *keys.Set // what it is a context of; some of its keys may be in another hold
	cancel context.CancelCauseFunc
}

// newHoldContext returns a context of h, for the keys of t. It ends with ctx, or by its cancel.
func newHoldContext(ctx context.Context, h *hold, t *keys.Set) *holdContext {
	x := &holdContext{above: nearestHoldContext(ctx), hold: h, target: t}
	x.Context, x.cancel = context.WithCancelCause(ctx)
	return x
}

// nearest is the key by which a context tells of the nearest hold that it is derived from.
type nearest struct{}

// nearestHoldContext returns the nearest context of a hold that ctx is, or is derived from; nil: there is none.
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

// Err loses the hold first if its deadline has passed. The watchdog may not have run yet, as after the
// machine was suspended. Without that a program that asks Err before it writes would go on as a holder. The
// same goes for the holds above: a loss of theirs ends x, too.
func (x *holdContext) Err() error {
	if x.above != nil {
		_ = x.above.Err()
	}
	x.hold.check()
	return x.Context.Err()
}

// endUpTo ends x, and the contexts of other holds that x is derived from, up to above. It does not end above.
// x may be nil: then there is nothing to end.
func (x *holdContext) endUpTo(above *holdContext, cause error) {
	for ; x != nil && x != above; x = x.above {
		x.cancel(cause)
	}
}

// contextSet is the contexts of a hold that have not ended. It has a mutex of its own: many contexts that end
// together must not keep the watchdog from renewing the hold. That mutex is taken under the hold's mu, never the
// other way round. The zero contextSet is empty.
type contextSet struct {
	mu  sync.Mutex
	all map[*holdContext]bool
}

// add adds a context. It is forgotten when it ends, which may be long before the hold does: else a hold that
// lasts for days would keep each context that it ever had. If x has ended already, it is forgotten soon.
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

// take forgets those contexts that which selects, and returns them for the caller to end. which is called with
// the mutex held; nil selects all.
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

// contextOfAll returns a context that ends with ctx or with any of holds, of one owner, as far as
// they have keys of t.
func contextOfAll(ctx context.Context, holds []*hold, t *keys.Set) context.Context {
	var first, x *holdContext
	for _, h := range holds {
		x = h.context(ctx, t)
		if ctx = x; first == nil {
			first = x
		}
	}
	if x.Context.Err() != nil { // the others would be kept for as long as their holds last
		x.endUpTo(first.above, context.Cause(x))
	}
	return x
}

// context returns a context that ends with ctx or with the hold, whichever is first.
func (h *hold) context(ctx context.Context, t *keys.Set) *holdContext {
	x := newHoldContext(ctx, h, t)
	h.check()
	h.mu.Lock()
	cause, name := h.cause, h.target.Name
	if cause == nil && (h.phase != held || len(h.levels.open) == 0 || h.freed(t)) { // being acquired, or given back
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

// freed reports whether h, which has levels, has none any more of some key of t. mu is held.
func (h *hold) freed(t *keys.Set) bool {
	if len(h.target.Keys) == 1 {
		return false
	}
	freed := h.target.Without(h.levels.counts(h.target.Keys))
	return freed != nil && slices.ContainsFunc(freed.Keys, t.Has)
}

// endFreed ends the contexts of keys of which h has no level any more. mu is held.
func (h *hold) endFreed() {
	if len(h.target.Keys) == 1 {
		return
	}
	for _, x := range h.contexts.take(func(x *holdContext) bool { return h.freed(x.target) }) {
		x.cancel(lockerr.Wrap("hold", h.target.Name, ErrReleased))
	}
}
