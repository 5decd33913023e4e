package relock

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// An acquisition of several keys can fail in two ways. One is deadlock: an owner keeps a and waits for b, and another
// owner keeps b and waits for a. An owner that acquires either all keys at once or none cannot deadlock. But it may
// starve, which is the other way, if other owners acquire one key each. multiTurn avoids both. The keys that it keeps
// are no hold yet: they become one when one request has granted all keys.

// multiTurn is the turn of a MultiMutex on one server or Cluster. It asks for all keys at once. If one of them is taken,
// it enters the line of that key. When it is granted that key, it keeps the key, and the turns in the local queues, for a
// bounded time, and asks for all keys again. While it keeps keys, it waits only for keys that sort after them. So
// attempts never wait for each other in a circle. And no attempt starves if its keys are always in use, as long as the wait in
// the line of all but one of them is shorter than gatheringMax.
//
//	asking --refused--> wants an entry in the line of that key --> in line --granted--> keeping, asking
//	keeping --refused a later key, and there is time--> in the line of that key, too
//	keeping --refused an earlier key, or time is over--> keeps nothing, wants an entry for that key
type multiTurn struct {
	here   plainTurn // in the local queues
	a      *attempt
	waiter *lineWaiter // in the line of the key a.at; nil: it has not entered a line
	wants  bool        // an entry in that line: set by a refusal, cleared by an entry or by the key itself

	kept  keys.Name     // of the keys that it keeps; without a field: it keeps none
	last  int           // index of the last of these keys
	since clock.Instant // when it entered the line of the first of them
	until clock.Instant // when it stops keeping them
	over  *time.Timer   // fires the alarm at until
}

var _ turn = (*multiTurn)(nil)

// newMultiTurn is the turn of an attempt of a MultiMutex.
func newMultiTurn(a *attempt) turn {
	return &multiTurn{here: plainTurn{a: a, line: true}, a: a}
}

// await waits for its turn in the local queues, or in a line.
// Each round checks the state of the attempt, and either waits or returns that it is time to ask. If the entry is
// granted or gone, or the time for keeping keys is over, the wait ends and a new round begins.
func (t *multiTurn) await() (bool, error) {
	for {
		if t.timeOver() {
			t.giveUp()
		}
		switch {
		case t.hasEntry():
			if due, err := t.awaitEntry(); due || err != nil {
				return due, err
			}
		case t.wants:
			// The turn in the local queue of that key comes before an entry in its line. A hand-over with it counts only if its lease
			// has not ended.
			if turn, err := t.here.awaitFirst(); !t.a.hold.named() || !t.a.hold.late() {
				return turn, err
			}
		default:
			// Without an entry it must not have the turn to poll while it waits for another key: nobody would poll for the others.
			t.leaveLine()
			if turn, err := t.here.awaitFirst(); !turn || t.a.hold.named() && !t.a.hold.late() {
				return turn, err
			}
			if turn, err := t.here.acquireTurns(); turn || err != nil || !t.a.hold.waits {
				return turn, err
			}
			t.giveUp()
		}
	}
}

// awaitEntry waits until it is time to poll, or handles the new state of the entry.
func (t *multiTurn) awaitEntry() (due bool, err error) {
	switch s := t.waiter.status(); s.State {
	case protocol.EntryGranted:
		// It has the key for one lease of an entry, and asks for all keys next.
		t.keep(t.waiter.name, s.Proof)
		t.waiter.drop()
		t.leaveLine()
	case protocol.EntryGone:
		// The keys that it keeps have the same name, which is retired. So it releases them and starts over.
		t.waiter.gone()
		t.leaveLine()
		t.giveUp()
	case protocol.EntryFailed:
		return false, s.Err
	default:
		return t.waiter.awaitPoll()
	}
	return false, nil
}

// leaveLine gives up the entry and the turn to poll.
func (t *multiTurn) leaveLine() {
	if t.waiter != nil {
		t.waiter.end()
	}
	t.waiter, t.a.ticket, t.a.over = nil, nil, nil
}

func (t *multiTurn) hasEntry() bool { return t.waiter != nil && t.waiter.hasEntry() }
func (t *multiTurn) keeps() bool    { return t.kept.Field != "" }

func (t *multiTurn) timeOver() bool {
	// mutant: multi-keeps-forever
	return t.keeps() && t.a.hold.session.now().Until(t.until) <= 0
}

// nameToAsk returns the name of the keys that it keeps, or a new name.
// All keys that an attempt keeps have one name, so that one request can acquire the rest, and one undo releases all.
func (t *multiTurn) nameToAsk() keys.Name {
	if t.keeps() {
		return t.kept
	}
	return t.a.newName()
}

func (t *multiTurn) ask() (g protocol.Grant, out redisexec.Outcome) {
	switch {
	case t.hasEntry():
		g, out = t.waiter.poll()
	case t.wants:
		g, out = t.enqueue()
	default:
		return t.askForAll()
	}
	g.Key = t.a.at
	return g, out
}

