package check

import "github.com/relock-go/relock/chaos/history"

// I6, too: a Lock that returns ErrDeadlock was in a deadlock. When it returned, the owner of what it wanted waited for a lock,
// whose owner waited, and so on, back to itself. Without a fault its wait was the last one to begin.
//
// Locks that are shared, or of several names, are not judged.
func (r *run) deadlocks() {
	for _, c := range r.calls {
		if c.outcome != history.Deadlocked {
			continue
		}
		last, seen := c, map[*call]bool{}
		for at := c; ; {
			h := r.holder(at.lock, c.returned)
			if h == nil {
				r.breach("I6", c.lock, "%s (process %d, worker %d, Lock %d) returned ErrDeadlock at %s, but nobody held %s then",
					c.owner, c.process, c.worker, c.op, r.at(c.returned), at.lock)
				break
			}
			if at = r.wait(h, c); at == nil {
				r.breach("I6", c.lock, "%s (process %d, worker %d, Lock %d) returned ErrDeadlock at %s, but %s waited for nothing then",
					c.owner, c.process, c.worker, c.op, r.at(c.returned), r.of(h))
				break
			}
			if at.called > last.called {
				last = at
			}
			if at == c {
				break
			}
			if seen[at] {
				r.breach("I6", c.lock, "%s (process %d, worker %d, Lock %d) returned ErrDeadlock at %s, but waited behind a deadlock of others",
					c.owner, c.process, c.worker, c.op, r.at(c.returned))
				break
			}
			seen[at] = true
		}
		if len(r.faults) == 0 && last.called > c.called+int64(r.rules.Slack) {
			r.breach("I6", c.lock, "%s (process %d, worker %d, Lock %d) returned ErrDeadlock, though Lock %d of %s began to wait later",
				c.owner, c.process, c.worker, c.op, last.op, last.owner)
		}
	}
}

// holder returns who held a lock at a time, or nil.
func (r *run) holder(lock string, at int64) *hold {
	for _, h := range r.holds {
		if h.lock == lock && h.outcome == history.OK && h.returned <= at && (h.ended() == 0 || h.ended() >= at) {
			return h
		}
	}
	return nil
}

// wait returns the Lock of the worker of h that was in progress when c returned, or nil. That may be c.
func (r *run) wait(h *hold, c *call) *call {
	for _, w := range r.calls {
		if w.process == h.process && w.worker == h.worker && w.called < c.returned && (w == c || w.returned == 0 || w.returned >= c.returned) {
			return w
		}
	}
	return nil
}
