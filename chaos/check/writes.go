package check

import (
	"cmp"
	"slices"

	"github.com/relock-go/relock/chaos/history"
)

// resource: whatever happened to the locks, the resource never accepted a write with a lower token after a write with a higher
// one, and it refused no write without a reason. A write that failed may have been accepted or not.
func (r *run) writes() {
	by := make(map[string][]*write)
	for _, w := range r.story.writes {
		by[w.lock] = append(by[w.lock], w)
	}
	for lock, writes := range by {
		slices.SortStableFunc(writes, func(a, b *write) int { return cmp.Compare(a.called, b.called) })
		r.writesOf(lock, writes)
	}
}

func (r *run) writesOf(lock string, called []*write) {
	accepted := slices.DeleteFunc(slices.Clone(called), func(w *write) bool { return w.outcome != history.OK })
	slices.SortStableFunc(accepted, func(a, b *write) int { return cmp.Compare(a.returned, b.returned) })
	var highest *write // of those accepted before w was called
	next := 0
	for _, w := range called {
		for ; next < len(accepted) && accepted[next].returned < w.called; next++ {
			if highest == nil || accepted[next].token > highest.token {
				highest = accepted[next]
			}
		}
		switch w.outcome {
		case history.OK:
			if highest != nil && w.token < highest.token {
				r.breach("resource", lock, "a write with the token %d was accepted at %s, after one with %d at %s",
					w.token, r.at(w.returned), highest.token, r.at(highest.returned))
			}
		case history.Refused:
			r.refused(lock, w, called)
		}
	}
}

// refused judges a write that the resource did not accept.
func (r *run) refused(lock string, w *write, called []*write) {
	for _, other := range called {
		if other.called > w.returned {
			break
		}
		if other.token > w.token && other.outcome != history.Refused {
			r.refusedHolder(lock, w)
			return
		}
	}
	r.breach("resource", lock, "a write with the token %d was refused at %s, but there was none with a higher one",
		w.token, r.at(w.returned))
}

// refusedHolder judges that a holder was refused because an owner with a higher token had written, so the holder had lost the
// lock.
func (r *run) refusedHolder(lock string, w *write) {
	h := w.hold
	if h == nil || h.claimed() <= w.returned || r.dataLost(h.lock, h.called, w.returned) {
		return
	}
	r.breach("resource", lock, "%s was refused at %s with the token %d, and held the lock still at %s",
		r.of(h), r.at(w.returned), w.token, r.at(h.claimed()))
}
