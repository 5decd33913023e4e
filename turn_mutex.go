package relock

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// The way of an attempt for a Mutex. Only the first waiter of a process speaks to Redis, so a wait costs Redis the same
// however many goroutines wait:
//
//	in the queue here --first--> asks for the lock if it is free --granted--> held
//	   |                            | taken
//	   |                         asks for a place in the line -----granted--> held
//	   |                            | waits
//	   |                         is told, or polls and finds out --granted--> held
//	   \--handed over by the holder before it, of this process--------------> held

// mutexTurn is the turn of a Mutex. The waiters of this process have a queue here, whose first has the
// turn for as long as it holds the lock. While the lock is taken it has a place in the line on Redis, for
// all that stand behind it: the line is one of processes. If it gives up, the next of this process waits
// on by the same place.
type mutexTurn struct {
	a     *attempt
	line  *fairTurn // its turn in the line; nil: it has not got that far
	after bool      // strangers have had a turn, and it asks next
}

var _ turn = (*mutexTurn)(nil)

// given is a place in the line that a waiter has from another one of this process.
type given struct {
	entry *line.Entry
	name  identity.Name // by which it is kept
}

// newMutexTurn is the turn of an attempt of a Mutex.
func newMutexTurn(a *attempt) turn {
	a.longestSleep = a.hold.settings.EntryPoll()
	a.mutex = mutexTurn{a: a}
	return &a.mutex
}

// await waits for the turn here, and then in the line.
func (t *mutexTurn) await() (bool, error) {
	a := t.a
	if t.line == nil {
		turn, err := a.awaitHere(a.hold.places[0].ticket)
		switch {
		case turn && a.hold.named():
			// A hand-over came with the turn. If its lease is over by now, Late gives it back, and the loop asks.
			a.hold.late() // then it is no one's
			return true, nil
		case !turn:
			return false, err
		case a.hold.given == nil:
			// It is the first here, and no place in the line came with the turn.
			until, theirs := a.hold.places[0].gate.strangersUntil()
			if t.after = theirs; theirs && a.waits {
				return t.awaitStrangers(until)
			}
			return true, nil
		}
		t.inherit()
	}
	return t.line.await()
}

// awaitStrangers waits while the lock is left to strangers. Their turn is short, and ends by the clock. Then it asks for
// the lock, even if one of them has taken it.
func (t *mutexTurn) awaitStrangers(until clock.Instant) (bool, error) {
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

// inherit has it wait by the place that it was given.
func (t *mutexTurn) inherit() {
	t.getInLine()
	t.line.spot.entry, t.line.spot.name = t.a.hold.given.entry, t.a.hold.given.name
	t.a.hold.given = nil
}

// getInLine has it want a place in the line.
func (t *mutexTurn) getInLine() {
	a := t.a
	t.line = newFairTurn(a, a.hold.places[0].gate.polls.Ticket(a.hold, &a.hold.alarm))
}

// ask takes the lock if it is free. If that is taken, or others have wanted it only just now, it asks
// for a place in the line.
func (t *mutexTurn) ask() (protocol.Grant, redisexec.Outcome) {
	a := t.a
	// It was refused, or this process knows that other owners use the name. Then it is better to ask for the lock or a
	// place in one request.
	if t.line == nil && a.waits && (a.queued || a.hold.session.uses(a.hold.target.Channels[0])) {
		t.getInLine()
	}
	var g protocol.Grant
	var out redisexec.Outcome
	if t.line != nil {
		g, out = t.line.ask()
	} else {
		g, out = a.tryFree()
	}
	if t.after && out.Err == nil {
		// Whether the lock was taken meanwhile says whether there are strangers, and so when they are next.
		a.hold.places[0].gate.strangersTook(!g.Held, a.hold.session.now())
	}
	t.after = false
	return g, out
}

// rest lets one that was refused get into the line at once.
func (t *mutexTurn) rest(d time.Duration) error {
	switch {
	case t.line != nil:
		return t.line.rest(d)
	case t.a.misses == 0:
		// Another owner has the lock, and Redis answers. It gets into the line without a sleep: a waiter that
		// slept first would be overtaken by those that come later.
		return nil
	default:
		return t.a.sleepFor(d)
	}
}

// end leaves nothing. A grant keeps the turn in the queue here: the hold needs it to hand both over.
func (t *mutexTurn) end(granted bool) {
	if t.a.hold.given != nil { // its wait has ended as it was given that
		t.inherit()
	}
	if t.line != nil {
		if !granted && t.line.spot.stands() {
			// mutant: line-spot-kept
			t.bequeath()
		}
		t.line.end(granted)
	}
	if !granted {
		t.a.leave()
	}
}

// bequeath gives its place in the line, and the turn here, to the next waiter of this process that wishes
// for the same. The name goes with it, and so is retired: its owner may come back.
func (t *mutexTurn) bequeath() {
	a := t.a
	ticket, place := a.hold.places[0].ticket, &given{entry: t.line.spot.entry, name: t.line.spot.name}
	// Otherwise a later attempt of the same owner could have the name that the heir waits by.
	a.hold.session.identities.Retire(place.name.Identity)
	for {
		next := ticket.Reserve(func(w *hold) bool {
			// A place is for one protocol, one key and one set of terms. A waiter that wants anything else cannot use it.
			if w.kind != a.hold.kind || w.target.ID != a.hold.target.ID || w.settings.Terms != a.hold.settings.Terms {
				return false
			}
			w.offered, w.given = offer{}, place // no command is sent for it
			return true
		})
		if next == nil {
			return
		}
		// From now on news of the place wake the heir. If the heir has left meanwhile, the next waiter is asked.
		t.line.spot.line.Adopt(place.entry, next.Value.alarm.Ring)
		if ticket.PassTo(next) {
			t.line.spot.entry = nil
			return
		}
	}
}

// tryFree takes the lock if it is free and no one waits for it.
// The script refuses while anyone stands in the line, even if the lock is free: newcomers do not overtake.
func (a *attempt) tryFree() (protocol.Grant, redisexec.Outcome) {
	n := a.newName()
	// Its lease is the whole TTL at once: the hold need not be raised.
	g, out := a.hold.kind.lined.Acquire(a.ctx, a.callOptions(), a.hold.target, n.Field, &a.hold.settings.Terms)
	a.doubted(n, g, out)
	return a.answered(n, g, out)
}
