package check

import (
	"cmp"
	"slices"
)

// I2: tokens rise in real-time order: if one Lock returned before another was called, it has the lower token. Two holds never
// have the same token. A re-entry has the token of its hold. This holds after any loss of data, because tokens follow the
// server's clock. Readers and permits have no token. One acquisition has one token: no other is created while it is held, unless a
// command was sent twice, for example because a process did not run.
func (r *run) tokens() {
	for _, h := range r.holds {
		for _, lv := range h.levels {
			if lv.token != h.token && lv.token != 0 && h.token != 0 {
				r.breach("I2", h.lock, "%s has the token %d, and %d on re-entry", r.of(h), h.token, lv.token)
			}
		}
		for _, c := range h.counted {
			if r.rules.SentOnce && c.token != 0 && h.token != 0 && c.token != h.token && !r.wasPaused(h.process, h.called, c.at) && !r.wasPaused(director, h.called, c.at) {
				r.breach("I2", h.lock, "%s has the token %d, but at %s the counter on Redis had %d", r.of(h), h.token, r.at(c.at), c.token)
			}
		}
	}
	for name, holds := range r.byName() {
		r.tokensOf(name, slices.DeleteFunc(holds, func(h *hold) bool { return h.read || h.isPermit() }))
	}
}

// tokensOf examines one name; holds are in the order in which their Locks returned.
func (r *run) tokensOf(name string, holds []*hold) {
	called := slices.SortedStableFunc(slices.Values(holds), func(a, b *hold) int { return cmp.Compare(a.called, b.called) })
	owners := make(map[int64]*hold)
	var highest *hold // of those that had returned
	next := 0
	for _, h := range called {
		for ; next < len(holds) && holds[next].returned < h.called; next++ {
			if highest == nil || holds[next].token > highest.token {
				highest = holds[next]
			}
		}
		switch same := owners[h.token]; {
		case h.token == 0:
			if h.claimed() > h.returned { // otherwise it may have ended before its token was requested
				r.breach("I2", name, "%s has no token", r.of(h))
			}
			continue
		case same != nil && !r.sameHold(same, h):
			r.breach("I2", name, "%s and %s have the same token %d", r.of(same), r.of(h), h.token)
		case highest != nil && h.token < highest.token:
			r.breach("I2", name, "%s got the token %d at %s, after %s had got %d at %s",
				r.of(h), h.token, r.at(h.returned), r.of(highest), highest.token, r.at(highest.returned))
		}
		owners[h.token] = h
	}
}

// sameHold reports whether two holds of workers that share an owner can be one hold of the library. a was requested first.
func (r *run) sameHold(a, b *hold) bool {
	if a.owner != b.owner || a.lock != b.lock {
		return false
	}
	// Some level must have lasted until b was requested.
	return slices.ContainsFunc(r.holds, func(h *hold) bool {
		u := h.unlocked()
		return h.owner == a.owner && h.lock == a.lock && h.token == a.token && h.called <= b.called &&
			h != b && (u == nil || u.returned == 0 || u.returned >= b.called)
	})
}
