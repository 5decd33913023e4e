// Package check judges a history: whether the promises about locks were kept.
//
// Its verdict has to be right in both directions, on a machine that stops processes at any time, as a busy machine does
// and the director does on purpose. So no strict check depends on how long something took. A strict check finds an answer
// of the library that cannot have been true at its time. Checks of time (a loss is noticed, a waiter is served) allow for
// [Rules.Slack].
package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/history"
)

// Rules are the promises of a run.
type Rules struct {
	TTL   time.Duration // the longest lease of any lock
	Poll  time.Duration // the longest sleep of a waiter that receives no message
	Slack time.Duration // how long a busy machine may take to run a goroutine that is ready

	// SplitBrain: the deployment may lose or fork data. After a DataLoss there may be two holders, but their tokens differ,
	// and the resource refuses the older one.
	SplitBrain bool

	// Lossless: no fault of the run is a reason to lose a hold, except a pause of its own process. Otherwise every fault is
	// a reason.
	Lossless bool

	// Answered: Redis answers within a third of a lease in spite of the faults, so no Lock fails.
	Answered bool

	// Quorum: several masters vote on each lock.
	Quorum bool

	// Untokened: no hold requested a token.
	Untokened bool

	// SentOnce: no command was repeated or delayed, so the counter on Redis has the token of the holder.
	SentOnce bool

	// Prompt: no fault of the run loses a wake-up, or leaves anything on Redis. So a waiter gets the lock as soon as it is
	// free.
	Prompt bool

	// InLine are the names with a line of processes in which no process loses its entry, and in which each process serves all
	// of its waiters in its turn.
	InLine []string
}

// Report is the summary of a history.
type Report struct {
	Operations  int           // calls of Lock, TryLock and Unlock
	Holds       int           // holds that began; workers that share an owner have one each
	Losses      int           // holds that ended by a loss
	Faults      int           // faults, pauses and kills
	Overlaps    int           // overlaps of holds after a loss of data; any other is a violation
	LongestWait time.Duration // the longest wait of a Lock that succeeded
	Violations  []Violation
}

// Violation is one breach of a promise.
type Violation struct {
	Invariant string // one of Invariants
	Lock      string
	Text      string
}

func (v Violation) String() string { return fmt.Sprintf("%s %s: %s", v.Invariant, v.Lock, v.Text) }

// Invariants are the names of the checks.
var Invariants = []string{"I1", "I2", "I3", "I4", "I5", "I6", "I7", "porcupine", "resource"}

// Run judges the events of one run on one deployment. They are the events of all processes, and those of one process are in
// the order in which it reported them. Every lock is fenced, and an owner does not hold a name by two locks at a time, such
// as a MultiMutex with the name, and a Mutex.
func Run(events []history.Event, rules Rules) Report {
	r := read(events, rules)
	r.exclusion()
	r.permits()
	if !rules.Untokened {
		r.tokens()
	}
	r.loss()
	r.counts()
	r.leftovers()
	r.waiting()
	r.demand()
	r.deadlocks()
	r.starving()
	r.order()
	r.turns()
	r.permitOrder()
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
	r := &run{rules: rules, story: readStory(events, rules)}
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

// of returns the name of a hold in the text of a violation.
func (r *run) of(h *hold) string {
	return fmt.Sprintf("%s (process %d, worker %d, Lock %d)", h.owner, h.process, h.worker, h.op)
}

// byName returns the holds of each single name, in the order of their beginning. A hold of a MultiMutex is under each of
// its names.
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
