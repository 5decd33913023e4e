package relock

import (
	"context"
	"slices"
)

// holdContext is the context of a hold: it ends with its parent, or with the hold.
type holdContext struct {
	context.Context
	above  *holdContext // of another hold, from which this one is derived; or nil
	hold   *hold
	target *target // what it is a context of; some of its keys may be in another hold
	cancel context.CancelCauseFunc
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
func contextOfAll(ctx context.Context, holds []*hold, t *target) context.Context {
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
func (h *hold) context(ctx context.Context, t *target) *holdContext {
	x := &holdContext{hold: h, target: t}
	x.above, _ = ctx.Value(nearestHold{}).(*holdContext)
	x.Context, x.cancel = context.WithCancelCause(ctx)
	h.check()
	h.mu.Lock()
	cause, name := h.cause, h.target.name
	if cause == nil && (h.phase != held || len(h.levels) == 0 || h.freed(t)) { // being acquired, or given back
		cause = notHeld(h.owner)
	}
	if cause != nil {
		h.mu.Unlock()
		x.cancel(wrap("hold", name, cause))
		return x
	}
	h.contexts = append(h.contexts, x)
	h.mu.Unlock()
	// The parent may end long before the hold: do not keep x until then.
	context.AfterFunc(x.Context, func() { h.forget(x) })
	return x
}

// freed reports whether h, which has levels, has none any more of some key of t. mu is held.
func (h *hold) freed(t *target) bool {
	if len(h.target.keys) == 1 {
		return false
	}
	freed := h.target.without(h.counts())
	return freed != nil && slices.ContainsFunc(freed.keys, t.has)
}

// endFreed ends the contexts of keys of which h has no level any more. mu is held.
func (h *hold) endFreed() {
	h.contexts = slices.DeleteFunc(h.contexts, func(x *holdContext) bool {
		if !h.freed(x.target) {
			return false
		}
		x.cancel(wrap("hold", h.target.name, ErrReleased))
		return true
	})
}

// forget drops a context that has ended.
func (h *hold) forget(x *holdContext) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := slices.Index(h.contexts, x); i >= 0 {
		h.contexts = slices.Delete(h.contexts, i, i+1)
	}
}
