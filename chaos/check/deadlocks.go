package check

import (
	"fmt"
	"time"

	"github.com/relock-go/relock/chaos/history"
)

// hindsight is how old a deadlock may be that ends a Lock: what was published last is up to half a second old, and the look at
// it was up to half a second ago.
const hindsight = time.Second

// I6, too: a Lock that returns ErrDeadlock was in a deadlock. A moment ago, while it waited, the owner of what it wanted waited
// for a lock, whose owner waited, and so on, back to itself. Without a fault its wait was the last one to begin.
//
// Locks that are shared, or of several names, are not judged.
func (r *run) deadlocks() {
	for _, c := range r.calls {
		if c.outcome != history.Deadlocked {
			continue
		}
		last, flaw := r.deadlock(c, c.returned)
		since := max(c.called, c.returned-int64(hindsight+r.rules.Slack))
		for _, other := range r.calls { // a deadlock lasts until one of its waits ends
			if flaw != "" && other.returned > since && other.returned < c.returned {
				if l, f := r.deadlock(c, other.returned); f == "" {
					last, flaw = l, ""
				}
			}
		}
		switch {
		case flaw != "":
			r.breach("I6", c.lock, "%s (process %d, worker %d, Lock %d) returned ErrDeadlock at %s, but %s",
				c.owner, c.process, c.worker, c.op, r.at(c.returned), flaw)
		case len(r.faults) == 0 && last.called > c.called+int64(r.rules.Slack):
			r.breach("I6", c.lock, "%s (process %d, worker %d, Lock %d) returned ErrDeadlock, though Lock %d of %s began to wait later",
				c.owner, c.process, c.worker, c.op, last.op, last.owner)
		}
	}
}

// deadlock returns the wait that began last in the deadlock in which c was at a time; or why it was in none.
func (r *run) deadlock(c *call, at int64) (last *call, flaw string) {
	last = c
	seen := map[*call]bool{}
	for w := c; ; seen[w] = true {
		h := r.holder(w.lock, at)
		if h == nil {
			return nil, fmt.Sprintf("nobody held %s", w.lock)
		}
		if w = r.wait(h, at); w == nil {
			return nil, fmt.Sprintf("%s waited for nothing", r.of(h))
		}
		if w.called > last.called {
			last = w
		}
		if w == c {
			return last, ""
		}
		if seen[w] {
			return nil, "it waited behind a deadlock of others"
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

// wait returns the Lock of the worker of h that was in progress at a time, or nil.
func (r *run) wait(h *hold, at int64) *call {
	for _, w := range r.calls {
		if w.process == h.process && w.worker == h.worker && w.called < at && (w.returned == 0 || w.returned >= at) {
			return w
		}
	}
	return nil
}