// askForAll asks for all keys, including the keys that it keeps.
func (t *multiTurn) askForAll() (protocol.Grant, redisexec.Outcome) {
	g, out := t.here.askAs(t.nameToAsk())
	// If the outcome of a copy is unknown, doubted has retired the name, whatever another copy was answered, and the undo of
	// the name releases the kept keys, too.
	if g.Held || out.Ambiguous {
		t.keepNothing()
	}
	if out.Err == nil && !g.Held {
		// A key is taken, and the answer contains which. The next request is for an entry in the line of that key.
		t.wants = t.a.hold.waits
		// The script checks the keys in order, and returns the first one that is taken. If attempts kept keys and waited
		// for a key that sorts before them, they could deadlock. So the attempt releases its keys first.
		if t.keeps() && g.Key <= t.last {
			t.giveUp()
		}
	}
	return g, out
}

// enqueue enters the line of the key a.at. If the key is free, it acquires the key.
func (t *multiTurn) enqueue() (protocol.Grant, redisexec.Outcome) {
	a := t.a
	p := a.hold.queueEntries[a.at]
	t.leaveLine()
	// keep allows it to keep keys for as long as it waited, which is counted from here.
	if !t.keeps() {
		t.since = a.hold.session.now()
	}
	// The entry is for one key, so on Redis it is the same as the entry of any waiter of this line.
	t.waiter = newLineWaiter(a, p, a.hold.target.Only(a.hold.target.Keys[a.at:a.at+1]), p.gate.line().polls.Ticket(a.hold, &a.hold.alarm))
	a.over = func() (bool, error) { return t.waiter.settled() || t.timeOver(), nil }
	g, out := t.waiter.enqueue(t.nameToAsk())
	if out.Ambiguous && !g.Held && !t.hasEntry() { // its name is being undone
		t.giveUp()
	}
	if out.Err != nil {
		t.leaveLine()
		return g, out
	}
	t.wants = false
	if g.Held {
		t.keep(t.waiter.name, out.Sent)
		t.leaveLine()
	}
	// The loop of the attempt ends at a grant, but this grant is not for all keys. rest returns at once, so that the
	// attempt asks for all keys.
	g.Held = false
	return g, out
}

// rest does not sleep before it enters a line, or while it keeps keys that others wait for and waits in no line.
func (t *multiTurn) rest(d time.Duration) error {
	if !t.keeps() {
		t.here.releaseTurns()
	}
	switch {
	case t.waiter != nil && !t.wants: // it has an entry, or it may not use the line, and waits for messages and polls
		return t.waiter.rest(d)
	case t.a.misses == 0 && (t.wants || t.keeps()):
		return nil
	default:
		return t.a.sleepFor(d)
	}
}

// keep records that it keeps the key a.at, which it has under the name n.
func (t *multiTurn) keep(n keys.Name, proof clock.Instant) {
	a := t.a
	now := a.hold.session.now()
	if !t.keeps() {
		// This is the first key that it keeps. The time for all keys begins now.
		t.kept = n
		// If it waited for the first key for longer than gathering, it keeps keys for as long as it waited, because the
		// wait in the next line may be as long. So others lose no more time by it than it has lost by others.
		enough := max(gathering<<min(t.here.failures, 10), now.Since(t.since))
		t.until = now.After(clock.Jitter(min(enough, gatheringMax)))
		// The timer only wakes the attempt, which then checks the time itself.
		t.over = time.AfterFunc(now.Until(t.until), a.hold.alarm.Ring)
	}
	t.kept.Late = t.kept.Late || n.Late
	t.last = a.at // after the keys that it kept before
	// No watchdog renews the keys that it keeps. The second half of the lease is reserved for the request for all keys.
	if end := proof.After(a.hold.settings.EntryLease() / 2); end.Mono < t.until.Mono {
		t.until = end
		t.over.Reset(max(0, now.Until(end)))
	}
}

// giveUp releases the keys that it keeps, and gives up the entry that has the same name.
func (t *multiTurn) giveUp() {
	if !t.keeps() {
		return
	}
	a := t.a
	a.hold.undoName(t.kept, a.hold.settings.TTL)
	if t.hasEntry() {
		t.leaveLine()
		t.wants = true
	}
	// Next time it keeps keys for longer, up to gatheringMax.
	t.here.failures++
	t.keepNothing()
	t.here.releaseTurns()
}

// keepNothing records that it keeps no keys any more: they are in the hold, or are being undone.
func (t *multiTurn) keepNothing() {
	if t.over != nil {
		t.over.Stop()
	}
	t.kept = keys.Name{}
}

// After a grant there are no keys to release: askForAll has called keepNothing, because the keys are in the hold.
func (t *multiTurn) end(granted bool) {
	t.leaveLine()
	t.giveUp()
	if !granted {
		t.a.hold.leave()
	}
}
