package check

import (
	"math"
	"slices"

	"github.com/relock-go/relock/chaos/history"
)

// world has the faults of the director, and the times in which processes did not run.
type world struct {
	rules      Rules
	faults     []window
	shocks     []window // faults that delay no one, and the period in which their late effects may occur
	losses     []loss   // of data; none unless the rules allow them
	paused     map[int][]window
	noMessages map[int][]window // when messages may not reach a process
	killed     map[int]int64
	signs      map[int][]int64 // of life, of each process, in order
	beats      map[int][]int64 // the signs that come all the time, whatever its workers do
}

// window is a period of time, ends included.
type window struct{ from, to int64 }

func (w window) overlaps(from, to int64) bool { return w.from <= to && from <= w.to }

// loss is the period after a loss of data in which two owners may hold: until every holder has noticed it at the next
// renewal, or has given up because the renewal was not answered, or because it does not renew.
type loss struct {
	window
	noticed int64  // by then the holders that renew have noticed it
	lock    string // "" means every lock
}

const never = math.MaxInt64

func survey(events []history.Event, rules Rules) world {
	w := world{rules: rules, paused: make(map[int][]window), noMessages: make(map[int][]window), killed: make(map[int]int64), signs: make(map[int][]int64), beats: make(map[int][]int64)}
	faults, shocks := make(map[int]int), make(map[int]int) // by number: the position in w.faults, and in w.shocks
	for _, e := range events {
		switch e.Kind {
		case history.FaultBegin:
			faults[e.Op] = len(w.faults)
			w.faults = append(w.faults, window{e.At, never})
		case history.FaultEnd:
			if i, begun := faults[e.Op]; begun {
				w.faults[i].to = e.At
			}
		case history.Disturbed:
			if e.NoMessages > 0 {
				w.noMessages[e.Process] = append(w.noMessages[e.Process], window{e.At, e.At + e.NoMessages})
			}
			end := e.At + int64(rules.TTL)
			if i, begun := shocks[e.Op]; begun && e.Op != 0 { // it has lasted until now
				w.shocks[i].to = end
				continue
			}
			shocks[e.Op] = len(w.shocks)
			w.shocks = append(w.shocks, window{e.At, end})
		case history.Paused:
			w.paused[e.Process] = append(w.paused[e.Process], window{e.At, never})
		case history.Resumed:
			if p := w.paused[e.Process]; len(p) > 0 {
				p[len(p)-1].to = e.At
			}
		case history.Killed:
			w.killed[e.Process] = e.At
		default:
			if e.Process != 0 {
				w.signs[e.Process] = append(w.signs[e.Process], e.At)
			}
			if e.Kind == history.Alive {
				w.beats[e.Process] = append(w.beats[e.Process], e.At)
			}
		}
	}
	w.stalls()
	until := make(map[int]int64) // by number of a fault: when it lost data for the last time
	for _, e := range events {
		if e.Kind == history.DataLoss && e.Op != 0 {
			until[e.Op] = e.At
		}
	}
	for _, e := range events {
		if e.Kind == history.DataLoss && rules.SplitBrain {
			w.losses = append(w.losses, w.lossAt(e, max(e.At, until[e.Op])))
		}
	}
	return w
}

// director is the number of the process through which all traffic with Redis runs.
const director = 0

// stalls adds pauses for the times in which a busy machine did not run a process or the director. Every process reports
// all the time that it runs, whatever its workers wait for.
func (w *world) stalls() {
	for process, at := range w.beats {
		var stalled []window
		for i := 1; i < len(at); i++ {
			for _, gap := range w.running(process, at[i-1], at[i]) {
				if gap.to-gap.from > int64(w.rules.Slack/2) {
					stalled = append(stalled, gap)
				}
			}
		}
		w.paused[process] = append(w.paused[process], stalled...) // only now: two stalls in a row touch each other
	}
}

// running returns the parts of a period in which a process was not paused: before a pause and after it, too, a busy machine may
// not run it for a while.
func (w *world) running(process int, from, to int64) (parts []window) {
	for _, p := range w.paused[process] { // in their order
		if p.overlaps(from, to) {
			parts = append(parts, window{from, p.from})
			from = min(p.to, to)
		}
	}
	return append(parts, window{from, to})
}

// lossAt returns the consequences of a DataLoss whose fault lost data until the given time. If Redis could not be reached
// for a while, then or when the next renewal was due, holders notice the loss at the end of their lease.
func (w *world) lossAt(e history.Event, until int64) loss {
	healed, slack := w.healed(until), int64(w.rules.Slack)
	end := later(healed, int64(w.rules.TTL)+slack)
	l := loss{window: window{e.At, end}, noticed: end, lock: e.Lock}
	next := later(healed, int64(w.rules.TTL)/renewals+slack)
	if healed-e.At < slack/2 && !w.outage(healed, next) {
		l.noticed = next
	}
	return l
}

