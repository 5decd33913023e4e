package check

import (
	"cmp"
	"slices"
	"sort"

	"github.com/anishathalye/porcupine"
)

// A permit of a semaphore is a hold that excludes others only by its weight. Everything that is judged of a hold by itself, as
// its loss, is judged of a permit, too. The checks of this file replace those that compare holds of one name.

// I1 and I3 of permits: the weights of the permits that are valid at one time are at most the limit.
//
// Each request has its own limit, and the limit of the request that was granted last counts. That may be any permit, unless
// another one was requested after its Acquire had returned. So the highest limit of those counts. porcupine judges the rest.
//
// A permit is valid as a hold is for I1. If it was lost, its share is given away only after the loss was noticed.
func (r *run) permits() {
	for name, holds := range r.byName() {
		if !holds[0].isPermit() {
			continue
		}
		var open []*hold
		for _, h := range holds {
			open = slices.DeleteFunc(open, func(o *hold) bool { return max(o.reserved(), o.ended()) <= h.returned })
			if h.claimed() > h.returned {
				r.fits(name, open, h)
			}
			open = append(open, h)
		}
	}
}

// reserved returns the last time at which the share of a permit was certainly in use.
func (h *hold) reserved() int64 { return max(h.claimed(), h.keptAtLeast()) }

// fits judges that there was room for h beside the permits that were in use.
func (r *run) fits(name string, open []*hold, h *hold) {
	weight, late, forgotten := h.weight, 0, 0
	for _, o := range open {
		mortal := o // the one that may not notice a loss of data at its next renewal
		if h.fixed {
			mortal = h
		}
		until := min(o.reserved(), h.claimed())
		switch valid := until > h.returned; {
		case valid && r.forked(mortal, name, h.returned, until):
			forgotten += o.weight
		case valid:
			weight += o.weight
		case r.noticedLate(o, name, h):
			late += o.weight
		}
	}
	limit := highestLimit(append(open, h))
	switch {
	case weight > limit:
		r.breach("I1", name, "%s got a permit of weight %d at %s, and so %d were in use, of %d at most", r.of(h), h.weight, r.at(h.returned), weight, limit)
	case weight+late > limit:
		r.breach("I3", name, "%s got a permit of weight %d at %s, before the losses of permits of weight %d were noticed", r.of(h), h.weight, r.at(h.returned), late)
	case weight+forgotten > limit:
		r.report.Overlaps++
	}
}

// highestLimit returns the highest limit among the permits that may have been granted last.
func highestLimit(permits []*hold) (limit int) {
	last := slices.MaxFunc(permits, func(a, b *hold) int { return cmp.Compare(a.called, b.called) })
	for _, p := range permits {
		if p.returned >= last.called {
			limit = max(limit, p.limit)
		}
	}
	return limit
}

