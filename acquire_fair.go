package relock

import (
	"slices"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// fairTurn is the turn of a fair lock: every waiter stands in the queue on Redis, and is told
// when the lock is its own. The turn in the process' queue is only that to poll, for all of
// the process: a waiter that is served passes it on, and what it holds is not handed over here
// but given back.
type fairTurn struct {
	a       *attempt
	fair    *protocol.Fair
	line    *line.Line[*hold] // those of this process that wait for the lock
	entry   *line.Entry       // its place in the queue on Redis, while it has one
	name    name              // by which it has that; without a token yet
	attends bool              // it has been listening since before it had that
}

var _ turn = (*fairTurn)(nil)

func newFairTurn(a *attempt, f *protocol.Fair, l *line.Line[*hold]) turn {
	a.longestSleep = a.hold.settings.EntryPoll()
	t := &fairTurn{a: a, fair: f, line: l}
	a.over = func() (bool, error) { return t.settled(), nil }
	return t
}

// await lets a newcomer ask at once. A waiter with a place on Redis waits until that has become
// the lock, or has ended, or it is its turn to poll and time for it.
func (t *fairTurn) await() (bool, error) {
	for t.entry != nil {
		if s := t.line.Standing(t.entry); s.State > protocol.EntryWaiting {
			return t.settle(s)
		}
		if due, err := t.awaitPoll(); due || err != nil {
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
		a.hold.session.retire(t.name.identity)
		t.dropEntry()
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

// settled reports whether there is a place, and it does not wait any more.
func (t *fairTurn) settled() bool {
	return t.entry != nil && t.line.Standing(t.entry).State > protocol.EntryWaiting
}

// awaitPoll waits until it is this waiter's turn to poll, and time for it. false, nil: the place
// is to be looked at first, there may be news of it.
func (t *fairTurn) awaitPoll() (bool, error) {
	a := t.a
	ticket := a.hold.places[0].ticket
	state, _ := ticket.State()
	if state == queue.Gone && ticket.Join() {
		ticket.Since(t.entry.Mark)
		state = queue.Turn
	}
	if state != queue.Turn {
		return false, a.awaitTurn(ticket)
	}
	var err error
	if a.news() { // of before it had the turn, even
		err = a.heed()
	} else {
		err = a.sleepUntil(t.line.Due)
	}
	return err == nil && !t.settled(), err
}

// ask gets a place on Redis; from then on it polls for all of the process. The grant may
// be told before the answer has come: the ticket is known, and messages that reach this
// process are heard, before the request is sent.
func (t *fairTurn) ask() (protocol.Grant, redisexec.Outcome) {
	if t.entry != nil {
		return t.poll()
	}
	a, h := t.a, t.a.hold
	if !a.waits {
		n := a.newName()
		g, out := t.fair.Acquire(a.ctx, a.effort(), h.target, n.field, &h.settings.Terms)
		a.doubted(n, g, out, h.settings.TTL)
		return a.answered(n, g, out)
	}
	p := t.line
	if !t.attends {
		t.attends = true
		p.Attend()
	}
	t.name = a.newName()
	t.entry = p.Enter(h.session.tickets.Add(1), t.name.field, &h.settings.Terms, h.ring)
	g, out := t.enqueue()
	switch {
	case out.Err != nil:
		t.dropEntry()
	case g.Held:
		t.dropEntry()
		out = t.confirm()
		g.Held = out.Err == nil
	default:
		p.Placed(t.entry, out)
	}
	return g, out
}

// enqueue asks for the lock, or for a place in the queue. Replicas are not waited for yet: a
// place is to be kept meanwhile.
func (t *fairTurn) enqueue() (protocol.Grant, redisexec.Outcome) {
	a, h := t.a, t.a.hold
	n := t.name
	g, out := t.fair.Enqueue(a.ctx, h.session.paced(a.untilClose(), t.entry), h.target, n.field, &h.settings.Terms, t.entry.Ticket)
	if out.Err == nil && !g.Held { // it waits: an undo would take its place away
		if out.Ambiguous {
			h.session.retire(n.identity)
		}
		return a.answered(n, g, out)
	}
	// The lease of the place, and then that of the lock.
	a.doubted(n, g, out, max(h.settings.TTL, 2*h.settings.EntryLease()))
	return a.answered(n, g, out)
}

// mostPolled is how many waiters one script polls for: Redis does nothing else meanwhile.
const mostPolled = 500

// poll keeps the places of all that wait in this process, and learns how they stand.
func (t *fairTurn) poll() (g protocol.Grant, out redisexec.Outcome) {
	a, h, p := t.a, t.a.hold, t.line
	for entries := range slices.Chunk(p.Waiting(), mostPolled) {
		waiters := make([]protocol.Waiter, len(entries))
		effort := a.untilClose()
		for i, e := range entries {
			waiters[i] = protocol.Waiter{Field: e.Field, Terms: e.Terms}
			effort = h.session.paced(effort, e)
		}
		var all []protocol.Standing
		all, g, out = t.fair.Poll(a.ctx, effort, h.target, waiters)
		if out.Err != nil {
			return g, out
		}
		h.places[0].gate.Heard()
		if served := p.Learn(entries, all, out.Sent); served && a.polled {
			p.Suspect() // a message might have told
		}
	}
	return g, out
}

// deafPoll is the longest sleep of a waiter that no message reaches: its place may have been passed over.
const deafPoll = 250 * time.Millisecond

// rest sets the time of the next poll, which is for the waiter that has the turn then.
func (t *fairTurn) rest(d time.Duration) error {
	if t.entry == nil {
		return t.a.sleepFor(d) // it has no place yet: Redis did not answer
	}
	if !t.line.Listening() {
		d = min(d, deafPoll)
	}
	state, _ := t.a.hold.places[0].ticket.State()
	t.line.Schedule(t.entry, d, state == queue.Turn)
	return nil
}

// end passes the turn on, and gives a place up that has not become the lock; or has, by now.
// The name is retired: what it is given up with may be sent again at any time.
func (t *fairTurn) end(bool) {
	a, h := t.a, t.a.hold
	if t.entry != nil {
		h.session.retire(t.name.identity)
		h.undo(t.name, 2*h.settings.EntryLease(), false)
		t.dropEntry()
	}
	if t.attends {
		t.line.Unlisten()
	}
	if ticket := h.places[0].ticket; a.misses > 0 {
		ticket.Leave() // what it was to find out was not answered: the next asks at once
	} else {
		ticket.Pass()
	}
}

// accept makes a place that has become the lock a hold.
func (t *fairTurn) accept() {
	h, s := t.a.hold, t.line.Standing(t.entry)
	n := t.name
	n.token = s.Token
	h.receive(n, s.Proof, h.settings.EntryLease())
	h.mu.Lock()
	h.lease.RaiseSoon(h.session.now())
	h.mu.Unlock()
	t.dropEntry()
}

// confirm has the replicas confirm a lock that was got: they have not been asked yet. It raises
// the lease before they are waited for. After a failure the grant has been given back.
func (t *fairTurn) confirm() redisexec.Outcome {
	a, h := t.a, t.a.hold
	if h.settings.replicas.N == 0 {
		return redisexec.Outcome{}
	}
	h.places[0].ticket.Pass() // others poll meanwhile
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

// dropEntry forgets the place.
func (t *fairTurn) dropEntry() {
	t.line.Remove(t.entry)
	t.entry = nil
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
