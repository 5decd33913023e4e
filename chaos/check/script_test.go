package check

import (
	"time"

	"github.com/relock-go/relock/chaos/history"
)

// Times of hand-made histories are milliseconds after this.
const dawn = int64(time.Hour)

const ms = int64(time.Millisecond)

var strict = Rules{TTL: time.Second, Poll: 250 * time.Millisecond, Slack: 200 * time.Millisecond}

// script is a hand-made history.
type script struct {
	events []history.Event
	ops    int
}

// actor is a worker of a process of its own, who uses one lock.
type actor struct {
	*script
	process, worker int
	owner, lock     string
	op              int // of the outermost level
	depth           int
	fixed           bool // it does not renew
	minHold         int64
	read            bool // others may, too
	weight, limit   int  // of its permits; 0: it locks
}

// by returns worker 1 of a process.
func (s *script) by(process int, owner string) *actor {
	return &actor{script: s, process: process, worker: 1, owner: owner, lock: "l"}
}

// also returns another worker of a's process and owner.
func (a *actor) also(worker int) *actor {
	b := *a
	b.worker, b.op, b.depth = worker, 0, 0
	return &b
}

// on returns the same worker on another lock.
func (a *actor) on(lock string) *actor {
	b := *a
	b.lock, b.op, b.depth = lock, 0, 0
	return &b
}

func (s *script) add(at int64, e history.Event) { e.At = dawn + at*ms; s.events = append(s.events, e) }

func (a *actor) record(at int64, e history.Event) {
	e.Process, e.Worker, e.Owner, e.Lock, e.Read = a.process, a.worker, a.owner, a.lock, a.read
	e.Weight, e.Limit = a.weight, a.limit
	if e.Op == 0 {
		e.Op = a.op
	}
	a.add(at, e)
}

// locks is a Lock that succeeds.
func (a *actor) locks(called, returned, token int64) *actor {
	a.ops++
	a.depth++
	op := a.ops
	if a.depth == 1 {
		a.op = op
	}
	a.record(called, history.Event{Kind: history.LockCall, Op: op, Fixed: a.fixed, MinHold: a.minHold * ms})
	a.record(returned, history.Event{Kind: history.LockReturn, Op: op, Outcome: history.OK, Token: token, Depth: a.depth,
		Until: dawn + returned*ms + 990*ms})
	return a
}

// lockedInLine says that the Lock just reported has the lease of its entry.
func (a *actor) lockedInLine(until int64) *actor {
	a.events[len(a.events)-1].Until = dawn + until*ms
	return a
}

// keeps asks for a min hold of so many milliseconds from now on.
func (a *actor) keeps(minHold int64) *actor {
	a.minHold = minHold
	return a
}

// reader returns the same worker as one who reads.
func (a *actor) reader() *actor {
	b := *a
	b.read, b.op, b.depth = true, 0, 0
	return &b
}

// reads is an RLock that succeeds, of a worker who only reads from now on.
func (a *actor) reads(called, returned int64) *actor {
	a.read = true
	return a.locks(called, returned, 0)
}

// waits is a Lock with a bound of so many milliseconds that ends otherwise; returned is 0
// if it never does.
func (a *actor) waits(called, returned, wait int64, outcome history.Outcome) *actor {
	a.ops++
	op := a.ops
	a.record(called, history.Event{Kind: history.LockCall, Op: op, Wait: wait * ms})
	if returned != 0 {
		a.record(returned, history.Event{Kind: history.LockReturn, Op: op, Outcome: outcome})
	}
	return a
}

// tries is a TryLock that another owner's lock refuses.
func (a *actor) tries(called, returned int64) *actor {
	a.ops++
	op := a.ops
	a.record(called, history.Event{Kind: history.LockCall, Op: op, Try: true})
	a.record(returned, history.Event{Kind: history.LockReturn, Op: op, Outcome: history.Taken})
	return a
}

// watches makes the worker watch whether others want its lock, and learn it at wanted; 0: never.
func (a *actor) watches(at, wanted int64) *actor {
	a.record(at, history.Event{Kind: history.Watched})
	if wanted != 0 {
		a.record(wanted, history.Event{Kind: history.Wanted})
	}
	return a
}

func (a *actor) holds(at ...int64) *actor {
	for _, t := range at {
		a.record(t, history.Event{Kind: history.Held})
	}
	return a
}

// counts is a Held with the number of levels.
func (a *actor) counts(at int64, kind history.Kind, count int) *actor {
	a.record(at, history.Event{Kind: kind, Depth: a.depth, Count: count})
	return a
}

func (a *actor) renews(at int64) *actor {
	a.record(at, history.Event{Kind: history.Renewed, Until: dawn + at*ms + 990*ms})
	return a
}

func (a *actor) loses(at int64) *actor {
	a.record(at, history.Event{Kind: history.Lost, Err: "lost"})
	return a
}

// unlocks takes a level away; returned is 0 if it never does.
func (a *actor) unlocks(called, returned int64, outcome history.Outcome) *actor {
	a.ops++
	op := a.ops
	a.depth--
	a.record(called, history.Event{Kind: history.UnlockCall, Op: op})
	if returned != 0 {
		a.record(returned, history.Event{Kind: history.UnlockReturn, Op: op, Outcome: outcome, Depth: a.depth})
	}
	return a
}

func (a *actor) writes(called, returned, token int64, outcome history.Outcome) *actor {
	a.record(called, history.Event{Kind: history.WriteCall, Token: token})
	a.record(returned, history.Event{Kind: history.WriteReturn, Token: token, Outcome: outcome})
	return a
}

// beats makes the process report that it runs, in a period.
func (a *actor) beats(from, to int64) *actor {
	for at := from; at <= to; at += history.Beat.Milliseconds() {
		a.add(at, history.Event{Kind: history.Alive, Process: a.process})
	}
	return a
}

// lives makes the process report an event, so that it counts as running.
func (a *actor) lives(at ...int64) *actor {
	for _, t := range at {
		a.add(t, history.Event{Kind: history.Bye, Process: a.process})
	}
	return a
}

// Of the director.

func (s *script) fault(from, to int64) *script {
	s.ops++
	s.add(from, history.Event{Kind: history.FaultBegin, Op: s.ops})
	s.add(to, history.Event{Kind: history.FaultEnd, Op: s.ops})
	return s
}

// disturbed is a fault that keeps no one waiting.
func (s *script) disturbed(from, to int64) *script {
	s.ops++
	s.add(from, history.Event{Kind: history.Disturbed, Op: s.ops})
	s.add(to, history.Event{Kind: history.Disturbed, Op: s.ops})
	return s
}

// noMessages is a fault by which no message may reach a process.
func (s *script) noMessages(process int, from, to int64) *script {
	s.ops++
	s.add(from, history.Event{Process: process, Kind: history.Disturbed, Op: s.ops, NoMessages: (to - from) * ms})
	return s
}

func (s *script) dataLoss(at int64) *script {
	s.add(at, history.Event{Kind: history.DataLoss})
	return s
}

func (s *script) pause(process int, from, to int64) *script {
	s.add(from, history.Event{Kind: history.Paused, Process: process})
	s.add(to, history.Event{Kind: history.Resumed, Process: process})
	return s
}

func (s *script) kill(process int, at int64) *script {
	s.add(at, history.Event{Kind: history.Killed, Process: process})
	return s
}
