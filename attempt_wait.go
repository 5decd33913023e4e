package relock

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/queue"
)

// How an attempt sleeps, and what wakes it: its alarm, which the queue rings when the turn has
// come or a message is there; the end of its context; the end of the client.
//
// A message may be lost. So the waiter that has the turn always sleeps for a bounded time; the others of this process
// rely on it. What a waiter does next never depends on what woke it: it looks at its place, and asks Redis if it has
// the turn.
//
// A wake-up is a bell. The alarm has room for one ring, and more rings before it is heard are one. What has happened is
// read from the state that was changed before the ring. So nothing is missed, and nothing counts twice.

// contend notes that the lock is taken and, at the first time, starts to listen for messages.
func (a *attempt) contend() {
	a.queued = true
	if a.listens {
		return
	}
	a.listens = true
	for _, p := range a.hold.places {
		p.listen()
	}
	a.record.contended()
}

// listening reports whether a release of the key that a waits for would reach it as a message.
func (a *attempt) listening() bool { return a.hold.places[a.at].listening() }

// news reports whether there is a reason to try at once, and starts a try.
func (a *attempt) news() bool {
	// Of the queue in which it has the turn: that is the one to which messages are given.
	ticket := a.ticket
	if ticket == nil {
		ticket = a.hold.places[a.at].ticket
	}
	return ticket.News() || a.settled()
}

// settled reports whether there is no more to wait for.
func (a *attempt) settled() bool {
	if a.over == nil {
		return false
	}
	settled, _ := a.over()
	return settled
}

// sleepUntil sleeps until there is news, due has come, which may change with a ring of the
// alarm, or the wait is over, which it returns.
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
// before its own. A process that has just run would win every race against those that
// have to be woken first. Shorter sleeps are rounded up to a millisecond by the runtime.
const (
	yieldDelay = time.Millisecond
	mostAhead  = 16
)

// yield holds a woken attempt back while it is the turn of other processes.
func (a *attempt) yield() {
	// Nothing of exclusion depends on that. It only spreads the wake-ups, so it is a short pause and not a wait.
	if ahead := a.hold.places[a.at].queue.Ahead(); ahead > 0 {
		clock.Pause(a.ctx, time.Duration(min(ahead, mostAhead))*yieldDelay)
	}
}

// sleep waits for the alarm, for d unless that is negative, or for the end of the wait,
// which it returns.
func (a *attempt) sleep(d time.Duration) error {
	var timeout <-chan time.Time
	if d >= 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-a.hold.alarm.C():
		return nil
	case <-timeout:
		return nil
	case <-a.ctx.Done():
		return lockerr.Ended(a.ctx)
	case <-a.hold.session.closing:
		return lockerr.ErrClosed
	}
}

// awaitHere waits for the turn of a ticket in a queue of this process. false, nil: it does not wait, and
// another waiter is there.
// A queue of this process costs Redis nothing, so a waiter stands there before it asks for anything.
func (a *attempt) awaitHere(t *queue.Ticket[*hold]) (bool, error) {
	if state, _ := t.State(); state == queue.Turn {
		return true, nil
	}
	if !a.waits {
		return t.TryJoin(), nil
	}
	if t.Join() {
		return true, nil
	}
	// From here on it is a waiter for all: it listens, and is told of as contended.
	a.contend()
	err := a.awaitTurn(t)
	return err == nil, err
}

// awaitTurn waits until t has the turn, or was let out of the line, or failed, or a.over says so,
// or the wait is over.
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
		// The wait has ended, and the lock has come before that. Then Lock returns it: the owner before it has
		// told that it is given.
		if a.handedOverTo(t) {
			return nil // a hand-over came first: it counts
		}
		return err
	}
}

// handedOverTo leaves the line with t, and reports whether the lock was handed over before.
func (a *attempt) handedOverTo(t *queue.Ticket[*hold]) bool {
	switch t.Quit() {
	case queue.Turn:
		return a.hold.named()
	case queue.Reserved:
		// A hand-over was sent to it, and has not arrived. Who sent it finds that the ticket has left, and hands on.
		a.hold.given = nil
		if a.hold.offered.identity != nil {
			// The name that the hand-over carries is in use, in an unknown state.
			a.hold.session.identities.Retire(a.hold.offered.identity)
			// The caller may wait for that: until it has ended, the lock may be seen as held by this owner.
			a.hold.undos.add(a.hold.offered.ended)
		}
	}
	return false
}

// heed is what an attempt does about a wake-up before it asks: after some that were in vain it
// waits. What comes meanwhile is for the same request.
func (a *attempt) heed() error {
	// Any program may publish on the channel. After wake-ups that were in vain the next request waits a little, so that
	// messages without a meaning do not become requests: attempt_vain.go says for how long.
	if !a.wakes.woken() {
		return nil
	}
	due := a.wakes.due()
	for left := a.hold.session.now().Until(due); left > 0 && !a.settled(); left = a.hold.session.now().Until(due) {
		if err := a.sleep(left); err != nil {
			return err
		}
	}
	a.news()
	return nil
}

// leave gives up the places in the queues; the next in each tries at once.
// What it knew is lost with it: so the next waiter does not rely on that, and asks.
func (a *attempt) leave() {
	for _, p := range a.hold.places {
		p.ticket.Leave()
	}
}

// undo has what a may have on Redis by the name n, which has been retired, given up in the background. It
// ends by itself within lasts.
func (a *attempt) undo(n identity.Name, lasts time.Duration, unobserved bool) {
	a.hold.undo(a.hold.kind.protocol, a.hold.target.Lacking(n.Absent), n, lasts, unobserved)
}
