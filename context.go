package relock

import (
	"context"
	"slices"

	"github.com/relock-go/relock/internal/holdctx"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
)

// contextOfAll returns a context that ends with ctx or with any of holds, of one owner, as far as
// they have keys of t.
func contextOfAll(ctx context.Context, holds []*hold, t *keys.Set) context.Context {
	var first, x *holdctx.Context
	for _, h := range holds {
		x = h.context(ctx, t)
		if ctx = x; first == nil {
			first = x
		}
	}
	if x.Context.Err() != nil { // the others would be kept for as long as their holds last
		x.EndUpTo(first.Above(), context.Cause(x))
	}
	return x
}

// context returns a context that ends with ctx or with the hold, whichever is first.
func (h *hold) context(ctx context.Context, t *keys.Set) *holdctx.Context {
	x := holdctx.New(ctx, h, t)
	h.Check()
	h.mu.Lock()
	cause, name := h.cause, h.target.Name
	if cause == nil && (h.phase != held || h.levels.Len() == 0 || h.freed(t)) { // being acquired, or given back
		cause = notHeld(h.owner)
	}
	if cause != nil {
		h.mu.Unlock()
		x.End(lockerr.Wrap("hold", name, cause))
		return x
	}
	h.contexts.Add(x)
	h.mu.Unlock()
	return x
}

// freed reports whether h, which has levels, has none any more of some key of t. mu is held.
func (h *hold) freed(t *keys.Set) bool {
	if len(h.target.Keys) == 1 {
		return false
	}
	freed := h.target.Without(h.levels.Counts(h.target.Keys))
	return freed != nil && slices.ContainsFunc(freed.Keys, t.Has)
}

// endFreed ends the contexts of keys of which h has no level any more. mu is held.
func (h *hold) endFreed() {
	if len(h.target.Keys) == 1 {
		return
	}
	for _, x := range h.contexts.Take(func(x *holdctx.Context) bool { return h.freed(x.Target()) }) {
		x.End(lockerr.Wrap("hold", h.target.Name, ErrReleased))
	}
}
