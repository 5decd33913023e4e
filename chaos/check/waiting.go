package check

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/history"
)

// gathering is how long a waiter that wants several names may block one of them for all others, while it collects the rest.
// Several such waiters may follow one another.
const gathering = 2 * time.Second

// keepers returns how many of calls were in progress in a period.
func keepers(calls []*call, from, to int64) (n int) {
	for _, c := range calls {
		if c.called < to && (c.returned == 0 || c.returned > from) {
			n++
		}
	}
	return n
}

// I6: every waiter is served, or its call returns when the wait is over.
//
// A waiter does not wait for longer than TTL + Poll + Slack while no owner claims to hold the lock: the lease of the last
// holder ends within a TTL of its last claim or renewal, and the waiters of every process ask within a Poll after that.
// During a fault, and for a TTL after it, nothing is promised, because the fault may have left something on Redis. A process
// that is killed or stopped may have been granted the lock without an event, which costs one more TTL each. Its entry in the
// line, too, stays for a TTL at most, and may be granted the lock in that time if the process was not subscribed at its end.
//
// If no wake-up can be lost, half a poll is enough, and for a permit the slack.
//
// A waiter for a permit may wait while there is no room for it, or for another one that may be first in line: see crowded.
//
// If Redis answers, no call fails.
func (r *run) waiting() {
	r.punctual()
	for _, c := range r.calls {
		if r.rules.Answered && c.outcome == history.Failed {
			r.breach("I6", c.lock, "%s (process %d, worker %d, Lock %d) asked at %s, and failed at %s, though Redis answers",
				c.owner, c.process, c.worker, c.op, r.at(c.called), r.at(c.returned))
		}
	}
	claims := make(map[string][]window)
	together := make(map[string][]*call) // the calls that want a name together with others
	for name, holds := range r.byName() {
		if holds[0].isPermit() {
			claims[name] = r.crowded(name, holds)
			continue
		}
		claims[name] = r.merge(holds)
	}
	for _, c := range r.calls {
		if strings.Contains(c.lock, ",") {
			for _, name := range names(c.lock) {
				together[name] = append(together[name], c)
			}
		}
	}
	for _, c := range r.calls {
		end := c.returned
		if end == 0 {
			end = r.lastSign(c.process)
		}
		limit := r.rules.TTL + r.rules.Poll + r.rules.Slack
		switch {
		case r.rules.Prompt && c.weight > 0:
			limit = r.rules.Slack
		case r.rules.Prompt:
			limit = r.rules.Poll / 2
		}
		if end-c.called <= int64(limit) {
			continue
		}
		for _, gap := range r.idle(c, end, claims) {
			allowed := int64(limit) + int64(r.rules.TTL)*r.silenced(gap)
			for _, name := range names(c.lock) {
				allowed += int64(gathering) * int64(keepers(together[name], gap.from, gap.to))
			}
			if gap.to-gap.from > allowed {
				r.breach("I6", c.lock, "%s (process %d, worker %d, Lock %d) waited from %s to %s while nobody held it",
					c.owner, c.process, c.worker, c.op, r.at(gap.from), r.at(gap.to))
				break
			}
		}
	}
}

// punctual judges that calls returned when their wait was over, and that every Unlock returned.
func (r *run) punctual() {
	for _, c := range r.calls {
		if c.wait == 0 {
			continue
		}
		over := c.called + c.wait
		if due := r.due(c.process, over); due != 0 && (c.returned == 0 || c.returned > due) {
			text := "never returned"
			if c.returned != 0 {
				text = "returned at " + r.at(c.returned)
			}
			r.breach("I6", c.lock, "%s (process %d, worker %d, Lock %d): its wait was over at %s, but it %s",
				c.owner, c.process, c.worker, c.op, r.at(over), text)
		}
	}
}

// idle returns the periods of a wait in which no owner held the lock and nothing explains why the waiter did not get it.
func (r *run) idle(c *call, end int64, claims map[string][]window) []window {
	busy := slices.Concat(r.paused[c.process], r.paused[director])
	for _, f := range r.faults {
		busy = append(busy, window{f.from, later(f.to, int64(r.rules.TTL))})
	}
	for _, name := range names(c.lock) {
		all := claims[name]
		i, _ := slices.BinarySearchFunc(all, c.called, func(w window, t int64) int { return cmp.Compare(w.to, t) })
		for ; i < len(all) && all[i].from <= end; i++ {
			busy = append(busy, all[i])
		}
	}
	slices.SortFunc(busy, func(a, b window) int { return cmp.Compare(a.from, b.from) })
	var gaps []window
	from := c.called
	for _, b := range append(busy, window{end, end}) {
		if to := min(b.from, end); to > from {
			gaps = append(gaps, window{from, to})
		}
		from = max(from, b.to)
	}
	return gaps
}

// silenced returns how many processes were stopped or killed in a period, or a TTL before it at most.
func (r *run) silenced(gap window) int64 {
	n := int64(0)
	for _, at := range r.killed {
		if gap.overlaps(at, later(at, int64(r.rules.TTL))) {
			n++
		}
	}
	for _, pauses := range r.paused {
		for _, p := range pauses {
			if gap.overlaps(p.from, later(p.from, int64(r.rules.TTL))) {
				n++
			}
		}
	}
	return n
}

// inUse returns until when h may keep others waiting: it was claimed, renewed, or reserved by its min hold.
func (r *run) inUse(h *hold) int64 {
	end := max(h.claimed(), h.keptAtMost())
	if len(h.until) > 0 {
		end = max(end, slices.Max(h.until)-int64(r.rules.TTL)) // when the last confirmed renewal was sent
	}
	return end
}

// merge returns the periods in which any of the holds was claimed, renewed, or reserved by its min hold, in order and without
// overlaps.
func (r *run) merge(holds []*hold) []window {
	var merged []window
	for _, h := range holds {
		if h.outcome != history.OK {
			continue
		}
		end := r.inUse(h)
		if last := len(merged) - 1; last >= 0 && h.returned <= merged[last].to {
			merged[last].to = max(merged[last].to, end)
			continue
		}
		merged = append(merged, window{h.returned, end})
	}
	return merged
}
