// Package check judges a history: whether what was promised about locks was kept.
//
// It has to be right in both directions on a machine that stops its processes at any time,
// as a busy one does and the director does on purpose. So nothing strict rests on how long
// something took: only on what was said at a time when it cannot have been true. What rests
// on time, noticing a loss and being served, gets [Rules.Slack].
package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/history"
)

// Rules say what was promised in a run.
type Rules struct {
	TTL   time.Duration // the longest lease of any lock
	Poll  time.Duration // the longest sleep of a waiter that no message reaches
	Slack time.Duration // what a busy machine takes to run who is ready to

	// SplitBrain says that the deployment may lose or fork what it knew: then, after a
	// DataLoss, two may hold, but their tokens differ and the resource refuses the older.
	SplitBrain bool

	// Lossless says that no fault of the run is a reason to lose a hold, but for the pause
	// of its own process. Otherwise every fault is one.
	Lossless bool

	// Answered says that no fault of the run keeps Redis from answering within a third of a lease: no Lock fails.
	Answered bool

	// Quorum says that several masters vote on each lock.
	Quorum bool

	// Untokened says that no hold asked for a token.
	Untokened bool

	// SentOnce says that no command was sent twice, or came late: the counter on Redis has the token of the holder.
	SentOnce bool

	// Prompt says that no fault of the run keeps a wake-up from its waiter, or leaves
	// anything on Redis: who waits has the lock as soon as it is free.
	Prompt bool

	// InLine are the names for which processes stand in a line, if nothing costs one its place in it, and
	// each serves all of its waiters when it has its turn.
	InLine []string
}

// Report is what a history tells.
type Report struct {
	Operations  int           // calls of Lock, TryLock and Unlock
	Holds       int           // that began; of those who share an owner each has its own
	Losses      int           // holds that ended by a loss
	Faults      int           // faults, pauses and kills
	Overlaps    int           // of holds, after data was lost; otherwise an overlap is a violation
	LongestWait time.Duration // of a Lock that succeeded
	Violations  []Violation
}

// Violation is one breach of a promise.
type Violation struct {
	Invariant string // one of Invariants
	Lock      string
	Text      string
}

func (v Violation) String() string { return fmt.Sprintf("%s %s: %s", v.Invariant, v.Lock, v.Text) }

// Invariants are the names of what is checked.
var Invariants = []string{"I1", "I2", "I3", "I4", "I5", "I6", "I7", "porcupine", "resource"}

// Run judges the events of one run on one deployment: of all processes together, those of
// one process in the order in which it told them. Every lock is fenced, and an owner does
// not hold a name by two locks at a time: a MultiMutex of it, and it alone.
func Run(events []history.Event, rules Rules) Report {
	r := read(events, rules)
	r.exclusion()
	if !rules.Untokened {
		r.tokens()
	}
	r.loss()
	r.counts()
	r.leftovers()
	r.waiting()
	r.starving()
	r.order()
	r.turns()
	r.linearizable()
	r.writes()
	return r.report
}

// run is a history under examination.
type run struct {
	rules Rules
	*story
	report Report
}

func read(events []history.Event, rules Rules) *run {
	r := &run{rules: rules, story: tell(events, rules)}
	for _, e := range events {
		switch e.Kind {
		case history.LockCall, history.UnlockCall:
			r.report.Operations++
		case history.FaultBegin, history.Disturbed, history.Paused, history.Killed:
			r.report.Faults++
		}
	}
	r.report.Holds = len(r.holds)
	for _, h := range r.holds {
		if h.wasLost() {
			r.report.Losses++
		}
		r.report.LongestWait = max(r.report.LongestWait, time.Duration(h.returned-h.called))
	}
	return r
}

// breach records a violation.
func (r *run) breach(invariant, lock, format string, args ...any) {
	r.report.Violations = append(r.report.Violations,
		Violation{Invariant: invariant, Lock: lock, Text: fmt.Sprintf(format, args...)})
}

// at prints a time as seconds since the beginning of the run.
func (r *run) at(t int64) string {
	return fmt.Sprintf("%.6f s", float64(t-r.began)/float64(time.Second))
}

// of names a hold in the text of a violation.
func (r *run) of(h *hold) string {
	return fmt.Sprintf("%s (process %d, worker %d, Lock %d)", h.owner, h.process, h.worker, h.op)
}

// byName returns the holds of every single name, a MultiMutex's under each of its names,
// in the order of their beginning.
func (r *run) byName() map[string][]*hold {
	by := make(map[string][]*hold)
	for _, h := range r.holds {
		for _, name := range names(h.lock) {
			by[name] = append(by[name], h)
		}
	}
	for _, holds := range by {
		slices.SortStableFunc(holds, func(a, b *hold) int { return cmp.Compare(a.returned, b.returned) })
	}
	return by
}

// names returns the single names of a lock.
func names(lock string) []string { return strings.Split(lock, ",") }
