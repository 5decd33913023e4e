package relock

import (
	"time"

	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// What a read-write lock must not do is starve a side. Readers that overlap would keep a writer out for ever. So a writer
// that waits has a claim on Redis, a key of its own, from which new readers stay away; those that read already go on, and
// may add levels. The claim has a lease that the requests of the writer renew: one that dies delays readers for that
// long only. A grant takes the claim away, so after a writer both sides have the same chance.
//
// An owner may have both sides, if it wrote first. Each attempt sees the other side of its owner, and never
// waits for it.

// The turns of a read-write lock. Writers wait as for a plain lock; one that finds readers claims the lock on Redis,
// and a moment later no new reader gets in before it has written. Readers ask all at once.

// writerTurn is the turn of a writer.
type writerTurn struct {
	queue   plainTurn
	claimed *identity.Identity // under which it last claimed the lock; nil: it has not
}

var _ turn = (*writerTurn)(nil)

// newWriterTurn is the turn of an attempt to write.
func newWriterTurn(a *attempt) turn {
	t := &writerTurn{queue: plainTurn{a: a}}
	// With an owner by WithOwner another goroutine may get to read while this one waits to write.
	a.over = func() (bool, error) { return false, t.ownerReads() }
	a.longestSleep = a.hold.settings.EntryPoll()
	return t
}

// await refuses an owner that reads: it would wait for itself.
func (t *writerTurn) await() (bool, error) {
	if err := t.ownerReads(); err != nil {
		return false, err
	}
	ready, err := t.queue.await()
	if ready && !t.queue.a.hold.named() { // a fixed owner may have got to read while it stood there
		err = t.ownerReads()
	}
	return ready && err == nil, err
}

// ownerReads says why the owner cannot write, if it reads.
func (t *writerTurn) ownerReads() error {
	reads, err := t.queue.a.hold.other.held()
	if reads {
		return lockerr.ErrUpgrade
	}
	return err
}

func (t *writerTurn) ask() (protocol.Grant, redisexec.Outcome) {
	a := t.queue.a
	n := a.newName()
	// A try makes no claim: no writer would be there to use it.
	if !a.waits {
		g, out := a.hold.kind.protocol.Acquire(a.ctx, a.callOptions(), a.hold.target, n.Field, &a.hold.settings.Terms)
		return t.queue.answered(n, g, out)
	}
	g, out := a.hold.kind.writes.Take(a.ctx, a.callOptions(), a.hold.target, n.Field, &a.hold.settings.Terms, a.hold.settings.EntryLease())
	// A request that may have come to Redis may have claimed. One claim is remembered, that of the name used last: one by
	// an older name is withdrawn now, or it would outlive the wait.
	if out.Ambiguous || !g.Held && out.Err == nil && keys.SideOf(g.Holder) == keys.Reading {
		if t.claimed != n.Identity {
			t.withdraw()
		}
		t.claimed = n.Identity
	}
	return t.queue.answered(n, g, out)
}

func (t *writerTurn) rest(d time.Duration) error { return t.queue.rest(d) }

// end withdraws the claim of a writer that gives up.
func (t *writerTurn) end(granted bool) {
	if !granted {
		t.withdraw()
	}
	t.queue.end(granted)
}

// withdraw takes the claim back, if there is one. Its name is retired: what it is withdrawn
// with may be sent again at any time. A request in doubt may have got more than a claim by
// that name, for as long as the TTL.
// A claim without a writer would keep readers out until its lease is over.
func (t *writerTurn) withdraw() {
	if t.claimed == nil {
		return
	}
	a := t.queue.a
	a.hold.session.identities.Retire(t.claimed)
	claim := t.claimed.Of(a.hold.target, a.hold.owner)
	a.undo(claim, max(a.hold.settings.TTL, a.hold.settings.EntryLease()), false)
}

// readerTurn is the turn of a reader: all readers ask at once. One that has to wait gets into
// line, the first of which asks for all; when it may read they follow together.
type readerTurn struct {
	a      *attempt
	mark   uint64 // wake-ups of the queue before the last request, which it makes without the turn
	writes bool   // at its last request its owner held the other side, to write
}

var _ turn = (*readerTurn)(nil)

// newReaderTurn is the turn of an attempt to read.
func newReaderTurn(a *attempt) turn {
	a.longestSleep = a.hold.settings.EntryPoll()
	return &readerTurn{a: a}
}

// A newcomer asks at once, unless others of this process wait already: then it waits behind them, and costs Redis
// nothing.
func (t *readerTurn) await() (bool, error) {
	a := t.a
	if writes, err := t.a.hold.other.held(); writes || err != nil {
		// Else a waiter could stand between an owner and itself.
		return writes, err // if its owner writes, no other is before it
	}
	if t.a.queued || !a.hold.places[0].queue.Taken() {
		return true, nil
	}
	if !t.a.waits {
		return false, nil
	}
	t.a.contend()
	err := t.standBy(0)
	return err == nil, err
}

// ask says under which name the owner writes, if it does: not always that which its read
// hold will have, because the client may have got a new identity since.
func (t *readerTurn) ask() (protocol.Grant, redisexec.Outcome) {
	a := t.a
	// What wakes the queue after this line is for the next request, even if it comes before this one is answered.
	t.mark = a.hold.places[0].queue.Wakes()
	n := a.newName()
	// mutant: writer-kept-waiting
	writes := a.hold.other.field()
	// The script lengthens the key, and so what the owner has there to write. The other side has to know it before the
	// answer comes: that may never come.
	a.hold.other.lengthen(a.hold.settings.TTL)
	t.writes = writes != ""
	g, out := a.hold.kind.reads.Take(a.ctx, a.callOptions(), a.hold.target, n.Field, &a.hold.settings.Terms, writes)
	a.doubted(n, g, out)
	if g, out = a.answered(n, g, out); out.Err == nil {
		a.suspect(g)
	}
	return g, out
}

func (t *readerTurn) rest(d time.Duration) error { return t.standBy(d) }

func (t *readerTurn) end(granted bool) {
	if granted {
		// The lock is open to readers: all of this process that wait are told to ask.
		t.a.hold.places[0].ticket.Open()
	} else {
		t.a.hold.places[0].ticket.Pass()
	}
}

// standBy waits in line: the first for d, or until there is news since its last request, the
// others until they may read or leave.
func (t *readerTurn) standBy(d time.Duration) error {
	ticket := t.a.hold.places[0].ticket
	if state, _ := ticket.State(); state != queue.Turn {
		if !ticket.Join() {
			// Its owner has got to write: then it need not wait for any other, and asks again at once.
			if writes, _ := t.a.hold.other.held(); writes && !t.writes { // since it asked
				ticket.Leave()
				return nil
			}
			return t.a.awaitTurn(ticket)
		}
		ticket.Since(t.mark)
		if t.a.news() {
			return nil
		}
	}
	return t.a.sleepFor(d)
}