// crowded returns the periods in which a waiter for a permit may have had to wait, for I6: the weight in use left no room for
// one of the waiters, which may have been first in line. Each moment at which one was served is such a period, too, because it
// shows that the line moves.
func (r *run) crowded(name string, holds []*hold) []window {
	type change struct {
		at    int64
		used  int   // is added to the weight in use
		call  *call // that begins or ends to wait
		waits bool
	}
	var changes []change
	var periods []window
	for _, h := range holds {
		changes = append(changes, change{at: h.returned, used: h.weight}, change{at: r.inUse(h), used: -h.weight})
		periods = append(periods, window{h.returned, h.returned})
	}
	for _, c := range r.calls {
		if c.lock == name {
			end := cmp.Or(c.returned, r.lastSign(c.process))
			changes = append(changes, change{at: c.called, call: c, waits: true}, change{at: end, call: c})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	used, waiting := 0, make(map[*call]bool)
	for i, c := range changes {
		used += c.used
		if delete(waiting, c.call); c.waits {
			waiting[c.call] = true
		}
		for w := range waiting {
			if used+w.weight > w.limit && i+1 < len(changes) {
				periods = append(periods, window{c.at, changes[i+1].at})
				break
			}
		}
	}
	return united(periods)
}

// united returns periods in order and without overlaps.
func united(periods []window) (apart []window) {
	slices.SortFunc(periods, func(a, b window) int { return cmp.Compare(a.from, b.from) })
	for _, p := range periods {
		if last := len(apart) - 1; last >= 0 && p.from <= apart[last].to {
			apart[last].to = max(apart[last].to, p.to)
			continue
		}
		apart = append(apart, p)
	}
	return apart
}

// I7 of permits: requests are served in the order in which they came, also if they have different weights and limits.
//
// Let a be in line when b asks. If the two do not fit in together, the Acquire of b returns after that of a: if a had been
// granted first, it would be in use while b was granted. If they do, both may be granted at once, and the one that was granted
// first returns no later than the slack after the other. As for a fair lock, a may lose its entry for a reason.
func (r *run) permitOrder() {
	for name, holds := range r.byName() {
		if !holds[0].isPermit() {
			continue
		}
		for i, a := range holds { // in the order in which their Acquires returned
			if a.queued == 0 || a.claimed() <= a.returned || r.excused(a) {
				continue
			}
			for _, b := range slices.Backward(holds[:i]) {
				if b.returned <= a.queued {
					break
				}
				together := a.weight+b.weight <= b.limit
				if b.called > a.queued && (!together || a.returned-b.returned > int64(r.rules.Slack)) {
					r.breach("I7", name, "%s asked for a weight of %d at %s and got it at %s, before %s, who waited for %d since %s at least and got it at %s",
						r.of(b), b.weight, r.at(b.called), r.at(b.returned), r.of(a), a.weight, r.at(a.queued), r.at(a.returned))
					break
				}
			}
		}
	}
}

// porcupine, of permits: the requests and the ends of permits can have happened in some order on a counter with a limit.
//
// A permit is in use from a moment in its Acquire until a moment in its Release, or, if it was lost, closed or killed, until a
// moment between the last time at which it was certainly valid, and the first at which it was certainly over. A permit that was
// never seen valid after its Acquire is left out: it may have been lost before. Without it there is more room for the others.

// permitOp is the beginning or the end of a permit.
type permitOp struct {
	ends   bool
	weight int
	limit  int // of the request
	class  int // all requests with the same limit are a class,
	rank   int // and have their ranks in it, from 0, in the order of their returns
}

// permitState is the state of a semaphore.
type permitState struct {
	used    int
	granted []int // in each class
}

// step is the semaphore: it returns whether an operation is possible in a state, and the next state. If any order explains a
// history, so does one in which requests with the same limit are granted in the order in which they return: to grant one later,
// when another one has been, leaves more room before, and as much after. To require that saves porcupine the search.
func (s permitState) step(op permitOp) (bool, permitState) {
	switch {
	case op.ends:
		s.used -= op.weight
		return true, s
	case s.used+op.weight > op.limit || s.granted[op.class] != op.rank:
		return false, s
	}
	s.used += op.weight
	s.granted = slices.Clone(s.granted)
	s.granted[op.class]++
	return true, s
}

func (s permitState) equal(o permitState) bool {
	return s.used == o.used && slices.Equal(s.granted, o.granted)
}

// countable judges the permits of a name, in the order in which their Acquires returned.
func (r *run) countable(name string, permits []*hold) {
	permits = slices.DeleteFunc(permits, func(h *hold) bool { return h.claimed() <= h.returned })
	verdict := func(n int) porcupine.CheckResult { // on the first n
		var classes []int // by limit
		var ranks []int   // of the next request of each class
		var ops []porcupine.Operation
		for _, h := range permits[:n] {
			class := slices.Index(classes, h.limit)
			if class < 0 {
				class = len(classes)
				classes, ranks = append(classes, h.limit), append(ranks, 0)
			}
			begin := permitOp{weight: h.weight, limit: h.limit, class: class, rank: ranks[class]}
			ranks[class]++
			from, to := r.permitEnd(h)
			ops = append(ops, porcupine.Operation{Input: begin, Call: h.called, Return: h.returned},
				porcupine.Operation{Input: permitOp{ends: true, weight: h.weight}, Call: from, Return: max(from, to)})
		}
		return porcupine.CheckOperationsTimeout(porcupine.Model{
			Init:  func() any { return permitState{granted: make([]int, len(classes))} },
			Step:  func(state, input, _ any) (bool, any) { return state.(permitState).step(input.(permitOp)) },
			Equal: func(a, b any) bool { return a.(permitState).equal(b.(permitState)) },
		}, ops, patience)
	}
	switch verdict(len(permits)) {
	case porcupine.Illegal:
		h := permits[sort.Search(len(permits)-1, func(i int) bool { return verdict(i+1) != porcupine.Ok })]
		r.breach("porcupine", name, "no order explains a permit of weight %d, of %d at most, for %s, from %s to %s",
			h.weight, h.limit, r.of(h), r.at(h.called), r.at(h.claimed()))
	case porcupine.Unknown:
		r.breach("porcupine", name, "no verdict within %v", patience)
	}
}

// permitEnd returns the earliest and the latest time at which the share of h was free.
func (r *run) permitEnd(h *hold) (from, to int64) {
	if u := h.unlocked(); h.clean() {
		return max(u.called, h.keptAtLeast()), u.returned
	}
	return r.end(h)
}
