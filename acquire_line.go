package relock

import (
	"slices"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/undo"
)

// spot is what one attempt has in the line of one key: its place on Redis, while it has one, and a ticket
// of the queue of this process for the turn to poll, which one waiter does for all of them.
type spot struct {
	a       *attempt
	fair    *protocol.Fair
	target  *keys.Set            // the key
	line    *line.Line[*hold]    // the places of this process
	ticket  *queue.Ticket[*hold] // for the turn to poll
	entry   *line.Entry          // the place, while it has one
	name    name                 // by which it has that; without a token yet
	attends bool                 // it has been listening since before it had that
}

// newSpot is that of a at its place p, whose key alone is t. It polls when ticket has the turn.
func newSpot(a *attempt, p place, t *keys.Set, ticket *queue.Ticket[*hold]) *spot {
	a.longestSleep = a.hold.settings.EntryPoll()
	a.ticket = ticket
	s := &spot{a: a, fair: a.hold.kind.fair, target: t, line: p.gate.Line(), ticket: ticket}
	a.over = func() (bool, error) { return s.settled(), nil }
	return s
}

// stands reports whether there is a place.
func (s *spot) stands() bool { return s.entry != nil }

// standing is what has become of the place.
func (s *spot) standing() protocol.Standing { return s.line.Standing(s.entry) }

// settled reports whether there is a place, and it does not wait any more.
func (s *spot) settled() bool {
	return s.entry != nil && s.standing().State > protocol.EntryWaiting
}

// enqueue asks for the lock, by the name n, or for a place in the line. The grant may be told before the
// answer has come: the ticket is known, and messages that reach this process are heard, before the request
// is sent. Replicas are not waited for: a place is to be kept meanwhile.
func (s *spot) enqueue(n name) (protocol.Grant, redisexec.Outcome) {
	a, h := s.a, s.a.hold
	if !s.attends {
		s.attends = true
		s.line.Attend()
	}
	s.name = n
	s.entry = s.line.Enter(h.session.tickets.Add(1), n.field, &h.settings.Terms, h.ring)
	g, out := s.fair.Enqueue(a.ctx, h.session.paced(a.untilClose(), s.entry), s.target, n.field, &h.settings.Terms, s.entry.Ticket)
	switch {
	case out.Err == nil && g.Waits: // an undo would take its place away
		if out.Ambiguous {
			h.session.retire(n.identity)
		}
		s.line.Placed(s.entry, out)
	default: // the lock, nothing, or a line that is not to be had
		if out.Ambiguous {
			h.session.retire(n.identity)
			if !g.Held {
				s.undo(n, max(h.settings.TTL, 2*h.settings.EntryLease()), out.Unobserved)
			}
		}
		s.drop()
	}
	return g, out
}

// awaitPoll waits until it is this waiter's turn to poll, and time for it. false, nil: the place
// is to be looked at first, there may be news of it.
func (s *spot) awaitPoll() (bool, error) {
	a := s.a
	state, _ := s.ticket.State()
	if state == queue.Gone && s.ticket.Join() {
		s.ticket.Since(s.entry.Mark)
		state = queue.Turn
	}
	if state != queue.Turn {
		return false, a.awaitTurn(s.ticket)
	}
	var err error
	if a.news() { // of before it had the turn, even
		err = a.heed()
	} else {
		err = a.sleepUntil(s.line.Due)
	}
	return err == nil && !s.settled(), err
}

// mostPolled is how many waiters one script polls for: Redis does nothing else meanwhile.
const mostPolled = 500

// poll keeps the places of all that wait in this process, and learns how they stand.
func (s *spot) poll() (g protocol.Grant, out redisexec.Outcome) {
	a, h := s.a, s.a.hold
	for entries := range slices.Chunk(s.line.Waiting(), mostPolled) {
		waiters := make([]protocol.Waiter, len(entries))
		effort := a.untilClose()
		for i, e := range entries {
			waiters[i] = protocol.Waiter{Field: e.Field, Terms: e.Terms}
			effort = h.session.paced(effort, e)
		}
		var all []protocol.Standing
		all, g, out = s.fair.Poll(a.ctx, effort, s.target, waiters)
		if out.Err != nil {
			return g, out
		}
		h.places[a.at].gate.Heard()
		if late := s.line.Learn(entries, all, out.Sent); late && a.polled {
			s.line.Missed()
		}
	}
	return g, out
}

// deafPoll is the longest sleep of a waiter that no message reaches: its place may have been passed over.
const deafPoll = 250 * time.Millisecond

// rest sets the time of the next poll, which is for the waiter that has the turn then.
func (s *spot) rest(d time.Duration) error {
	state, _ := s.ticket.State()
	if s.entry == nil { // Redis did not answer, or there is no line to be had
		if state == queue.Gone {
			s.ticket.Join() // for the messages
		}
		return s.a.sleepFor(d)
	}
	if !s.line.Listening() {
		d = min(d, deafPoll)
	}
	s.line.Schedule(s.entry, d, state == queue.Turn)
	return nil
}

