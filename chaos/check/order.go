package check

import (
	"cmp"
	"slices"
)

// I7: fair locks are served in order: if a waiter was in the line before another owner asked, it gets the lock first.
//
// A waiter is in the line from the answer of Redis that it waits. The tokens show who was served first. An entry is a
// lease: the waiter may lose it during a fault, or while the traffic or its own process stands still, and then waits at
// the end of the line, as is documented. While its process is not subscribed, it is skipped. A waiter that gives up has no entry. Workers that share an owner are left out,
// because one request may count for all.
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

// orderOf examines the fair holds of one name, in the order of their calls. Of the holds that were in the line before the
// call, it compares each with the one that has the highest token.
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

// excused reports whether h may have lost its entry in the line for a reason.
func (r *run) excused(h *hold) bool {
	return r.disturbed(h.called, h.returned) || r.dataLost(h.lock, h.called, h.returned) || r.missedMessages(h.process, h.called, h.returned) ||
		r.stopped(h.process, h) || r.stopped(director, h)
}

// stopped reports whether a process did not run for so long that h may have lost its entry. An entry lives for two safety
// polls, or for the lease of the lock if that is less, and is polled three times in that time. So the entry is lost if a poll
// is late by two thirds of its life. A beat shows how long a busy machine delayed one goroutine, but a poll and its answer
// wait for about four: that of the waiter, of each end of the connection, and Redis. Other threads of the process may run
// meanwhile, so the delays of the beats are not those of the poll, but about as long.
func (r *run) stopped(process int, h *hold) bool {
	place := 2 * int64(r.rules.Poll)
	if len(h.until) > 0 {
		place = min(place, h.until[0]-h.returned)
	}
	return r.wasPaused(process, h.called, h.returned) || r.stoodStill(process, h.called, h.returned, place*2/3/4)
}
