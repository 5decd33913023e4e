package acquire

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
// An owner may have both sides, if it wrote first. Each attempt sees the other side of its owner by OtherSide, and never
// waits for it.

// The turns of a read-write lock. Writers wait as for a plain lock; one that finds readers claims the lock on Redis,
// and a moment later no new reader gets in before it has written. Readers ask all at once.

// OtherSide is the other side of a read-write lock, as an attempt on one side sees it.
type OtherSide interface {
	// Held reports whether the same owner holds it; err: it has lost it, and not unlocked it yet.
	Held() (held bool, err error)
	// Field is the name on Redis by which the owner holds it; empty: it has none there.
	Field() string
	// Lengthen says that for so long from now on the owner's field there may live on Redis.
	Lengthen(lease time.Duration)
}

// writerTurn is the turn of a writer.
type writerTurn struct {
	queue   plainTurn
	writes  *protocol.WriteSide
	reads   OtherSide
	claimed *identity.Identity // under which it last claimed the lock; nil: it has not
}

var _ Turn = (*writerTurn)(nil)

// NewWriterTurn is the turn of an attempt to write; reads is the side of the readers.
func NewWriterTurn(a *Attempt, writes *protocol.WriteSide, reads OtherSide) Turn {
	t := &writerTurn{queue: plainTurn{a: a}, writes: writes, reads: reads}
	// With an owner by WithOwner another goroutine may get to read while this one waits to write.
	a.over = func() (bool, error) { return false, t.ownerReads() }
	a.longestSleep = a.terms.EntryPoll()
	return t
}

// await refuses an owner that reads: it would wait for itself.
func (t *writerTurn) await() (bool, error) {
	if err := t.ownerReads(); err != nil {
		return false, err
	}
	ready, err := t.queue.await()
	if ready && !t.queue.a.hold.Named() { // a fixed owner may have got to read while it stood there
		err = t.ownerReads()
	}
	return ready && err == nil, err
}

// ownerReads says why the owner cannot write, if it reads.
func (t *writerTurn) ownerReads() error {
	reads, err := t.reads.Held()
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
		g, out := a.protocol.Acquire(a.ctx, a.callOptions(), a.target, n.Field, a.terms)
		return t.queue.answered(n, g, out)
	}
	g, out := t.writes.Take(a.ctx, a.callOptions(), a.target, n.Field, a.terms, a.terms.EntryLease())
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
	a.env.Identities.Retire(t.claimed)
	claim := t.claimed.Of(a.target, a.hold.Owner())
	a.undo(claim, max(a.terms.TTL, a.terms.EntryLease()), false)
}

// readerTurn is the turn of a reader: all readers ask at once. One that has to wait gets into
// line, the first of which asks for all; when it may read they follow together.
type readerTurn struct {
	a      *Attempt
	reads  *protocol.ReadSide
	writer OtherSide
	mark   uint64 // wake-ups of the queue before the last request, which it makes without the turn
	writes bool   // at its last request its owner held the other side, to write
}

var _ Turn = (*readerTurn)(nil)

// NewReaderTurn is the turn of an attempt to read; writer is the side of the writers.
func NewReaderTurn(a *Attempt, reads *protocol.ReadSide, writer OtherSide) Turn {
	a.longestSleep = a.terms.EntryPoll()
	return &readerTurn{a: a, reads: reads, writer: writer}
}

// A newcomer asks at once, unless others of this process wait already: then it waits behind them, and costs Redis
// nothing.
func (t *readerTurn) await() (bool, error) {
	a := t.a
	if writes, err := t.writer.Held(); writes || err != nil {
		// Else a waiter could stand between an owner and itself.
		return writes, err // if its owner writes, no other is before it
	}
	if t.a.queued || !a.places[0].Queue.Taken() {
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
	t.mark = a.places[0].Queue.Wakes()
	n := a.newName()
	// mutant: writer-kept-waiting
	writes := t.writer.Field()
	// The script lengthens the key, and so what the owner has there to write. The other side has to know it before the
	// answer comes: that may never come.
	t.writer.Lengthen(a.terms.TTL)
	t.writes = writes != ""
	g, out := t.reads.Take(a.ctx, a.callOptions(), a.target, n.Field, a.terms, writes)
	a.doubted(n, g, out, a.terms.TTL)
	if g, out = a.answered(n, g, out); out.Err == nil {
		a.suspect(g)
	}
	return g, out
}

func (t *readerTurn) rest(d time.Duration) error { return t.standBy(d) }

func (t *readerTurn) end(granted bool) {
	if granted {
		// The lock is open to readers: all of this process that wait are told to ask.
		t.a.places[0].Ticket.Open()
	} else {
		t.a.places[0].Ticket.Pass()
	}
}

// standBy waits in line: the first for d, or until there is news since its last request, the
// others until they may read or leave.
func (t *readerTurn) standBy(d time.Duration) error {
	ticket := t.a.places[0].Ticket
	if state, _ := ticket.State(); state != queue.Turn {
		if !ticket.Join() {
			// Its owner has got to write: then it need not wait for any other, and asks again at once.
			if writes, _ := t.writer.Held(); writes && !t.writes { // since it asked
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
