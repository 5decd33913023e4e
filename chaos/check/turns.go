package check

import (
	"slices"
	"strings"
)

// I7, too: a process that waits for a Mutex has its turn before a process that came later.
//
// A process is in the line from a moment after the answer that its waiter waits, and keeps its entry until its turn. So the
// waiter is judged against the owners of processes that had neither a holder nor a waiter from then until they asked. It is
// judged only if its own process did not hold the lock meanwhile, because a turn of the process may have ended then, with a
// new entry at the end. A process serves all of its waiters in its turn. This is promised only if turns are long enough,
// without faults, and for names that no owner wants together with others, because such an owner may release what it gets.
func (r *run) turns() {
	shared := r.sharedOwners()
	by := make(map[string][]*call)
	for _, c := range r.calls {
		for _, name := range names(c.lock) {
			by[name] = append(by[name], c)
		}
	}
	holds := r.byName()
	for name, calls := range by {
		if !slices.Contains(r.rules.InLine, name) || slices.ContainsFunc(calls, func(c *call) bool { return strings.Contains(c.lock, ",") }) {
			continue
		}
		for _, first := range holds[name] {
			if first.queued == 0 || first.fair || shared[first.owner] || first.returned-first.queued <= int64(r.rules.Slack) {
				continue
			}
			for _, h := range holds[name] {
				if h.process == first.process || h.called <= first.queued+int64(r.rules.Slack) || h.returned >= first.returned {
					continue
				}
				since, until := first.queued, h.called
				if !waited(h.process, calls, since, until) && !held(h.process, holds[name], since, until-1) &&
					!held(first.process, holds[name], since, until) && !lostAny(holds[name], since, h.returned) {
					r.breach("I7", name, "%s asked at %s and had it at %s, before %s, whose process waited in line since %s and had it at %s",
						r.of(h), r.at(h.called), r.at(h.returned), r.of(first), r.at(first.queued), r.at(first.returned))
					break
				}
			}
		}
	}
}

// waited reports whether a process had one of calls in progress in a period, not counting its end.
func waited(process int, calls []*call, from, to int64) bool {
	return slices.ContainsFunc(calls, func(c *call) bool {
		return c.process == process && c.called < to && (c.returned == 0 || c.returned >= from)
	})
}

// held reports whether a process had one of holds in a period.
func held(process int, holds []*hold, from, to int64) bool {
	return slices.ContainsFunc(holds, func(h *hold) bool {
		end := int64(never)
		if u := h.unlocked(); u != nil && u.returned != 0 {
			end = u.returned
		}
		return h.process == process && h.returned <= to && end >= from
	})
}

// lostAny reports whether one of holds was lost in a period.
func lostAny(holds []*hold, from, to int64) bool {
	return slices.ContainsFunc(holds, func(h *hold) bool { return h.wasLost() && h.returned <= to && (h.lost == 0 || h.lost >= from) })
}
