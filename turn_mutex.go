package relock

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// How an attempt gets a Mutex. Only the first waiter of a process asks Redis, so a wait costs Redis the same,
// however many goroutines wait:
//
//	in the local queue --first--> asks for the lock if it is free --granted----------> held
//	   |                            | taken
//	   |                         asks for an entry in the line -----granted----------> held
//	   |                            | waits
//	   |                         receives a message, or polls ------granted----------> held
//	   \--handed over by the previous local holder-----------------------------------> held

// mutexTurn is the turn of a Mutex. The waiters of this process have a local queue, whose first waiter has the
// turn for as long as it holds the lock. While the lock is taken it has an entry in the line on Redis, for
// all waiters behind it: the line is one of processes. If it gives up, the next local waiter takes over the entry.
type mutexTurn struct {
	a     *attempt
	line  *fairTurn // its turn in the line; nil: it has not asked for an entry
	after bool      // foreign waiters have had a turn, and it asks next
}

var _ turn = (*mutexTurn)(nil)

// inheritedEntry is an entry in the line that a waiter takes over from another one of this process.
type inheritedEntry struct {
	entry *line.Entry
	name  keys.Name // of the entry
}

// newMutexTurn returns the turn of an attempt of a Mutex.
func newMutexTurn(a *attempt) turn {
	a.mutex = mutexTurn{a: a}
	return &a.mutex
}

// await waits for the turn in the local queue, and then in the line.
func (t *mutexTurn) await() (bool, error) {
	a := t.a
	if t.line == nil {
		turn, err := t.awaitLocal()
		switch {
		case turn && a.hold.named():
			// A hand-over came with the turn. If its lease has ended, late gives it back, and the loop asks Redis.
			a.hold.late() // then the hold has no name
			return true, nil
		case !turn:
			return false, err
		case a.hold.inherited == nil:
			// It is first in the local queue, and did not take over an entry.
			until, theirs := a.hold.queueEntries[0].gate.foreignTurnEnd()
			if t.after = theirs; theirs && a.hold.waits {
				return t.awaitForeignTurn(until)
			}
			return true, nil
		}
		t.inherit()
	}
	return t.line.await()
}

// awaitLocal gives the attempt the lock of the hold that lingers at its key. If none does, or it cannot hand the lock over, the
// attempt waits for its turn in the local queue. false, nil: it does not wait, and another one has the turn.
func (t *mutexTurn) awaitLocal() (turn bool, err error) {
	a := t.a
	p := a.hold.queueEntries[0]
	l := p.gate.takeLingering(nil)
	if l == nil {
		return a.awaitHere(p.ticket)
	}
	p.ticket.Join()
	if passed := l.handOver(); !passed && !a.hold.waits {
		err = l.hold.await(a.ctx) // it is released
	}
	if state, _ := p.ticket.State(); state == queue.Turn && err == nil {
		return true, nil
	}
	if !a.hold.waits {
		return a.gives(p.ticket, err)
	}
	a.contend()
	err = a.awaitTurn(p.ticket)
	return err == nil, err
}

// gives leaves the queue with t for a try that did not get the turn, or that ended with err. true: the lock was handed over before.
// A name alone proves nothing: a hand-over that is in progress has set it, and finds that t has left.
func (a *attempt) gives(t *queue.Ticket[*hold], err error) (turn bool, _ error) {
	if a.handedOverTo(t) {
		return true, nil
	}
	return false, err
}

// awaitForeignTurn waits while it is the turn of foreign waiters, which is short and ends by the clock. Then the attempt
// asks for the lock, even if one of them has taken it.
func (t *mutexTurn) awaitForeignTurn(until clock.Instant) (bool, error) {
	for {
		left := t.a.hold.session.now().Until(until)
		if left <= 0 {
			return true, nil
		}
		if err := t.a.sleep(left); err != nil {
			return false, err
		}
	}
}

// inherit makes the attempt wait by the entry that it took over.
func (t *mutexTurn) inherit() {
	t.getInLine()
	t.line.waiter.entry, t.line.waiter.name = t.a.hold.inherited.entry, t.a.hold.inherited.name
	t.a.hold.inherited = nil
}

