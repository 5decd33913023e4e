package relock

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// The script that releases the lock grants it to the first entry of the line, and a message notifies the waiter.
// So a waiter may have the lock before it is notified. It has the lock for the short lease of an entry, and extends that
// when it is notified. The states of an entry:
//
//	none --asks, and the lock is free--> held
//	none --asks--> waiting --granted--> held, its lease is to be extended
//	                  |-----gone-----> none: it was skipped, or Redis lost the line
//	                  \-----failed---> the wait ends with an error
//
// A message may be lost. So one waiter of a process polls for all of its entries.

// fairTurn is the turn of a waiter with an entry in the line: each waiter of a FairMutex or a Semaphore, and the first
// local waiter of a Mutex. A FairMutex has no local hand-over: its lock is released to the line. So is a permit.
type fairTurn struct {
	a      *attempt
	waiter *lineWaiter
}

var _ turn = (*fairTurn)(nil)

// newFairTurn returns the turn of an attempt that polls when ticket, of the queue for polls, has the turn.
func newFairTurn(a *attempt, ticket *queue.Ticket[*hold]) *fairTurn {
	return &fairTurn{a: a, waiter: newLineWaiter(a, a.hold.queueEntries[0], a.hold.target, ticket)}
}

// await lets a newcomer ask at once. A waiter with an entry waits until the entry is granted or ends, or until it is
// this waiter's turn to poll and a poll is due.
func (t *fairTurn) await() (bool, error) {
	for t.waiter.hasEntry() {
		if s := t.waiter.status(); s.State > protocol.EntryWaiting {
			return t.settle(s)
		}
		if due, err := t.waiter.awaitPoll(); due || err != nil {
			return due, err
		}
	}
	return true, nil
}

// settle acts on the end of the entry. true: the hold has a name, and the lock; or the entry is gone, and the attempt
// asks again.
func (t *fairTurn) settle(s protocol.EntryStatus) (bool, error) {
	a := t.a
	switch s.State {
	case protocol.EntryFailed:
		// The owner already has the lock, with options that do not fit this request.
		return false, s.Err
	case protocol.EntryGone:
		t.waiter.gone()
		return true, nil
	}
	t.accept()
	// If the lease ended before the grant arrived, another owner may have the lock, and the attempt asks again.
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

// ask requests an entry on Redis. From then on it polls for all entries of the process.
func (t *fairTurn) ask() (protocol.Grant, redisexec.Outcome) {
	a := t.a
	switch {
	case t.waiter.hasEntry():
		return t.waiter.poll()
	case !a.hold.waits:
		// A try would have to remove an entry at once, so it asks for none.
		return a.tryFree()
	}
	g, out := t.waiter.enqueue(a.newName())
	if a.answered(t.waiter.name, &g, &out); g.Held { // an entry is no hold: replicas need not confirm it
		a.hold.queueEntries[0].gate.seesLine(lineUnknown, out.Sent)
		out = t.confirm()
		g.Held = out.Err == nil
	}
	return g, out
}

func (t *fairTurn) rest(d time.Duration) error { return t.waiter.rest(d) }

func (t *fairTurn) end(bool) { t.waiter.end() }

// accept turns a granted entry into a hold.
func (t *fairTurn) accept() {
	a, s := t.a, t.waiter.status()
	gate := a.hold.queueEntries[0].gate // the line may have other entries
	gate.seesLine(lineTaken, s.Proof)
	// The grant happened after the last answered poll, or was its answer. The lease counts from that request, which is
	// too early rather than too late.
	n := t.waiter.name
	n.Token = s.Token
	a.hold.receive(n, s.Proof, a.hold.settings.EntryLease(), 0)
	a.hold.raiseSoon()
	t.waiter.drop()
}

// confirm makes the replicas confirm a granted lock, which they were not asked to do yet. It extends
// the lease at the same time. After a failure the lock has been released.
func (t *fairTurn) confirm() redisexec.Outcome {
	a := t.a
	if a.hold.settings.replicas.N == 0 {
		return redisexec.Outcome{}
	}
	t.waiter.ticket.Pass() // others poll meanwhile
	// Replicas may answer late, and the lease of an entry is short. The renewal extends it to the whole TTL, and is the
	// command that the replicas confirm.
	ours, out := a.hold.kind.protocol.Renew(a.ctx, a.callOptions(), a.hold.target, t.waiter.name.Field, a.hold.settings.TTL)
	switch {
	case out.Err != nil:
	case !ours:
		// The lease ended before the renewal arrived: another owner may have the lock.
		out.Err = lockerr.ErrNotOnRedis
	case out.Unconfirmed != nil:
		out.Err, out.Permanent = out.Unconfirmed, true
	default:
		if out.Ambiguous {
			a.hold.session.identities.Retire(t.waiter.name.Identity)
		}
		a.hold.prove(out.Sent, a.hold.settings.TTL)
		return out
	}
	a.hold.reject()
	return out
}