// outage reports whether faults, one or several, were in force for long in a period.
func (w *world) outage(from, to int64) bool {
	var lasted int64
	for _, f := range w.faults {
		if f.overlaps(from, to) {
			lasted = later(lasted, f.to-f.from)
		}
	}
	return lasted >= int64(w.rules.Slack/2)
}

// renewals is the number of renewals in the length of a lease.
const renewals = 3

// later adds d to t, which may be never.
func later(t, d int64) int64 {
	if t > never-d {
		return never
	}
	return t + d
}

// healed returns the end of the last fault that was in force at t, or t if there was none.
func (w *world) healed(t int64) int64 {
	end := t
	for _, f := range w.faults {
		if f.overlaps(t, t) {
			end = max(end, f.to)
		}
	}
	return end
}

// forked reports whether h and a newer hold of the lock may both be valid in a period, after a loss of data.
func (w *world) forked(h *hold, lock string, from, to int64) bool {
	return slices.ContainsFunc(w.losses, func(l loss) bool {
		end := l.noticed
		if h.fixed {
			end = l.to
		}
		return (l.lock == "" || slices.Contains(names(l.lock), lock)) && l.from <= from && to <= end
	})
}

// dataLost reports whether data of the lock may have been lost in a period.
func (w *world) dataLost(lock string, from, to int64) bool {
	return slices.ContainsFunc(w.losses, func(l loss) bool {
		if l.lock != "" && !slices.ContainsFunc(names(lock), func(n string) bool { return slices.Contains(names(l.lock), n) }) {
			return false
		}
		return l.overlaps(from, to)
	})
}

// lostAgain reports whether data of the lock was lost in a period.
func (w *world) lostAgain(lock string, after, by int64) bool {
	return slices.ContainsFunc(w.losses, func(l loss) bool {
		return after < l.from && l.from <= by && (l.lock == "" || slices.Contains(names(l.lock), lock))
	})
}

// faulty reports whether a fault was in force in a period.
func (w *world) faulty(from, to int64) bool {
	return slices.ContainsFunc(w.faults, func(f window) bool { return f.overlaps(from, to) })
}

// disturbed reports whether a fault of any kind may have had an effect in a period.
func (w *world) disturbed(from, to int64) bool {
	return w.faulty(from, to) || slices.ContainsFunc(w.shocks, func(s window) bool { return s.overlaps(from, to) })
}

// wasPaused reports whether a process was stopped in a period.
func (w *world) wasPaused(process int, from, to int64) bool {
	return slices.ContainsFunc(w.paused[process], func(p window) bool { return p.overlaps(from, to) })
}

// missedMessages reports whether messages may not have reached a process in a period.
func (w *world) missedMessages(process int, from, to int64) bool {
	return slices.ContainsFunc(w.noMessages[process], func(d window) bool { return d.overlaps(from, to) })
}

// stoodStill reports whether a process did not run for longer than d at a time that overlaps a period.
func (w *world) stoodStill(process int, from, to, d int64) bool {
	at := w.beats[process]
	i, _ := slices.BinarySearch(at, from)
	for i = max(i, 1); i < len(at) && at[i-1] <= to; i++ {
		if at[i]-at[i-1] > d {
			return true
		}
	}
	return false
}

// due returns until when a process has time for an action that is due at t: a process that was stopped has the time from when
// it continues. 0: the process did not live that long.
func (w *world) due(process int, t int64) int64 {
	slack := int64(w.rules.Slack)
	for again := true; again; {
		again = false
		for _, p := range w.paused[process] {
			if p.overlaps(t, later(t, slack)) && p.to > t {
				t, again = p.to, true
			}
		}
	}
	due := later(t, slack)
	if due >= w.lastSign(process) {
		return 0
	}
	return due
}

// lastSign returns the time of the last event of a process.
func (w *world) lastSign(process int) int64 {
	signs := w.signs[process]
	if len(signs) == 0 {
		return 0
	}
	return signs[len(signs)-1]
}

// silence returns the longest time without an event of a process in a period. Its workers report events all the time, so the
// process may not have run for that long.
func (w *world) silence(process int, from, to int64) int64 {
	signs := w.signs[process]
	i, _ := slices.BinarySearch(signs, from)
	longest, last := int64(0), from
	for ; i < len(signs) && signs[i] <= to; i++ {
		longest, last = max(longest, signs[i]-last), signs[i]
	}
	return max(longest, to-last)
}