// end passes the turn to poll on, and gives a place up that has not become the lock; or has, by now.
// The name is retired: what it is given up with may be sent again at any time.
func (s *spot) end() {
	if s.entry != nil {
		s.giveUp()
	}
	if s.attends {
		s.line.Unlisten()
	}
	if s.a.misses > 0 {
		s.ticket.Leave() // what it was to find out was not answered: the next asks at once
	} else {
		s.ticket.Pass()
	}
}

// giveUp gives the place up, or the lock if it has become that.
func (s *spot) giveUp() {
	h := s.a.hold
	h.session.retire(s.name.identity)
	s.undo(s.name, 2*h.settings.EntryLease(), false)
	s.drop()
}

// undo has the place and the lock given up that n, which has been retired, may have.
func (s *spot) undo(n name, lasts time.Duration, unobserved bool) {
	h := s.a.hold
	h.trackUndo(h.session.undo(s.fair, undo.Name{Keys: s.target, Until: h.session.now().After(lasts), Unobserved: unobserved}, n.field))
}

// drop forgets the place.
func (s *spot) drop() {
	s.line.Remove(s.entry)
	s.entry = nil
}

// paced is opts for a command that keeps e's place, among others: several copies have to fit into
// the lease of the briefest place.
func (c *session) paced(opts redisexec.CallOptions, e *line.Entry) redisexec.CallOptions {
	patience := min(c.patience, redisexec.PatienceFor(e.Terms.EntryLease()))
	if opts.Patience == 0 || patience < opts.Patience {
		opts.Patience = patience
	}
	return opts
}

// fairTurn is the turn of a waiter that stands in the line on Redis, and is told when the lock is its
// own: each of a FairMutex does. What it holds is not handed over here but given back.
type fairTurn struct {
	a    *attempt
	spot *spot
}

var _ turn = (*fairTurn)(nil)

// newFairTurn is the turn of an attempt that polls when ticket, which is of the queue for that, has the turn.
func newFairTurn(a *attempt, ticket *queue.Ticket[*hold]) *fairTurn {
	return &fairTurn{a: a, spot: newSpot(a, a.hold.places[0], a.hold.target, ticket)}
}

// await lets a newcomer ask at once. A waiter with a place on Redis waits until that has become
// the lock, or has ended, or it is its turn to poll and time for it.
func (t *fairTurn) await() (bool, error) {
	for t.spot.stands() {
		if s := t.spot.standing(); s.State > protocol.EntryWaiting {
			return t.settle(s)
		}
		if due, err := t.spot.awaitPoll(); due || err != nil {
			return due, err
		}
	}
	return true, nil
}

// settle acts on what has become of the place. true: the hold has a name, and the lock; or it
// has lost the place, and asks anew.
func (t *fairTurn) settle(s protocol.Standing) (bool, error) {
	a := t.a
	switch s.State {
	case protocol.EntryFailed:
		return false, s.Err
	case protocol.EntryGone:
		// However that came about: nothing is to come back under that name.
		a.hold.session.retire(t.spot.name.identity)
		t.spot.drop()
		return true, nil
	}
	t.accept()
	if a.hold.late() {
		return true, nil
	}
	out := t.confirm()
	if out.Err == nil {
		return true, nil
	}
	if err := a.failed(out); err != nil {
		return false, err
	}
	err := a.sleepFor(clock.Backoff(a.misses))
	return err == nil, err
}

// ask gets a place on Redis; from then on it polls for all of the process.
func (t *fairTurn) ask() (protocol.Grant, redisexec.Outcome) {
	a := t.a
	switch {
	case t.spot.stands():
		return t.spot.poll()
	case !a.waits:
		return a.tryFree()
	}
	g, out := t.spot.enqueue(a.newName())
	if out.Err != nil || g.Waits {
		return a.answered(t.spot.name, g, out)
	}
	if g, out = a.answered(t.spot.name, g, out); g.Held {
		out = t.confirm()
		g.Held = out.Err == nil
	}
	return g, out
}

// tryFree takes the lock if it is free and no one waits for it.
func (a *attempt) tryFree() (protocol.Grant, redisexec.Outcome) {
	h, n := a.hold, a.newName()
	g, out := h.kind.fair.Acquire(a.ctx, a.effort(), h.target, n.field, &h.settings.Terms)
	a.doubted(n, g, out, h.settings.TTL)
	return a.answered(n, g, out)
}

func (t *fairTurn) rest(d time.Duration) error { return t.spot.rest(d) }

func (t *fairTurn) end(bool) { t.spot.end() }

// accept makes a place that has become the lock a hold.
func (t *fairTurn) accept() {
	h, s := t.a.hold, t.spot.standing()
	h.places[0].gate.SetAlone(false) // where one stood others may
	n := t.spot.name
	n.token = s.Token
	h.receive(n, s.Proof, h.settings.EntryLease())
	h.mu.Lock()
	h.lease.RaiseSoon(h.session.now())
	h.mu.Unlock()
	t.spot.drop()
}

