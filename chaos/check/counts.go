package check

import "github.com/relock-go/relock/chaos/history"

// I4: counts are exact, and the result of Unlock is true.
//
// The library's hold count is exact whenever the library reports the hold as valid. If no re-entry was ever requested, the
// count on Redis is exact, too, whatever was lost, repeated or delayed, because no command contained another count than 1.
// After a re-entry a delayed copy of an older command may be the last one that is executed. This is harmless, because the
// next command contains the right count. So then the count on Redis is judged only without faults. The same holds for a
// quorum: while nodes do not answer, State may return another owner.
func (r *run) counts() {
	shared := r.sharedOwners()
	for _, h := range r.holds {
		for _, c := range h.counted {
			r.count(h, c)
		}
		for _, lv := range h.levels {
			if lv.unlock != nil && lv.unlock.returned != 0 {
				r.unlocked(h, lv.unlock, shared[h.owner])
			}
		}
		if h.wasLost() && r.unexplained(h) {
			r.breach("I4", h.lock, "%s was lost by %s without any reason: %s", r.of(h), r.at(h.ended()), h.why)
		}
	}
	for _, u := range r.strays {
		if u.outcome == history.OK {
			r.breach("I4", u.lock, "%s (process %d, worker %d) unlocked at %s what it did not hold",
				u.owner, u.process, u.worker, r.at(u.called))
		}
	}
	for _, e := range r.misused {
		if e.Outcome != history.OK {
			r.breach("I4", e.Lock, "%s (process %d, worker %d), %s: %s", e.Owner, e.Process, e.Worker, e.Note, e.Err)
		}
	}
}

func (r *run) count(h *hold, c count) {
	if c.said == c.depth {
		return
	}
	who := "the library"
	if c.redis {
		who = "Redis"
		if c.nested && !h.calm {
			return
		}
		if (c.nested || r.rules.Quorum) && (r.disturbed(h.called-int64(r.rules.TTL), c.at) || r.wasPaused(h.process, h.called, c.at)) {
			return
		}
	}
	r.breach("I4", h.lock, "%s has %d levels, but at %s %s counted %d", r.of(h), c.depth, r.at(c.at), who, c.said)
}

// unlocked judges the result of the Unlock of a level of h.
func (r *run) unlocked(h *hold, u *unlock, shared bool) {
	switch {
	case u.outcome == history.NotHeld:
		r.breach("I4", h.lock, "%s: the Unlock at %s of a level that it had said that it was not held: %s",
			r.of(h), r.at(u.called), u.err)
	case u.outcome == history.OK && h.lost != 0 && h.lost < u.called:
		r.breach("I4", h.lock, "%s lost the lock at %s, but the Unlock at %s did not say so",
			r.of(h), r.at(h.lost), r.at(u.called))
	}
	if shared {
		return // the others' levels count, too
	}
	// The hold may have been lost between the Unlock and the question.
	if u.count != 0 && u.count != u.depth {
		r.breach("I4", h.lock, "%s has %d levels after the Unlock at %s, but the library counted %d",
			r.of(h), u.depth, r.at(u.called), u.count)
	}
}

// I5: nothing is left when everything is closed.
func (r *run) leftovers() {
	for _, e := range r.left {
		r.breach("I5", e.Lock, "process %d left over: %s", e.Process, e.Note)
	}
}
