package relock

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// There are two dangers in a wish for several keys. One is a circle: an owner keeps a and waits for b, another owner
// keeps b and waits for a. An owner that takes all keys at once or none is safe from that. But it may starve beside
// owners that want one key each, which is the other danger. multiTurn is safe from both. What it keeps on the way is
// no hold yet: it becomes one when one request has granted all keys.

// multiTurn is the turn of a MultiMutex on one deployment. It asks for all keys at once. If one of them is
// taken it gets into the line of that key. Given that, it keeps it for a bounded time, with the turns here,
// while it asks for all again; meanwhile it waits only for keys that sort later than those it keeps. So no
// circle of attempts waits for each other, and none starves where its keys are always in use.
//
//	asking --refused--> wants a place in the line of that key --> in line --granted--> keeping, asking
//	keeping --refused a later key, and there is time--> in the line of that, too
//	keeping --refused an earlier one, or time is over--> nothing is kept, wants a place for that one
type multiTurn struct {
	here   plainTurn // in the queues of this process
	a      *attempt
	waiter *lineWaiter // in the line of the key at which it stands; nil: it has not got that far
	wants  bool        // a place in that line: set by a refusal, cleared by a place or by the key itself

	kept  identity.Name // by which it has the keys that it keeps; without a field: it keeps none
	last  int           // of those keys
	since clock.Instant // it has stood in the line of the first of them
	until clock.Instant // how long it keeps them
	over  *time.Timer   // rings the alarm then
}

var _ turn = (*multiTurn)(nil)

// newMultiTurn is the turn of an attempt of a MultiMutex.
func newMultiTurn(a *attempt) turn {
	a.longestSleep = a.hold.settings.EntryPoll()
	return &multiTurn{here: plainTurn{a: a, line: true}, a: a}
}

// await waits for its turn in the queues here, or in a line.
// Each round looks at what the attempt has now, and either waits or says that it is time to ask. A grant, the end
// of its time, or a place that was passed over ends the wait, and begins a new round.
func (t *multiTurn) await() (bool, error) {
	for {
		if t.timeOver() {
			t.giveUp()
		}
		switch {
		case t.hasEntry():
			if due, err := t.awaitPlace(); due || err != nil {
				return due, err
			}
		case t.wants:
			// The turn here, in the queue of that key, comes before a place in its line.
			return t.here.awaitFirst()
		default:
			if turn, err := t.here.awaitFirst(); !turn || t.a.hold.named() && !t.a.hold.late() {
				return turn, err
			}
			if turn, err := t.here.acquireTurns(); turn || err != nil || !t.a.waits {
				return turn, err
			}
			t.giveUp()
		}
	}
}

// awaitPlace waits until it is time to poll, or acts on what has become of the place.
func (t *multiTurn) awaitPlace() (due bool, err error) {
	switch s := t.waiter.standing(); s.State {
	case protocol.EntryGranted:
		// It has the key for one lease of a place, and asks for all keys next.
		t.keep(t.waiter.name, s.Proof)
		t.waiter.drop()
		t.leaveLine()
	case protocol.EntryGone:
		// What it keeps has the same name, which is retired. So it is given back, and all begins anew.
		t.a.hold.session.identities.Retire(t.waiter.name.Identity)
		t.waiter.drop()
		t.leaveLine()
		t.giveUp()
	case protocol.EntryFailed:
		return false, s.Err
	default:
		return t.waiter.awaitPoll()
	}
	return false, nil
}

// leaveLine gives up a place, and the turn to poll.
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

// nameToAsk is that of what it keeps, or a new one.
// All that an attempt keeps has one name, so that one request can take the rest, and one undo gives all back.
func (t *multiTurn) nameToAsk() identity.Name {
	if t.keeps() {
		return t.kept
	}
	return t.a.newName()
}

func (t *multiTurn) ask() (g protocol.Grant, out redisexec.Outcome) {
	a := t.a
	switch {
	case t.hasEntry():
		g, out = t.waiter.poll()
		g.Key = a.at
	case t.wants:
		g, out = t.enqueue()
		g.Key = a.at
	default:
		g, out = t.askForAll()
	}
	return g, out
}

