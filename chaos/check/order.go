package check

import (
	"cmp"
	"slices"
)

// I7: fair locks are served in order: who was in the queue before another had even asked
// gets the lock before it.
//
// That a waiter is in the queue is known from when Redis has told it that it waits, and
// that it was served first from its token. Its place is a lease: while a fault is in force,
// or the traffic or its own process stands still, it may lose it, and a waiter that gives up has
// none. Owners who act together are left out: one may have asked for all.
func (r *run) order() {
	by := make(map[string][]*hold)
	for _, h := range r.holds {
		if h.fair && h.token != 0 {
			by[h.lock] = append(by[h.lock], h)
		}
	}
	for name, holds := range by {
		r.orderOf(name, holds)
	}
}

// orderOf examines the fair holds of one name. In the order of their calls, each is compared
// with the one with the highest token of those that were in the queue by then.
func (r *run) orderOf(name string, holds []*hold) {
	queued := slices.DeleteFunc(slices.Clone(holds), func(h *hold) bool { return h.queued == 0 || r.excused(h) })
	slices.SortFunc(queued, func(a, b *hold) int { return cmp.Compare(a.queued, b.queued) })
	slices.SortFunc(holds, func(a, b *hold) int { return cmp.Compare(a.called, b.called) })
	var last *hold
	for _, h := range holds {
		for ; len(queued) > 0 && queued[0].queued < h.called; queued = queued[1:] {
			if last == nil || queued[0].token > last.token {
				last = queued[0]
			}
		}
		if last != nil && h.token < last.token {
			r.breach("I7", name, "%s asked at %s and got the token %d, before %s, who waited since %s at least and got %d",
				r.of(h), r.at(h.called), h.token, r.of(last), r.at(last.queued), last.token)
		}
	}
}

// excused reports whether something may have cost h its place in the queue.
func (r *run) excused(h *hold) bool {
	return r.disturbed(h.called, h.returned) || r.dataLost(h.lock, h.called, h.returned) ||
		r.stopped(h.process, h) || r.stopped(director, h)
}

// stopped reports whether a process did not run for long enough that h may have lost its place. A place lives
// for two safety polls, and no longer than the lease of the lock, and is asked for three times in that.
func (r *run) stopped(process int, h *hold) bool {
	place := 2 * int64(r.rules.Poll)
	if len(h.until) > 0 {
		place = min(place, h.until[0]-h.returned)
	}
	return r.wasPaused(process, h.called, h.returned) || r.stoodStill(process, h.called, h.returned, place/2)
}
