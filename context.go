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

// context returns a context that ends with ctx or with the hold, whichever is first.
func (h *hold) context(ctx context.Context) *holdContext {
	x := &holdContext{hold: h}
	x.above, _ = ctx.Value(nearestHold{}).(*holdContext)
	x.Context, x.cancel = context.WithCancelCause(ctx)
	h.check()
	h.mu.Lock()
	if h.phase != held {
		cause := h.cause
		h.mu.Unlock()
		if cause == nil { // it is still being acquired
			cause = notHeld(h.owner)
		}
		x.cancel(wrap("hold", h.target.name, cause))
		return x
	}
	h.contexts = append(h.contexts, x)
	h.mu.Unlock()
	// The parent may end long before the hold: do not keep x until then.
	context.AfterFunc(x.Context, func() { h.forget(x) })
	return x
}

// forget drops a context that has ended.
func (h *hold) forget(x *holdContext) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := slices.Index(h.contexts, x); i >= 0 {
		h.contexts = slices.Delete(h.contexts, i, i+1)
	}
}