// askForAll asks for all keys, those that it keeps included.
func (t *multiTurn) askForAll() (protocol.Grant, redisexec.Outcome) {
	g, out := t.here.askAs(t.nameToAsk())
	switch {
	case g.Held:
		t.keepNothing()
	case out.Err != nil && out.Ambiguous: // all is being undone
		// The answer is lost, and doubted has retired the name: with that goes what was kept by it.
		t.keepNothing()
	case out.Err == nil:
		// Some key is taken, and the answer told which. The next request is for a place in the line of that.
		t.wants = t.a.waits
		// The keys are asked for in their order, and the first that is taken is told. To keep keys and to wait for one that
		// sorts before them could close a circle. So nothing is kept then.
		if t.keeps() && g.Key <= t.last {
			t.giveUp()
		}
	}
	return g, out
}

// enqueue gets into the line of the key at which it stands; if that is free, the key is its own.
func (t *multiTurn) enqueue() (protocol.Grant, redisexec.Outcome) {
	a := t.a
	p := a.hold.places[a.at]
	t.leaveLine()
	// What others lose by it is counted from here: keep compares.
	if !t.keeps() {
		t.since = a.hold.session.now()
	}
	// This place is for one key, so Redis sees it as that of any waiter in this line.
	t.waiter = newLineWaiter(a, p, a.hold.target.Only(a.hold.target.Keys[a.at:a.at+1]), p.gate.polls.Ticket(a.hold, &a.hold.alarm))
	a.over = func() (bool, error) { return t.waiter.settled() || t.timeOver(), nil }
	g, out := t.waiter.enqueue(t.nameToAsk())
	if out.Err != nil {
		t.leaveLine()
		if out.Ambiguous {
			t.giveUp()
		}
		return g, out
	}
	t.wants = false
	if g.Held {
		t.keep(t.waiter.name, out.Sent)
		t.leaveLine()
	}
	// The loop of the attempt takes a grant for the end. This one is a step: rest lets all keys be asked for at once.
	g.Held = false // that was not for all
	return g, out
}

// rest does not let one sleep that is to get into a line, or that keeps what others wait for.
func (t *multiTurn) rest(d time.Duration) error {
	if !t.keeps() {
		t.here.releaseTurns()
	}
	// Between two keys it does not sleep: the time for which it may keep them is running.
	switch {
	case t.hasEntry():
		return t.waiter.rest(d)
	case t.a.misses == 0 && (t.wants || t.keeps()):
		return nil
	default:
		return t.a.sleepFor(d)
	}
}

// keep has it keep the key at which it stands, which it has by the name n.
func (t *multiTurn) keep(n identity.Name, proof clock.Instant) {
	a := t.a
	now := a.hold.session.now()
	if !t.keeps() {
		// This is the first key that it keeps. The time for all of them begins now.
		t.kept, t.last = n, a.at
		// It keeps keys for as long as it had to wait for them, if that is more than gathering: others lose no more by it than
		// it has lost by others.
		// What others wait in one line they may wait in the next.
		enough := max(gathering<<min(t.here.vain, 10), now.Since(t.since))
		t.until = now.After(clock.Jitter(min(enough, gatheringMax)))
		// The timer only rings: the attempt itself sees that the time is over.
		t.over = time.AfterFunc(now.Until(t.until), a.hold.alarm.Ring)
	}
	t.last = max(t.last, a.at)
	// No watchdog renews what it keeps. The second half of the lease is left for the request for all keys.
	if end := proof.After(a.hold.settings.EntryLease() / 2); end.Mono < t.until.Mono {
		t.until = end
		t.over.Reset(max(0, now.Until(end)))
	}
}

// giveUp gives back what it keeps, and the place that it has by the same name.
func (t *multiTurn) giveUp() {
	if !t.keeps() {
		return
	}
	a := t.a
	a.hold.session.identities.Retire(t.kept.Identity)
	// The name was retired first: a copy of a request that comes late finds that the undo came before it.
	a.undo(t.kept, a.hold.settings.EntryLease(), false)
	if t.hasEntry() {
		t.leaveLine()
		t.wants = true
	}
	// Next time it keeps keys for longer, at most for gatheringMax, so that it comes through in the end.
	t.here.vain++
	t.keepNothing()
	t.here.releaseTurns()
}

// keepNothing says that what it kept is its own now, or is being undone.
func (t *multiTurn) keepNothing() {
	if t.over != nil {
		t.over.Stop()
	}
	t.kept = identity.Name{}
}

// After a grant there is nothing to give back: askForAll has said that what was kept is the hold's own.
func (t *multiTurn) end(granted bool) {
	t.leaveLine()
	t.giveUp()
	if !granted {
		t.a.leave()
	}
}
