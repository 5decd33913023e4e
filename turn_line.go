package relock

import (
	"slices"
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// An entry in the line begins with a request for the lock or an entry, and is kept alive by polls, one
// for all entries of this process. It ends in one of three ways: it is granted the lock, by a message or a poll; it
// is skipped because its process did not answer; or the waiter gives it up, and the name is undone on Redis.
//
// The entry is registered here before the request for it is sent, so no message can come too early. A message after
// the end of the entry finds no waiter. That is harmless: the undo of the entry also ends the lock that it may have
// been granted.

// lineWaiter is one attempt in the line of one key: its entry, while it has one, and a ticket of the local queue for
// the turn to poll, which one waiter does for all.
type lineWaiter struct {
	a       *attempt
	target  *keys.Set            // the key
	line    *line.Line           // the entries of this process
	ticket  *queue.Ticket[*hold] // for the turn to poll
	entry   *line.Entry          // nil while there is none
	name    keys.Name            // of the entry; without a token yet
	attends bool                 // it has been subscribed since before the entry
	polled  bool                 // its last request was a poll
}

// newLineWaiter returns the waiter of a with the queue entry p, for the one key of t. It polls when ticket has the turn.
func newLineWaiter(a *attempt, p queueEntry, t *keys.Set, ticket *queue.Ticket[*hold]) *lineWaiter {
	a.ticket = ticket
	w := &lineWaiter{a: a, target: t, line: p.gate.line().Line, ticket: ticket}
	// A waiter that sleeps until its turn to poll no longer needs the turn once the entry is settled.
	a.over = func() (bool, error) { return w.settled(), nil }
	return w
}

// hasEntry reports whether there is an entry.
func (w *lineWaiter) hasEntry() bool { return w.entry != nil }

// status returns the state of the entry.
func (w *lineWaiter) status() protocol.EntryStatus { return w.line.EntryStatus(w.entry) }

// settled reports whether there is an entry that no longer waits.
func (w *lineWaiter) settled() bool {
	return w.entry != nil && w.status().State > protocol.EntryWaiting
}

// enqueue asks for the lock or an entry in the line, under the name n. The message of a grant may come before the
// answer: so the ticket is registered before the request is sent, and subscriptions that still exist are used. It
// does not wait for replicas, because the entry has to be kept alive meanwhile.
func (w *lineWaiter) enqueue(n keys.Name) (protocol.Grant, redisexec.Outcome) {
	a := w.a
	if !w.attends {
		w.attends = true
		w.line.Attend()
	}
	// The order matters: subscriptions first, then the entry, then the request.
	w.name, w.polled = n, false
	w.entry = w.line.Enter(a.hold.session.tickets.Add(1), n.Field, &a.hold.settings.Terms, a.hold.alarm.Ring)
	g, out := a.hold.kind.lined.Enqueue(a.ctx, a.hold.session.pacedFor(a.untilClose(), w.entry), w.target, n.Field, &a.hold.settings.Terms, w.entry.Ticket)
	switch {
	case out.Err == nil && g.Waits: // an undo would remove the entry
		// It has an entry. If the request was sent twice, no delayed copy may have another effect.
		if out.Ambiguous {
			a.hold.session.identities.Retire(n.Identity)
			w.name.Late = true
		}
		w.line.Placed(w.entry, g.Token, out)
	default: // the lock, nothing, or no permission for the line
		if out.Ambiguous {
			a.hold.session.identities.Retire(n.Identity)
			if w.name.Late = out.Late(); !g.Held {
				w.undo()
			}
		}
		w.drop()
	}
	return g, out
}

// awaitPoll waits until it is this waiter's turn to poll and a poll is due. false, nil: check the entry first, because
// its state may have changed.
func (w *lineWaiter) awaitPoll() (bool, error) {
	a := w.a
	state, _ := w.ticket.State()
	// It passed the turn on in rest. Now it polls again if no other waiter does. Messages since its last check of the
	// entry count as news.
	if state == queue.Gone && w.ticket.Join() {
		w.ticket.Since(w.entry.Mark)
		state = queue.Turn
	}
	if state != queue.Turn {
		return false, a.awaitTurn(w.ticket)
	}
	var err error
	if a.news() { // including messages from before it had the turn
		err = a.heed()
	} else {
		err = a.sleepUntil(w.line.Due)
	}
	return err == nil && !w.settled(), err
}

// mostPolled is how many entries one script polls for, because Redis does nothing else meanwhile.
const mostPolled = 500

// poll keeps the entries of all waiters of this process alive, and returns their states.
func (w *lineWaiter) poll() (g protocol.Grant, out redisexec.Outcome) {
	a := w.a
	w.polled = true
	for entries := range slices.Chunk(w.line.Waiting(), mostPolled) {
		waiters := make([]protocol.Waiter, len(entries))
		options := a.untilClose()
		for i, e := range entries {
			waiters[i] = protocol.Waiter{Field: e.Field, Terms: e.Terms, Last: w.line.EntryStatus(e).Token}
			options = a.hold.session.pacedFor(options, e)
		}
		var all []protocol.EntryStatus
		all, g, out = a.hold.kind.lined.Poll(a.ctx, options, w.target, waiters)
		if out.Err != nil {
			return g, out
		}
		// late: this poll returned a grant that a message should have announced.
		if late := w.line.Update(entries, all, out.Sent); late && a.polled {
			w.line.Missed()
		}
	}
	return g, out
}

// pollWithoutMessages is the longest sleep of a waiter that cannot receive messages: its entry may have been skipped.
const pollWithoutMessages = 250 * time.Millisecond

// rest sets the time of the next poll, for the waiter that has the turn then.
func (w *lineWaiter) rest(d time.Duration) error {
	state, _ := w.ticket.State()
	if w.entry == nil { // Redis did not answer, or the user has no permission for the line
		if state == queue.Gone {
			w.ticket.Join() // for the messages
		}
		return w.a.sleepFor(d)
	}
	// While no message can reach the waiter, it depends on polls.
	if !w.line.Listening() {
		d = min(d, pollWithoutMessages)
	}
	w.line.Schedule(w.entry, d, w.polled && state == queue.Turn)
	return nil
}

// end passes on the turn to poll, and gives up an entry that was not accepted as a hold, even if it has been granted
// meanwhile. The name is retired, because the command that gives it up may be sent again at any time.
func (w *lineWaiter) end() {
	// The undo ends an entry that waits as well as one that has been granted.
	if w.entry != nil {
		w.giveUp()
	}
	if w.attends {
		w.line.Unlisten()
	}
	// Pass leaves the next waiter asleep until the next poll is due, Leave wakes it.
	if w.a.misses > 0 {
		w.ticket.Leave() // its poll was not answered: the next waiter asks at once
	} else {
		w.ticket.Pass()
	}
}

// giveUp gives up the entry, or the lock if the entry was granted.
func (w *lineWaiter) giveUp() {
	// mutant: fair-entry-left
	w.undo()
	w.drop()
}

// gone forgets an entry that Redis does not have any more. A delayed copy of its request may restore it, or get the lock.
func (w *lineWaiter) gone() {
	w.a.hold.session.identities.Retire(w.name.Identity)
	if w.name.Late {
		w.undo()
	}
	w.drop()
}

// undo releases, in the background, the entry and the lock that its name may have. A poll in flight may renew the
// entry once more, and a delayed copy of the request may get the lock for the whole TTL.
func (w *lineWaiter) undo() {
	lasts := max(w.a.hold.settings.TTL, 2*w.a.hold.settings.EntryLease())
	w.a.hold.undo(w.a.hold.kind.lined, w.target, w.name, lasts, false)
}

// drop forgets the entry.
func (w *lineWaiter) drop() {
	w.line.Remove(w.entry)
	w.entry = nil
}

// pacedFor returns opts for a command that keeps entry alive, among others. Several copies have to fit into
// the shortest lease of an entry. A grant that arrives meanwhile counts only if the previous answer is not older than that.
func (s *session) pacedFor(opts redisexec.CallOptions, entry *line.Entry) redisexec.CallOptions {
	if paced := s.paced(opts, entry.Terms.EntryLease()); opts.Patience == 0 || paced.MaxPatience < opts.MaxPatience {
		return paced
	}
	return opts
}
