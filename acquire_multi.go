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
	vain int // how often it has not collected all turns
}

var _ turn = (*plainTurn)(nil)

// newPlainTurn is the turn of a Mutex or MultiMutex.
func newPlainTurn(a *attempt) turn {
	a.longestSleep = a.hold.settings.SafetyPoll
	a.plain = plainTurn{a: a}
	return &a.plain
}

// await collects the turns on all keys.
func (t *plainTurn) await() (bool, error) {
	h := t.a.hold
	for {
		if turn, err := t.awaitFirst(); !turn {
			return false, err
		}
		if h.named() {
			if !h.late() {
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
	a, h := t.a, t.a.hold
	g, out := h.kind.protocol.Acquire(a.ctx, a.effort(), h.target, n.Field, &h.settings.Terms)
	return t.answered(n, g, out)
}

// answered judges the answer to a request for n.
func (t *plainTurn) answered(n identity.Name, g protocol.Grant, out redisexec.Outcome) (protocol.Grant, redisexec.Outcome) {
	a := t.a
	a.doubted(n, g, out, a.hold.settings.TTL)
	if g, out = a.answered(n, g, out); out.Err != nil {
		return g, out
	}
	a.suspect(g)
	if g.Held && a.queued {
		a.hold.places[a.at].queue.Served()
	}
	return g, out
}

func (t *plainTurn) rest(d time.Duration) error {
	t.releaseTurns()
	return t.a.sleepFor(d)
}

func (t *plainTurn) end(granted bool) {
	if !granted {
		t.a.hold.leave()
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
func (t *plainTurn) awaitFirst() (bool, error) {
	a := t.a
	ticket := a.hold.places[a.at].ticket
	if state, _ := ticket.State(); state == queue.Turn {
		return true, nil
	}
	if turn, err := a.awaitHere(ticket); !turn || !a.waits {
		return turn, err
	}
	if a.hold.named() {
		t.takeOver()
		return true, nil
	}
	if a.hold.kind.fair == nil && !a.news() {
		// The last holder gave the lock back to all, to give way to other processes:
		// compete with them, and wait for the message they wait for.
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
			<-t.a.hold.alarm
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
		turn, err := false, error(nil)
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
	until := a.hold.session.now().After(clock.Jitter(min(gathering<<min(t.vain, 10), gatheringMax)))
	for {
		if state, err := ticket.State(); state == queue.Turn || state == queue.Failed {
			return state == queue.Turn, err
		}
		left := a.hold.session.now().Until(until)
		if left <= 0 {
			t.vain++
			return ticket.Quit() == queue.Turn, nil
		}
		if err := a.sleep(left); err != nil {
			return false, err
		}
	}
}

// releaseTurns gives up the turns on the keys in whose queues the attempt does not stand.
func (t *plainTurn) releaseTurns() {
	for i, p := range t.a.hold.places {
		if i != t.a.at {
			p.ticket.Leave()
		}
	}
}

// multiTurn is the turn of a MultiMutex on one deployment. It asks for all keys at once. If one of them is
// taken it gets into the line of that key. Given that, it keeps it for a bounded time, with the turns here,
// while it asks for all again; meanwhile it waits only for keys that sort later than those it keeps. So no
// circle of attempts waits for each other, and none starves where its keys are always in use.
//
//	asking --refused--> wants a place in the line of that key --> in line --granted--> keeping, asking
//	keeping --refused a later key, and there is time--> in the line of that, too
//	keeping --refused an earlier one, or time is over--> nothing is kept, wants a place for that one
type multiTurn struct {
	here  plainTurn // in the queues of this process
	a     *attempt
	spot  *spot // in the line of the key at which it stands; nil: it has not got that far
	wants bool  // a place in that line

	kept  identity.Name // by which it has the keys that it keeps; without a field: it keeps none
	last  int           // of those keys
	since clock.Instant // it has stood in the line of the first of them
	until clock.Instant // how long it keeps them
	over  *time.Timer   // rings the alarm then
}

var _ turn = (*multiTurn)(nil)

func newMultiTurn(a *attempt) turn {
	a.longestSleep = a.hold.settings.EntryPoll()
	return &multiTurn{here: plainTurn{a: a}, a: a}
}

// await waits for its turn in the queues here, or in a line.
func (t *multiTurn) await() (bool, error) {
	for {
		if t.timeOver() {
			t.giveUp()
		}
		switch {
		case t.stands():
			if due, err := t.awaitPlace(); due || err != nil {
				return due, err
			}
		case t.wants:
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
	switch s := t.spot.standing(); s.State {
	case protocol.EntryGranted:
		t.keep(t.spot.name, s.Proof)
		t.spot.drop()
		t.leaveLine()
	case protocol.EntryGone:
		t.a.hold.session.identities.Retire(t.spot.name.Identity)
		t.spot.drop()
		t.leaveLine()
		t.giveUp()
	case protocol.EntryFailed:
		return false, s.Err
	default:
		return t.spot.awaitPoll()
	}
	return false, nil
}

// leaveLine gives up a place, and the turn to poll.
func (t *multiTurn) leaveLine() {
	if t.spot != nil {
		t.spot.end()
	}
	t.spot, t.a.ticket, t.a.over = nil, nil, nil
}

func (t *multiTurn) stands() bool { return t.spot != nil && t.spot.stands() }
func (t *multiTurn) keeps() bool  { return t.kept.Field != "" }

func (t *multiTurn) timeOver() bool {
	return t.keeps() && t.a.hold.session.now().Until(t.until) <= 0
}

// nameToAsk is that of what it keeps, or a new one.
func (t *multiTurn) nameToAsk() identity.Name {
	if t.keeps() {
		return t.kept
	}
	return t.a.newName()
}

func (t *multiTurn) ask() (g protocol.Grant, out redisexec.Outcome) {
	a := t.a
	switch {
	case t.stands():
		g, out = t.spot.poll()
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
		t.keepNothing()
	case out.Err == nil:
		t.wants = t.a.waits
		if t.keeps() && g.Key <= t.last {
			t.giveUp()
		}
	}
	return g, out
}

// enqueue gets into the line of the key at which it stands; if that is free, the key is its own.
func (t *multiTurn) enqueue() (protocol.Grant, redisexec.Outcome) {
	a, h := t.a, t.a.hold
	p := h.places[a.at]
	t.leaveLine()
	if !t.keeps() {
		t.since = h.session.now()
	}
	t.spot = newSpot(a, p, h.target.Only(h.target.Keys[a.at:a.at+1]), p.gate.Line().Queue.Ticket(h, h.alarm))
	a.over = func() (bool, error) { return t.spot.settled() || t.timeOver(), nil }
	g, out := t.spot.enqueue(t.nameToAsk())
	if out.Err != nil {
		t.leaveLine()
		if out.Ambiguous {
			t.giveUp()
		}
		return g, out
	}
	p.gate.Heard()
	t.wants = false
	if g.Held {
		t.keep(t.spot.name, out.Sent)
		t.leaveLine()
	}
	g.Held = false // that was not for all
	return g, out
}

// rest does not let one sleep that is to get into a line, or that keeps what others wait for.
func (t *multiTurn) rest(d time.Duration) error {
	if !t.keeps() {
		t.here.releaseTurns()
	}
	switch {
	case t.stands():
		return t.spot.rest(d)
	case t.a.misses == 0 && (t.wants || t.keeps()):
		return nil
	default:
		return t.a.sleepFor(d)
	}
}

// keep has it keep the key at which it stands, which it has by the name n.
func (t *multiTurn) keep(n identity.Name, proof clock.Instant) {
	a, h := t.a, t.a.hold
	now := h.session.now()
	if !t.keeps() {
		t.kept, t.last = n, a.at
		// What others wait in one line they may wait in the next.
		enough := max(gathering<<min(t.here.vain, 10), now.Since(t.since))
		t.until = now.After(clock.Jitter(min(enough, gatheringMax)))
		t.over = time.AfterFunc(now.Until(t.until), h.ring)
	}
	t.last = max(t.last, a.at)
	if end := proof.After(h.settings.EntryLease() / 2); end.Mono < t.until.Mono {
		t.until = end
		t.over.Reset(max(0, now.Until(end)))
	}
}

// giveUp gives back what it keeps, and the place that it has by the same name.
func (t *multiTurn) giveUp() {
	if !t.keeps() {
		return
	}
	h := t.a.hold
	h.session.identities.Retire(t.kept.Identity)
	h.undo(t.kept, h.settings.EntryLease(), false)
	if t.stands() {
		t.leaveLine()
		t.wants = true
	}
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

func (t *multiTurn) end(granted bool) {
	t.leaveLine()
	t.giveUp()
	if !granted {
		t.a.hold.leave()
	}
}