// getInLine prepares the attempt to ask for an entry in the line.
func (t *mutexTurn) getInLine() {
	a := t.a
	t.line = newFairTurn(a, a.hold.queueEntries[0].gate.line().polls.Ticket(a.hold, &a.hold.alarm))
}

// ask acquires the lock if it is free. If the lock is taken, or other processes used it just now, it asks
// for the lock or an entry in the line.
func (t *mutexTurn) ask() (g protocol.Grant, out redisexec.Outcome) {
	a := t.a
	// It was refused, or this process received messages about the name. Then one request for the lock or an entry is
	// better than two.
	if t.line == nil && a.hold.waits && (a.queued || a.hold.session.uses(a.hold.target.Channels[0])) {
		t.getInLine()
	}
	if t.line != nil {
		g, out = t.line.ask()
	} else {
		g, out = a.tryFree()
	}
	if t.after && out.Err == nil {
		// If the lock was taken meanwhile, there are foreign waiters. That decides when their next turn is.
		a.hold.queueEntries[0].gate.endForeignTurn(!g.Held, a.hold.session.now())
	}
	t.after = false
	return g, out
}

// rest lets an attempt that was refused ask for an entry at once.
func (t *mutexTurn) rest(d time.Duration) error {
	switch {
	case t.line != nil:
		return t.line.rest(d)
	case t.a.misses == 0:
		// Another owner has the lock, and Redis answers. The attempt enters the line without a sleep: if it slept
		// first, later waiters would overtake it.
		return nil
	default:
		return t.a.sleepFor(d)
	}
}

// end leaves nothing behind. After a grant the hold keeps the turn in the local queue, to hand over both.
func (t *mutexTurn) end(granted bool) {
	if t.a.hold.inherited != nil { // its wait ended just as it took over an entry
		t.inherit()
	}
	if t.line != nil {
		if !granted && t.line.waiter.hasEntry() {
			// mutant: line-entry-left
			t.bequeath()
		}
		t.line.end(granted)
	}
	if !granted {
		t.a.hold.leave()
	}
}

// bequeath passes its entry in the line, and the turn in the local queue, to the next local waiter that wants the same.
// The name goes with the entry, and so is retired, because its owner may lock again.
func (t *mutexTurn) bequeath() {
	a := t.a
	ticket, handed := a.hold.queueEntries[0].ticket, &inheritedEntry{entry: t.line.waiter.entry, name: t.line.waiter.name}
	// Otherwise a later attempt of the same owner could have the name of this entry.
	a.hold.session.identities.Retire(handed.name.Identity)
	for {
		next := ticket.Reserve(func(w *hold) bool {
			// An entry is for one protocol, one key and one set of options. Other waiters cannot use it, and a try does not wait.
			if !w.waits || w.kind != a.hold.kind || w.target.ID != a.hold.target.ID || w.settings.Terms != a.hold.settings.Terms {
				return false
			}
			w.offered, w.inherited = offer{}, handed // no command is sent for it
			return true
		})
		if next == nil {
			return
		}
		// From now on the entry wakes the next waiter. If that waiter has left meanwhile, the loop tries the waiter after it.
		t.line.waiter.line.Adopt(handed.entry, next.Value.alarm.Ring)
		if ticket.PassTo(next) {
			t.line.waiter.entry = nil
			return
		}
	}
}

// tryFree acquires the lock if it is free and the line is empty. If the line has an entry, the script refuses even if
// the lock is free: newcomers do not overtake.
func (a *attempt) tryFree() (g protocol.Grant, out redisexec.Outcome) {
	n := a.newName()
	// The request sets the whole TTL, so the lease need not be extended soon.
	g, out = a.hold.kind.lined.Acquire(a.ctx, a.callOptions(), a.hold.target, n.Field, &a.hold.settings.Terms)
	a.doubted(n, g, out)
	if a.answered(n, &g, &out); g.Held {
		a.hold.queueEntries[0].gate.seesLine(lineUnknown, out.Sent)
	}
	return g, out
}
