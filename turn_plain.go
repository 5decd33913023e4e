package relock

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// pubsubDelay is how long a waiter lets a wake-up that was just published, and that other
// processes act on too, take to arrive.
const pubsubDelay = 20 * time.Millisecond

// plainTurn is the turn of a plain lock: one waiter of a process at a time has the turn on
// a key. It alone asks Redis for it, and keeps the turn for as long as it holds the lock, so
// that it can hand both over to the next.
//
// An attempt that wants several keys stands in one queue at a time, that of the key which was
// taken last: waiting for it, it is in no other waiter's way on the others. It collects the
// turns on those for a try, and lets no other pass for as long as that takes: which is not
// long, or it would be in the way after all, and not never, or it would starve where every
// key is always in use.
type plainTurn struct {
	a    *attempt
	line bool // those of other processes stand in a line: the last holder does not give way to them
	vain int  // how often it has not collected all turns
}

var _ turn = (*plainTurn)(nil)

// newPlainTurn is the turn of an attempt of a Mutex or MultiMutex on a quorum.
func newPlainTurn(a *attempt) turn {
	a.longestSleep = a.hold.settings.SafetyPoll
	return &plainTurn{a: a}
}

// await collects the turns on all keys.
func (t *plainTurn) await() (bool, error) {
	a := t.a
	for {
		// With the turn in one queue it goes for those in the others. The queue that stops it is the one it waits in next.
		if turn, err := t.awaitFirst(); !turn {
			return false, err
		}
		if a.hold.named() {
			// The hand-over counts only if its lease has some time left. Otherwise the keys are asked for as by a newcomer.
			if !a.hold.late() {
				return true, nil
			}
			t.releaseTurns()
		}
		if turn, err := t.acquireTurns(); turn || err != nil || !t.a.waits {
			return turn, err
		}
	}
}

func (t *plainTurn) ask() (protocol.Grant, redisexec.Outcome) { return t.askAs(t.a.newName()) }

// askAs asks for all keys by the name n.
func (t *plainTurn) askAs(n identity.Name) (protocol.Grant, redisexec.Outcome) {
	a := t.a
	g, out := a.hold.kind.protocol.Acquire(a.ctx, a.callOptions(), a.hold.target, n.Field, &a.hold.settings.Terms)
	return t.answered(n, g, out)
}

// answered judges the answer to a request for n.
func (t *plainTurn) answered(n identity.Name, g protocol.Grant, out redisexec.Outcome) (protocol.Grant, redisexec.Outcome) {
	a := t.a
	a.doubted(n, g, out)
	if g, out = a.answered(n, g, out); out.Err != nil {
		return g, out
	}
	// A poll that finds out what a message should have told says something about the subscription.
	a.suspect(g)
	if g.Held && a.queued {
		a.hold.places[a.at].queue.Served()
	}
	return g, out
}

// rest keeps its place in the one queue where it stands, and sleeps there: a release of that key wakes it.
func (t *plainTurn) rest(d time.Duration) error {
	t.releaseTurns()
	return t.a.sleepFor(d)
}

func (t *plainTurn) end(granted bool) {
	if !granted {
		t.a.leave()
	}
}

// gathering is how long one turn is waited for while those on other keys are kept: at
// first, doubling with every time that was in vain, and at most.
const (
	gathering    = 40 * time.Millisecond
	gatheringMax = 2 * time.Second
)

// awaitFirst waits for the turn in the queue where the attempt stands. A hand-over comes with
// the turn on every key. false, nil: it does not wait, and another waiter is there.
// First the turn where it stands, then those on the other keys: an attempt that waits is in the way on one key only.
func (t *plainTurn) awaitFirst() (bool, error) {
	a := t.a
	ticket := a.hold.places[a.at].ticket
	if state, _ := ticket.State(); state == queue.Turn {
		return true, nil
	}
	// A try never waits here: it is told at once whether another waiter has the turn.
	if turn, err := a.awaitHere(ticket); !turn || !a.waits {
		return turn, err
	}
	if a.hold.named() {
		t.takeOver()
		return true, nil
	}
	if !t.line && !a.news() {
		// The last holder gave the lock back to all, to give way to other processes:
		// compete with them, and wait for the message they wait for.
		// mutant: wakeup-consumed/2
		if err := a.sleepFor(clock.Jitter(2 * pubsubDelay)); err != nil {
			return false, err
		}
	}
	return true, nil
}

// takeOver waits until a hand-over, which comes with the turn on one key, has passed the
// turns on the others, too. Nothing keeps it from that.
func (t *plainTurn) takeOver() {
	for _, p := range t.a.hold.places {
		for state, _ := p.ticket.State(); state != queue.Turn; state, _ = p.ticket.State() {
			<-t.a.hold.alarm.C()
		}
	}
}

// acquireTurns collects the turns on the other keys, in their order: only for later keys does
// it wait, so no circle of attempts waits for each other. If one cannot be had in time, the
// attempt goes to stand in that queue instead.
func (t *plainTurn) acquireTurns() (bool, error) {
	a := t.a
	for i, p := range a.hold.places {
		if state, _ := p.ticket.State(); state == queue.Turn || p.ticket.TryJoin() {
			continue
		}
		// Another waiter of this process has that turn.
		turn, err := false, error(nil)
		// Waiting only for later keys is what breaks circles: see multiTurn, which does the same on Redis.
		if a.waits && i > a.at {
			turn, err = t.awaitOther(p.ticket)
		}
		if !turn {
			a.at = i
			t.releaseTurns()
			return false, err
		}
	}
	return true, nil
}

// awaitOther waits for the turn on another key, for a while.
func (t *plainTurn) awaitOther(ticket *queue.Ticket[*hold]) (bool, error) {
	if ticket.Join() {
		return true, nil
	}
	a := t.a
	a.contend()
	// The time is random, so that two attempts which are in each other's way do not meet again and again.
	until := a.hold.session.now().After(clock.Jitter(min(gathering<<min(t.vain, 10), gatheringMax)))
	for {
		if state, err := ticket.State(); state == queue.Turn || state == queue.Failed {
			return state == queue.Turn, err
		}
		left := a.hold.session.now().Until(until)
		if left <= 0 {
			// It may have got the turn at the last moment: Quit says so.
			t.vain++
			return ticket.Quit() == queue.Turn, nil
		}
		if err := a.sleep(left); err != nil {
			return false, err
		}
	}
}

// releaseTurns gives up the turns on the keys in whose queues the attempt does not stand.
// Others of this process can have those keys while it sleeps.
func (t *plainTurn) releaseTurns() {
	for i, p := range t.a.hold.places {
		if i != t.a.at {
			p.ticket.Leave()
		}
	}
}
