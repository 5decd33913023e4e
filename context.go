package relock

import (
	"context"
	"slices"
	"sync"

	"github.com/relock-go/relock/internal/keys"
)

// holdContext is the context of a hold: it ends with its parent, or with the hold.
type holdContext struct {
	context.Context
	above  *holdContext // of another hold, from which this one is derived; or nil
	hold   *hold
	target *keys.Set // what it is a context of; some of its keys may be in another hold
	cancel context.CancelCauseFunc
	at     int // its position in the hold's contexts, as long as it is there; guarded by them
}

// holdContexts are the contexts of a hold that have not ended. They have a lock of their own: many
// that end together must not keep the watchdog from renewing the hold. It is taken under the hold's
// mu, never the other way round.
type holdContexts struct {
	mu  sync.Mutex
	all []*holdContext
}

func (s *holdContexts) add(x *holdContext) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.at = len(s.all)
	s.all = append(s.all, x)
}

// forget drops a context that has ended, if it is still there.
func (s *holdContexts) forget(x *holdContext) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.at >= len(s.all) || s.all[x.at] != x {
		return
	}
	last := len(s.all) - 1
	s.all[x.at] = s.all[last]
	s.all[x.at].at = x.at
	s.all[last] = nil
	s.all = s.all[:last]
}

// takeAll forgets all of them, and returns them.
func (s *holdContexts) takeAll() []*holdContext {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.all
	s.all = nil
	return taken
}

// take is takeAll for those that which agrees to.
func (s *holdContexts) take(which func(*holdContext) bool) []*holdContext {
	s.mu.Lock()
	defer s.mu.Unlock()
	var taken []*holdContext
	kept := s.all[:0]
	for _, x := range s.all {
		if which(x) {
			taken = append(taken, x)
			continue
		}
		x.at = len(kept)
		kept = append(kept, x)
	}
	clear(s.all[len(kept):])
	s.all = kept
	return taken
}

// Err loses the hold first if its deadline has passed: the watchdog may not have run yet,
// as after the machine was suspended.
func (x *holdContext) Err() error {
	if x.above != nil {
		_ = x.above.Err()
	}
	x.hold.check()
	return x.Context.Err()
}

// nearestHold is the key by which a context tells of the nearest hold that it is derived from.
type nearestHold struct{}

func (x *holdContext) Value(key any) any {
	if key == (nearestHold{}) {
		return x
	}
	return x.Context.Value(key)
}

// end ends x, and those of other holds that x is derived from, up to above.
func (x *holdContext) end(above *holdContext, cause error) {
	for ; x != nil && x != above; x = x.above {
		x.cancel(cause)
	}
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
		x.end(first.above, context.Cause(x))
	}
	return x
}

// context returns a context that ends with ctx or with the hold, whichever is first.
func (h *hold) context(ctx context.Context, t *keys.Set) *holdContext {
	x := &holdContext{hold: h, target: t}
	x.above, _ = ctx.Value(nearestHold{}).(*holdContext)
	x.Context, x.cancel = context.WithCancelCause(ctx)
	h.check()
	h.mu.Lock()
	cause, name := h.cause, h.target.Name
	if cause == nil && (h.phase != held || len(h.levels) == 0 || h.freed(t)) { // being acquired, or given back
		cause = notHeld(h.owner)
	}
	if cause != nil {
		h.mu.Unlock()
		x.cancel(wrap("hold", name, cause))
		return x
	}
	h.contexts.add(x)
	h.mu.Unlock()
	// The parent may end long before the hold: do not keep x until then.
	context.AfterFunc(x.Context, func() { h.contexts.forget(x) })
	return x
}

// freed reports whether h, which has levels, has none any more of some key of t. mu is held.
func (h *hold) freed(t *keys.Set) bool {
	if len(h.target.Keys) == 1 {
		return false
	}
	freed := h.target.Without(h.counts())
	return freed != nil && slices.ContainsFunc(freed.Keys, t.Has)
}

// endFreed ends the contexts of keys of which h has no level any more. mu is held.
func (h *hold) endFreed() {
	if len(h.target.Keys) == 1 {
		return
	}
	for _, x := range h.contexts.take(func(x *holdContext) bool { return h.freed(x.target) }) {
		x.cancel(wrap("hold", h.target.Name, ErrReleased))
	}
}
