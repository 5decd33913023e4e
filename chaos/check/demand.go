package check

import (
	"slices"
	"strings"
	"time"
)

// asksAgain returns the longest time between two requests of a waiter.
func (r Rules) asksAgain() time.Duration { return min(5*time.Second, 2*r.Poll, r.TTL) / 3 }

// I6, too: a holder that watches whether its lock is wanted learns of each owner that waits for it, and of nobody else.
//
// A waiter is announced with each of its requests, so by its next one if it waited before the holder watched. A message may
// come from an owner that has given up since, but not from one that had given up long before. Faults, and what they leave,
// may delay or lose a message, and so may a process that does not run. On a quorum only waiters of the holder's own Client
// are announced, and a process may have several of them: it is not judged what is not announced. An owner that wants several
// names waits for one of them at a time, which is known if the others are free.
func (r *run) demand() {
	calls := make(map[string][]*call)
	for _, c := range r.calls {
		for _, name := range names(c.lock) {
			calls[name] = append(calls[name], c)
		}
	}
	holds := r.byName()
	for _, h := range r.holds {
		if h.watched == 0 {
			continue
		}
		var others []*call
		for _, name := range names(h.lock) {
			for _, c := range calls[name] {
				if c.owner != h.owner && !c.try {
					others = append(others, c)
				}
			}
		}
		if h.wanted != 0 && !r.calledFor(h, others) {
			r.breach("I6", h.lock, "%s was wanted at %s, by the library, and nobody waited for it since %s", r.of(h), r.at(h.wanted), r.at(h.watched))
		}
		for _, c := range others {
			since := max(c.queued, h.watched)
			due := since + int64(r.rules.asksAgain()+r.rules.Slack)
			if r.rules.Quorum || c.queued == 0 || h.wanted != 0 && h.wanted <= due || h.claimed() < due || r.gone(c) <= due ||
				r.delayed(h.call, since, due) || r.delayed(c, since, due) || !onlyHolder(h, c, holds, since, due) {
				continue
			}
			r.breach("I6", h.lock, "%s was wanted by %s since %s, and did not learn it by %s", r.of(h), c.owner, r.at(since), r.at(due))
			break
		}
	}
}

// calledFor reports whether one of the calls may be the reason why h was wanted.
func (r *run) calledFor(h *hold, others []*call) bool {
	since := h.watched - int64(r.rules.Slack)
	return r.delayed(h.call, since, h.wanted) || slices.ContainsFunc(others, func(c *call) bool { return c.called <= h.wanted && r.gone(c) >= since })
}

// gone returns when the call had returned, or its process ended.
func (r *run) gone(c *call) int64 {
	if c.returned == 0 {
		return r.lastSign(c.process)
	}
	return c.returned
}

// delayed reports whether messages from or to the process of c may have been late or lost in a period.
func (r *run) delayed(c *call, from, to int64) bool {
	from -= int64(r.rules.TTL)
	return r.disturbed(from, to) || r.missedMessages(c.process, from, to) || r.wasPaused(c.process, from, to) || r.wasPaused(director, from, to)
}

// onlyHolder reports whether no other hold than h, and no min hold of another one, keeps c waiting in a period.
func onlyHolder(h *hold, c *call, holds map[string][]*hold, from, to int64) bool {
	if !strings.Contains(c.lock, ",") {
		return true
	}
	for _, name := range names(c.lock) {
		if slices.ContainsFunc(holds[name], func(o *hold) bool {
			u := o.unlocked()
			uses := o.owner != c.owner && (u == nil || u.returned == 0 || u.returned >= from)
			return o != h && o.returned <= to && (uses || o.keptAtMost() >= from)
		}) {
			return false
		}
	}
	return true
}
