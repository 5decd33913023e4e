package check

import (
	"cmp"
	"slices"

	"github.com/relock-go/relock/chaos/history"
)

// I6, too: readers that follow one another do not block a writer for ever. When a writer has waited for the longest time
// between two requests of a waiter, no reader that asked later gets the lock.
//
// After a writer both sides have the same chance. A writer that gives up may have been the one whose claim blocked readers.
// So the time starts again in both cases. During a fault, or while a process does not run, nothing is promised. If the Lock
// of a writer failed, Redis may not have its claim.
func (r *run) starving() {
	asked := make(map[string][]*call) // by writers, of locks that are read, too
	readers := make(map[string][]*hold)
	for _, h := range r.holds {
		if h.read {
			readers[h.lock] = append(readers[h.lock], h)
		}
	}
	for _, c := range r.calls {
		if !c.read && readers[c.lock] != nil {
			asked[c.lock] = append(asked[c.lock], c)
		}
	}
	limit := int64(r.rules.Poll + r.rules.Slack)
	for name, writers := range asked {
		begins := r.beginnings(name, writers)
		for _, c := range writers {
			end := c.returned
			if end == 0 {
				end = r.lastSign(c.process)
			}
			if end-c.called <= limit || c.outcome == history.Failed {
				continue
			}
			for _, h := range readers[name] {
				i, _ := slices.BinarySearch(begins, h.returned)
				since := c.called
				if i > 0 {
					since = max(since, begins[i-1])
				}
				if h.called-since > limit && h.returned < end && !r.writing(name, h) && !r.troubled(since, h.returned) && !r.dataLost(name, since, h.returned) {
					r.breach("I6", name, "%s (process %d, worker %d, Lock %d) waited to write since %s, and %s asked to read at %s and could",
						c.owner, c.process, c.worker, c.op, r.at(since), r.of(h), r.at(h.called))
					break
				}
			}
		}
	}
}

// beginnings returns the times at which the waits of writers start again, in order.
func (r *run) beginnings(name string, writers []*call) []int64 {
	var at []int64
	for _, c := range writers {
		if c.returned != 0 && c.outcome != history.Taken {
			at = append(at, c.returned)
		}
	}
	for _, h := range r.holds {
		if h.lock != name || h.read {
			continue
		}
		at = append(at, h.claimed())
		if u := h.unlocked(); u != nil {
			at = append(at, u.returned)
		}
	}
	slices.SortFunc(at, cmp.Compare[int64])
	return at
}

// writing reports whether the owner of a read hold wrote when it asked for that.
func (r *run) writing(name string, reader *hold) bool {
	return slices.ContainsFunc(r.holds, func(h *hold) bool {
		return !h.read && h.lock == name && h.owner == reader.owner && h.returned <= reader.called && reader.called <= h.claimed()
	})
}

// troubled reports whether there was a fault in a period, or a process did not run. If a fault delivered a command late, for
// an owner that has given up, its effect may last for a TTL.
func (w *world) troubled(from, to int64) bool {
	for process := range w.paused {
		if w.wasPaused(process, from, to) {
			return true
		}
	}
	for _, at := range w.killed {
		if from <= later(at, int64(w.rules.TTL)) && at <= to {
			return true
		}
	}
	return w.disturbed(from-int64(w.rules.TTL), to) || w.dataLost("", from, to)
}
