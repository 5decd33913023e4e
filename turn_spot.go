package relock

import (
	"slices"
	"time"

	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// The life of a place in the line. It begins with a request that asks for the lock or a place, and is kept by polls, one
// for all places of this process. It ends in one of three ways: it becomes the lock, by a message or found by a poll; it
// is passed over because no one answered in its turn; or the waiter gives it up, and Redis is told.
//
// A place is known here before the request for it is sent, so a message cannot come too early. One that comes when the
// place is known no more finds no waiter. That does no harm: a place that is given up has its name undone on
// Redis, which ends the lock as well if the place has become that.

// spot is what one attempt has in the line of one key: its place on Redis, while it has one, and a ticket
// of the queue of this process for the turn to poll, which one waiter does for all of them.
type spot struct {
	a       *attempt
	target  *keys.Set            // the key
	line    *line.Line           // the places of this process
	ticket  *queue.Ticket[*hold] // for the turn to poll
	entry   *line.Entry          // the place, while it has one
	name    identity.Name        // by which it has that; without a token yet
	attends bool                 // it has been listening since before it had that
}

// newSpot is that of a at its place p, whose key alone is t. It polls when ticket has the turn.
func newSpot(a *attempt, p place, t *keys.Set, ticket *queue.Ticket[*hold]) *spot {
	a.longestSleep = a.hold.settings.EntryPoll()
	a.ticket = ticket
	s := &spot{a: a, target: t, line: p.gate.line(), ticket: ticket}
	// A waiter that sleeps for its turn to poll need not have it, if the place is settled before.
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
func (s *spot) enqueue(n identity.Name) (protocol.Grant, redisexec.Outcome) {
	a := s.a
	if !s.attends {
		s.attends = true
		s.line.Attend()
	}
	// The order matters: heard first, known second, asked third.
	s.name = n
	s.entry = s.line.Enter(a.hold.session.tickets.Add(1), n.Field, &a.hold.settings.Terms, a.hold.alarm.Ring)
	g, out := a.hold.kind.lined.Enqueue(a.ctx, a.hold.session.pacedFor(a.untilClose(), s.entry), s.target, n.Field, &a.hold.settings.Terms, s.entry.Ticket)
	switch {
	case out.Err == nil && g.Waits: // an undo would take its place away
		// It has a place. Of a request that was sent twice no copy may come later with another meaning.
		if out.Ambiguous {
			a.hold.session.identities.Retire(n.Identity)
			s.name.Late = true
		}
		s.line.Placed(s.entry, g.Token, out)
	default: // the lock, nothing, or a line that is not to be had
		if out.Ambiguous {
			a.hold.session.identities.Retire(n.Identity)
			if n.Late = out.Late(); !g.Held {
				s.undo(n, max(a.hold.settings.TTL, 2*a.hold.settings.EntryLease()), out.Unobserved)
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
	// It had passed the turn on, to rest. Now it polls again if no one else does; what has come since its last look at the
	// place counts as news.
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
	a := s.a
	for entries := range slices.Chunk(s.line.Waiting(), mostPolled) {
		waiters := make([]protocol.Waiter, len(entries))
		options := a.untilClose()
		for i, e := range entries {
			waiters[i] = protocol.Waiter{Field: e.Field, Terms: e.Terms, Last: s.line.Standing(e).Token}
			options = a.hold.session.pacedFor(options, e)
		}
		var all []protocol.Standing
		all, g, out = a.hold.kind.lined.Poll(a.ctx, options, s.target, waiters)
		if out.Err != nil {
			return g, out
		}
		// late: a grant that a message should have told was found by this poll.
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
	// While no message can reach it, polls are all that there is.
	if !s.line.Listening() {
		d = min(d, deafPoll)
	}
	s.line.Schedule(s.entry, d, state == queue.Turn)
	return nil
}

// end passes the turn to poll on, and gives a place up that has not become the lock; or has, by now.
// The name is retired: what it is given up with may be sent again at any time.
func (s *spot) end() {
	// A place that has become the lock by now is given up like one that waits: the undo ends either.
	if s.entry != nil {
		s.giveUp()
	}
	if s.attends {
		s.line.Unlisten()
	}
	// Pass leaves the next waiter asleep until the next poll is due, Leave wakes it.
	if s.a.misses > 0 {
		s.ticket.Leave() // what it was to find out was not answered: the next asks at once
	} else {
		s.ticket.Pass()
	}
}

// giveUp gives the place up, or the lock if it has become that.
func (s *spot) giveUp() {
	a := s.a
	a.hold.session.identities.Retire(s.name.Identity)
	// A poll on its way may have renewed the place once more: it lives for one lease after that.
	// mutant: fair-place-kept
	s.undo(s.name, 2*a.hold.settings.EntryLease(), false)
	s.drop()
}

// undo has the place and the lock given up that n, which has been retired, may have.
func (s *spot) undo(n identity.Name, lasts time.Duration, unobserved bool) {
	a := s.a
	a.hold.undo(a.hold.kind.lined, s.target, n, lasts, unobserved)
}

// drop forgets the place.
func (s *spot) drop() {
	s.line.Remove(s.entry)
	s.entry = nil
}

// pacedFor is opts for a command that keeps the place of entry, among others: several copies have to fit into
// the lease of the briefest place. A ticket that comes meanwhile counts only while the answer before is not older.
func (s *session) pacedFor(opts redisexec.CallOptions, entry *line.Entry) redisexec.CallOptions {
	if paced := s.paced(opts, entry.Terms.EntryLease()); opts.Patience == 0 || paced.MaxPatience < opts.MaxPatience {
		return paced
	}
	return opts
}
