package check

import (
	"slices"
	"strings"
)

// I7, too: a process that waits for a Mutex has its turn before one that has come later.
//
// A waiter stands in the line from when it was told that it waits, and a little later: by its process'
// place, which its process keeps until its turn. So it is judged against the owners of processes that had
// neither a holder nor a waiter from then on, until they asked; and only if its own process did not hold the
// lock meanwhile, because then its turn may just have ended, with a new place at the end. In its turn a
// process serves all of its waiters: only where turns are long enough is that promised, where nothing is at
// fault, and for names that no one wanted together with others, who give back what they get.
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

// waited reports whether a process had one of calls under way in a period, the end of which does not count.
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
