package relock

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// The owner that releases the lock gives it to the first in the line, in the same script, and a message tells that one.
// So a waiter may have the lock before it knows. It has it for the lease of a place, which is short, and raises that
// when it knows. What becomes of a place:
//
//	none --asks, and the lock is free--> held
//	none --asks--> waiting --granted--> held, its lease is to be raised
//	                  |-----gone-----> none: it did not answer in its turn, or Redis forgot the line
//	                  \-----failed---> the wait ends with an error
//
// A message may be lost. So one waiter of a process polls for all of its places.

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
		// The owner has the lock already, on terms that do not go with this wish.
		return false, s.Err
	case protocol.EntryGone:
		// However that came about: nothing is to come back under that name.
		a.hold.session.identities.Retire(t.spot.name.Identity)
		t.spot.drop()
		return true, nil
	}
	t.accept()
	// The news came when the lease was over. The lock may be another owner's by now, so it asks anew.
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
		// A try would have to give a place up at once. So it asks for none.
		return a.tryFree()
	}
	g, out := t.spot.enqueue(a.newName())
	// A place is no hold: replicas need not confirm it.
	if out.Err != nil || g.Waits {
		return a.answered(t.spot.name, g, out)
	}
	if g, out = a.answered(t.spot.name, g, out); g.Held {
		out = t.confirm()
		g.Held = out.Err == nil
	}
	return g, out
}

func (t *fairTurn) rest(d time.Duration) error { return t.spot.rest(d) }

func (t *fairTurn) end(bool) { t.spot.end() }

// accept makes a place that has become the lock a hold.
func (t *fairTurn) accept() {
	a, s := t.a, t.spot.standing()
	a.hold.places[0].gate.setAlone(false) // where one stood others may
	// The grant came after the request whose answer said that it still waits, or says that it waits no more. The lease is
	// counted from that request, which is too early rather than too late.
	n := t.spot.name
	n.Token = s.Token
	a.hold.receive(n, s.Proof, a.hold.settings.EntryLease(), 0)
	a.hold.raiseSoon()
	t.spot.drop()
}

// confirm has the replicas confirm a lock that was got: they have not been asked yet. It raises
// the lease before they are waited for. After a failure the grant has been given back.
func (t *fairTurn) confirm() redisexec.Outcome {
	a := t.a
	if a.hold.settings.replicas.N == 0 {
		return redisexec.Outcome{}
	}
	t.spot.ticket.Pass() // others poll meanwhile
	// Replicas may answer late, and the lease of a place is short. The renewal raises it to the whole TTL, and is the
	// command that they confirm.
	ours, out := a.hold.kind.protocol.Renew(a.ctx, a.callOptions(), a.hold.target, t.spot.name.Field, a.hold.settings.TTL)
	switch {
	case out.Err != nil:
	case !ours:
		// The lease ended before the renewal came: another owner may have the lock.
		out.Err = lockerr.ErrNotOnRedis
	case out.Unconfirmed != nil:
		out.Err, out.Permanent = out.Unconfirmed, true
	default:
		if out.Ambiguous {
			a.hold.session.identities.Retire(t.spot.name.Identity)
		}
		a.hold.prove(out.Sent, a.hold.settings.TTL)
		return out
	}
	a.hold.reject()
	return out
}