// confirm has the replicas confirm a lock that was got: they have not been asked yet. It raises
// the lease before they are waited for. After a failure the grant has been given back.
func (t *fairTurn) confirm() redisexec.Outcome {
	a, h := t.a, t.a.hold
	if h.settings.replicas.N == 0 {
		return redisexec.Outcome{}
	}
	t.spot.ticket.Pass() // others poll meanwhile
	ours, out := h.kind.protocol.Renew(a.ctx, a.effort(), h.target, h.name.field, h.settings.TTL)
	switch {
	case out.Err != nil:
	case !ours:
		out.Err = lockerr.ErrNotOnRedis
	case out.Unconfirmed != nil:
		out.Err, out.Permanent = out.Unconfirmed, true
	default:
		if out.Ambiguous {
			h.session.retire(h.name.identity)
		}
		h.mu.Lock()
		h.lease.Prove(out.Sent, h.settings.TTL, h.wantedLease())
		h.mu.Unlock()
		return out
	}
	h.rejectGrant()
	return out
}

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
	name  name // by which it is kept
}

func newMutexTurn(a *attempt) turn {
	a.longestSleep = a.hold.settings.EntryPoll()
	a.mutex = mutexTurn{a: a}
	return &a.mutex
}

// await waits for the turn here, and then in the line.
func (t *mutexTurn) await() (bool, error) {
	a, h := t.a, t.a.hold
	if t.line == nil {
		turn, err := a.awaitHere(h.places[0].ticket)
		switch {
		case turn && h.named():
			h.late() // then it is no one's
			return true, nil
		case !turn:
			return false, err
		case a.given == nil:
			return t.awaitStrangers()
		}
		t.inherit()
	}
	return t.line.await()
}

// awaitStrangers waits while the lock is left to strangers.
func (t *mutexTurn) awaitStrangers() (bool, error) {
	until, theirs := t.a.hold.places[0].gate.StrangersUntil()
	t.after = theirs
	for theirs && t.a.waits {
		left := t.a.hold.session.now().Until(until)
		if left <= 0 {
			break
		}
		if err := t.a.sleep(left); err != nil {
			return false, err
		}
	}
	return true, nil
}

// inherit has it wait by the place that it was given.
func (t *mutexTurn) inherit() {
	t.getInLine()
	t.line.spot.entry, t.line.spot.name = t.a.given.entry, t.a.given.name
	t.a.given = nil
}

// getInLine has it want a place in the line.
func (t *mutexTurn) getInLine() {
	h := t.a.hold
	t.line = newFairTurn(t.a, h.places[0].gate.Line().Queue.Ticket(h, h.alarm))
}

// ask takes the lock if it is free. If that is taken, or others have wanted it only just now, it asks
// for a place in the line.
func (t *mutexTurn) ask() (protocol.Grant, redisexec.Outcome) {
	a, h := t.a, t.a.hold
	if t.line == nil && a.waits && (a.queued || h.session.uses(h.target.Channels[0])) {
		t.getInLine()
	}
	if !t.after {
		return t.request()
	}
	g, out := t.request()
	if t.after = false; out.Err == nil {
		h.places[0].gate.StrangersTook(!g.Held, h.session.now())
	}
	return g, out
}

func (t *mutexTurn) request() (protocol.Grant, redisexec.Outcome) {
	if t.line != nil {
		return t.line.ask()
	}
	return t.a.tryFree()
}

// rest lets one that was refused get into the line at once.
func (t *mutexTurn) rest(d time.Duration) error {
	switch {
	case t.line != nil:
		return t.line.rest(d)
	case t.a.misses == 0:
		return nil
	default:
		return t.a.sleepFor(d)
	}
}

func (t *mutexTurn) end(granted bool) {
	if t.a.given != nil { // its wait has ended as it was given that
		t.inherit()
	}
	if t.line != nil {
		if !granted && t.line.spot.stands() {
			t.bequeath()
		}
		t.line.end(granted)
	}
	if !granted {
		t.a.hold.leave()
	}
}

// bequeath gives its place in the line, and the turn here, to the next waiter of this process that wishes
// for the same. The name goes with it, and so is retired: its owner may come back.
func (t *mutexTurn) bequeath() {
	h := t.a.hold
	ticket, place := h.places[0].ticket, &given{entry: t.line.spot.entry, name: t.line.spot.name}
	h.session.retire(place.name.identity)
	for {
		next := ticket.Reserve(func(w *hold) bool {
			if w.kind != h.kind || w.target.ID != h.target.ID || w.settings.Terms != h.settings.Terms {
				return false
			}
			w.attempt.offered, w.attempt.handedOver = nil, nil // no command is sent for it
			w.attempt.given = place
			return true
		})
		if next == nil {
			return
		}
		t.line.spot.line.Adopt(place.entry, next.Value.ring)
		if ticket.PassTo(next) {
			t.line.spot.entry = nil
			return
		}
	}
}
