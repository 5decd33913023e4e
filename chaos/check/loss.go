package check

import (
	"slices"
	"time"

	"github.com/relock-go/relock/chaos/history"
)

// I3: a loss is noticed at the latest at the deadline that the holder can compute itself, and before another owner gets the
// lock. A lost hold does not come back.
//
// To notice takes a goroutine that runs, so there is slack. A process that is stopped has that time when it continues.
// Without slack, I1 judges what a hold claimed until the loss was noticed.
func (r *run) loss() {
	for _, h := range r.holds {
		r.noticed(h)
		r.notRevived(h)
	}
	for name, holds := range r.byName() {
		r.noticedFirst(name, holds)
	}
	r.notHeldAfterwards()
	r.nothingToLose()
}

// noticed judges that the end of a hold was noticed after its last deadline.
func (r *run) noticed(h *hold) {
	if len(h.until) == 0 {
		return
	}
	due := r.due(h.process, slices.Max(h.until))
	if end := h.ended(); due != 0 && (end == 0 || end > due) && !r.reportedElsewhere(h, due) {
		r.breach("I3", h.lock, "%s was over by its deadline, %s, but its end was not noticed by %s",
			r.of(h), r.at(slices.Max(h.until)), r.at(due))
	}
}

// reportedElsewhere reports whether a worker that shares h had noticed the loss by a time.
func (r *run) reportedElsewhere(h *hold, by int64) bool {
	return slices.ContainsFunc(r.holds, func(o *hold) bool {
		return o != h && o.owner == h.owner && o.lock == h.lock && o.read == h.read && o.token == h.token && o.lost != 0 && o.lost <= by
	})
}

// notRevived judges that every renewal was sent before the deadline that the previous one had proven.
func (r *run) notRevived(h *hold) {
	for i := 1; i < len(h.until); i++ {
		due := r.due(h.process, slices.Max(h.until[:i]))
		if sent := h.until[i] - int64(r.rules.TTL); due != 0 && sent > due {
			r.breach("I3", h.lock, "%s was renewed at %s or later, though it was over by %s",
				r.of(h), r.at(sent), r.at(slices.Max(h.until[:i])))
		}
	}
}

// noticedFirst judges that the owner that lost a lock noticed the loss before another owner had the lock. This is not
// promised after a loss of data. holds are in the order in which they began.
func (r *run) noticedFirst(name string, holds []*hold) {
	var lost []*hold // open ones that will be
	for _, h := range holds {
		lost = slices.DeleteFunc(lost, func(l *hold) bool { return l.ended() <= h.returned })
		for _, l := range lost {
			if l.excludes(h) && r.noticedLate(l, name, h) {
				r.breach("I3", name, "%s noticed its loss at %s, after %s had got the lock at %s",
					r.of(l), r.at(l.ended()), r.of(h), r.at(h.returned))
			}
		}
		if h.lost != 0 {
			lost = append(lost, h)
		}
	}
}

// noticedLate reports whether the loss of l was noticed too late: after h began, by more than the slack, and without a loss of
// data that explains this.
func (r *run) noticedLate(l *hold, name string, h *hold) bool {
	due := r.due(l.process, h.returned)
	if l.lost == 0 || due == 0 || l.ended() <= due {
		return false
	}
	until := l.ended()
	// After a loss of data, the newer hold may be the one that Redis lost: it followed an earlier hold. And if older data
	// came back, the lock of the older hold may have come back.
	if h.wasLost() || h.outcomeUnknown() || r.lostAgain(name, h.returned, until) {
		until = min(until, h.ended())
	}
	return !r.forked(l, name, h.returned, until)
}

// notHeldAfterwards judges that the library never reported a hold as valid after any worker had noticed its loss.
func (r *run) notHeldAfterwards() {
	type id struct {
		owner, lock string
		token       int64
		op          int // a read hold and a permit have no token, and one worker
	}
	of := func(h *hold) id {
		if h.read || h.isPermit() {
			return id{h.owner, h.lock, 0, h.op}
		}
		return id{h.owner, h.lock, h.token, 0}
	}
	lost := make(map[id]*hold)
	for _, h := range r.holds {
		k := of(h)
		if h.lost != 0 && (lost[k] == nil || h.lost < lost[k].lost) {
			lost[k] = h
		}
	}
	for _, h := range r.holds {
		first := lost[of(h)]
		if first == nil || first != h && h.token == 0 {
			continue
		}
		for _, at := range h.proofs {
			if at > first.lost {
				r.breach("I3", h.lock, "%s held it at %s, though it was lost at %s", r.of(h), r.at(at), r.at(first.lost))
				break
			}
		}
	}
}

// expiryPrecision is how much earlier a key may expire by the clock of its node, which a quorum allows for.
const expiryPrecision = int64(2 * time.Millisecond)

// unexplained reports whether no event is a reason for the loss of h.
func (r *run) unexplained(h *hold) bool {
	end := h.lost
	if end == 0 {
		end = h.unlocked().returned
	}
	lease, precision := int64(r.rules.TTL), int64(0)
	if r.rules.Quorum {
		precision = expiryPrecision
	}
	from := end - 2*lease // a renewal that failed then may be the reason
	switch {
	case h.fixed && (len(h.until) == 0 || end >= h.until[0]-(h.returned-h.called)-precision): // it was granted between the two
		return false
	case r.wasPaused(h.process, from, end), r.wasPaused(director, from, end), r.dataLost(h.lock, from, end):
		return false
	case !r.rules.Lossless && r.disturbed(from, end):
		return false
	}
	// A process that did not run, or a machine too slow for such a lease, is a reason, too. Until the first renewal the lease may
	// be that of an entry in line, which is twice the poll.
	slack, begin := r.rules.Slack, h.returned
	if len(h.until) == 1 && h.until[0] <= end {
		slack, begin = min(slack, r.rules.Poll), h.called
	}
	return r.rules.Slack <= r.rules.TTL/2 && time.Duration(r.silence(h.process, max(end-lease, begin), end)) < slack
}

// nothingToLose judges that a Lock that reported a loss was inside a hold. Otherwise there is a hold that no Unlock ends,
// and its owner could never lock again.
func (r *run) nothingToLose() {
	shared := r.sharedOwners()
	for _, c := range r.calls {
		if c.outcome == history.IsLost && !shared[c.owner] && !slices.ContainsFunc(r.holds, func(h *hold) bool { return h.openFor(c) }) {
			r.breach("I3", c.lock, "%s (process %d, worker %d, Lock %d) called at %s, reported the loss of its hold, but had none",
				c.owner, c.process, c.worker, c.op, r.at(c.called))
		}
	}
}

// openFor reports whether c was called inside h, or while h ended.
func (h *hold) openFor(c *call) bool {
	if h.owner != c.owner || h.process != c.process || h.returned > c.called {
		return false
	}
	u := h.unlocked()
	return (u == nil || u.returned == 0 || u.returned >= c.called) &&
		slices.ContainsFunc(names(h.lock), func(name string) bool { return slices.Contains(names(c.lock), name) })
}
