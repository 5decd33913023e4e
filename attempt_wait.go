package relock

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/queue"
)

// How an attempt sleeps, and what wakes it: its alarm, which the queue rings when the turn has
// come or a message has arrived; the end of its context; the end of the client.
//
// A message may be lost. So the waiter with the turn always sleeps for a bounded time, and the others of this process
// rely on it. What a waiter does next never depends on what woke it: it checks the state of its ticket, and asks Redis if
// it has the turn.
//
// The alarm has room for one ring, and several rings count as one. Each ring comes after a change of the state
// that the waiter checks. So nothing is missed, and nothing counts twice.

// contend records that the lock is taken. The first time it starts to listen for messages. An attempt for several names may
// wait for another one of them each time, whose holder has not learned yet that it is wanted.
func (a *attempt) contend() {
	first, several := !a.listens, len(a.hold.queueEntries) > 1
	a.queued, a.listens = true, true
	for _, p := range a.hold.queueEntries {
		if first {
			p.listen()
		}
		if first || several {
			p.gate.notifyWanted()
		}
	}
	if !first {
		return
	}
	a.hold.other.notifyWanted()
	a.hold.checkDeadlocks()
	a.record.contended()
}

// listening reports whether the release of the key that a waits for would reach it as a message.
func (a *attempt) listening() bool { return a.hold.queueEntries[a.at].listening() }

// news reports whether there is a reason to try at once, and starts a try.
func (a *attempt) news() bool {
	// Messages go to the queue in which it has the turn.
	ticket := a.ticket
	if ticket == nil {
		ticket = a.hold.queueEntries[a.at].ticket
	}
	return a.settled() || ticket.News() // what is settled leaves the news to the next waiter
}

// settled reports whether there is nothing more to wait for.
func (a *attempt) settled() bool {
	if a.over == nil {
		return false
	}
	settled, _ := a.over()
	return settled
}

// sleepUntil sleeps until there is news, or until due, which may change with a ring of the alarm. If the wait ends, it
// returns the reason.
func (a *attempt) sleepUntil(due func() clock.Instant) error {
	for {
		left := a.hold.session.now().Until(due())
		if left <= 0 {
			// No message came in time. If the answer shows that one should have, the subscription is examined: see suspect.
			a.polled = a.polling
			a.news()
			return nil
		}
		if err := a.sleep(left); err != nil {
			return err
		}
		if a.news() {
			a.polled = false
			a.yield()
			return a.heed()
		}
	}
}

// sleepFor is sleepUntil for d from now.
func (a *attempt) sleepFor(d time.Duration) error {
	until := a.hold.session.now().After(d)
	return a.sleepUntil(func() clock.Instant { return until })
}

// yieldDelay is how long a waiter holds back after a wake-up for each process whose turn is
// before its own. Without it, a process that has just run would win every race against the processes
// that have to be woken first. Shorter sleeps are rounded up to a millisecond by the runtime.
const (
	yieldDelay = time.Millisecond
	mostAhead  = 16
)

// yield holds a woken attempt back while it is the turn of other processes.
func (a *attempt) yield() {
	// Exclusion does not depend on this. It only spreads the wake-ups, so it is a short pause and not a wait.
	if ahead := a.hold.queueEntries[a.at].queue.Ahead(); ahead > 0 {
		clock.Pause(a.ctx, time.Duration(min(ahead, mostAhead))*yieldDelay)
	}
}

// sleep waits for the alarm, or for d unless that is negative. If the wait ends, it returns the reason.
func (a *attempt) sleep(d time.Duration) error {
	var timeout <-chan time.Time
	if d >= 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-a.hold.alarm.C():
		return a.hold.refused()
	case <-timeout:
		return nil
	case <-a.ctx.Done():
		return lockerr.Ended(a.ctx)
	case <-a.hold.session.closing:
		return lockerr.ErrClosed
	}
}

// awaitHere waits for the turn of a ticket in a local queue. false, nil: the attempt does not wait, and
// another waiter has the turn. A local queue costs Redis nothing, so a waiter joins it before it asks for anything.
func (a *attempt) awaitHere(t *queue.Ticket[*hold]) (bool, error) {
	if state, _ := t.State(); state == queue.Turn {
		return true, nil
	}
	if !a.hold.waits {
		return t.TryJoin(), nil
	}
	if t.Join() {
		return true, nil
	}
	// From here on it is a waiter: it listens, and the hook Contended reports it.
	a.contend()
	err := a.awaitTurn(t)
	return err == nil, err
}

// awaitTurn waits until t has the turn, was removed from the queue, or has failed; until a.over reports true;
// or until the wait ends.
func (a *attempt) awaitTurn(t *queue.Ticket[*hold]) error {
	for {
		switch state, err := t.State(); {
		case state == queue.Turn, state == queue.Gone, a.settled():
			return nil
		case state == queue.Failed:
			return err
		}
		err := a.sleep(-1)
		if err == nil && a.over != nil {
			_, err = a.over()
		}
		if err == nil {
			continue
		}
		// If the wait ended after the lock was handed over, Lock returns the lock, because the previous holder has
		// reported the hand-over as done.
		if a.handedOverTo(t) {
			return nil // the hand-over came first, and counts
		}
		return err
	}
}

// handedOverTo leaves the queue with t, and reports whether the lock was handed over before.
func (a *attempt) handedOverTo(t *queue.Ticket[*hold]) bool {
	switch t.Quit() {
	case queue.Turn:
		return a.hold.named()
	case queue.Reserved:
		// A hand-over to it is in progress. Its sender finds that the ticket has left, and undoes the hand-over.
		a.hold.inherited = nil
		if a.hold.offered.identity != nil {
			// The name of the hand-over is in use, with unknown outcome.
			a.hold.session.identities.Retire(a.hold.offered.identity)
			// The caller may wait for the end of the hand-over: until then, this owner may be seen as the holder.
			a.hold.addUndo(a.hold.offered.ended)
		}
	}
	return false
}

// heed waits until the request for a wake-up may be sent: at once, unless the wake-up before was spurious.
// Wake-ups during that time lead to the same request.
func (a *attempt) heed() error {
	due := a.wakes.wake()
	for left := a.hold.session.now().Until(due); left > 0 && !a.settled(); left = a.hold.session.now().Until(due) {
		if err := a.sleep(left); err != nil {
			return err
		}
	}
	a.news()
	return nil
}
