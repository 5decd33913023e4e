package relock

import (
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// A read-write lock must not starve either side. Readers that overlap would keep a writer out forever. So a waiting
// writer has a claim on Redis, a key of its own, which keeps new readers out. Readers that already hold the lock go on,
// and may re-enter. The claim has a lease that the writer's requests renew, so a writer that died delays readers only
// for that long. A grant removes the claim, so after a writer both sides have the same chance.
//
// An owner may hold both sides, if it acquired the write side first. Each attempt sees the other side of its owner, and
// never waits for it.

// The turns of a read-write lock. Writers wait as for a plain lock. A writer that finds readers claims the lock on Redis,
// and a moment later no new reader gets in before it. Readers ask all at once.

// writerTurn is the turn of a writer.
type writerTurn struct {
	queue   plainTurn
	claimed *keys.Identity // under which it last claimed the lock; nil: without a claim
}

var _ turn = (*writerTurn)(nil)

// newWriterTurn returns the turn of an attempt to write.
func newWriterTurn(a *attempt) turn {
	t := &writerTurn{queue: plainTurn{a: a}}
	// A fixed owner may start to read in another goroutine while this one waits to write.
	a.over = func() (bool, error) { return false, t.ownerReads() }
	return t
}

// await refuses an owner that reads, because it would wait for itself.
func (t *writerTurn) await() (bool, error) {
	if err := t.ownerReads(); err != nil {
		return false, err
	}
	ready, err := t.queue.await()
	if ready && !t.queue.a.hold.named() { // a fixed owner may have started to read meanwhile
		err = t.ownerReads()
	}
	return ready && err == nil, err
}

// ownerReads returns ErrUpgrade if the owner reads.
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
	claim := a.hold.settings.EntryLease()
	if !a.hold.waits { // nobody would use it
		claim = 0
	}
	g, out := a.hold.kind.writes.Take(a.ctx, a.callOptions(), a.hold.target, n.Field, &a.hold.settings.Terms, claim, a.queued)
	// Any request that may have reached Redis may have made a claim. Only the claim of the last name is recorded. A
	// claim by an older name is withdrawn now, or it would outlive the wait.
	if claim > 0 && (out.Ambiguous || !g.Held && out.Err == nil && keys.SideOf(g.Holder) == keys.Reading) {
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

// withdraw removes the claim, if there is one: without a writer it would keep readers out until its lease ends. Its name
// is retired, because the undo may be sent again at any time. A request with unknown outcome may have acquired the
// lock by that name, for as long as the TTL.
func (t *writerTurn) withdraw() {
	if t.claimed == nil {
		return
	}
	a := t.queue.a
	claim := t.claimed.Of(a.hold.target, a.hold.owner)
	a.hold.undoName(claim, a.hold.settings.TTL)
}

// readerTurn is the turn of a reader: all readers ask at once. Those that have to wait join the local queue. Its first
// reader asks for all of them, and when it may read they follow together.
type readerTurn struct {
	a      *attempt
	mark   uint64 // wake-ups of the queue before the last request, which it may make without the turn
	writes bool   // at its last request its owner held the write side
}

var _ turn = (*readerTurn)(nil)

// newReaderTurn returns the turn of an attempt to read.
func newReaderTurn(a *attempt) turn {
	return &readerTurn{a: a}
}

// A newcomer asks at once, unless other readers of this process wait already: then it waits behind them, and costs Redis
// nothing.
func (t *readerTurn) await() (bool, error) {
	a := t.a
	if writes, err := t.a.hold.other.held(); writes || err != nil {
		// Otherwise a waiter could come between an owner and itself.
		return writes, err // if its owner writes, it does not wait for others
	}
	if t.a.queued || !a.hold.queueEntries[0].queue.Taken() {
		return true, nil
	}
	if !t.a.hold.waits {
		return false, nil
	}
	t.a.contend()
	err := t.standBy(0)
	return err == nil, err
}

// ask passes on the name under which the owner writes, if it does. This is not always the name of its read
// hold, because the client's identity may have changed since.
func (t *readerTurn) ask() (protocol.Grant, redisexec.Outcome) {
	a := t.a
	// A wake-up of the queue after this line is for the next request, even if it comes before this request is answered.
	t.mark = a.hold.queueEntries[0].queue.Wakes()
	n := a.newName()
	// mutant: writer-cannot-read
	writes := a.hold.other.field()
	// The script extends the key, and so the owner's write hold. The other side has to record that before the answer
	// arrives, which may never happen.
	a.hold.other.lengthen(a.hold.settings.TTL)
	t.writes = writes != ""
	g, out := a.hold.kind.reads.Take(a.ctx, a.callOptions(), a.hold.target, n.Field, &a.hold.settings.Terms, writes, a.queued)
	a.doubted(n, g, out)
	if a.answered(n, &g, &out); out.Err == nil {
		a.suspect(g)
	}
	return g, out
}

func (t *readerTurn) rest(d time.Duration) error { return t.standBy(d) }

func (t *readerTurn) end(granted bool) {
	if granted {
		// The lock is open to readers: all waiting readers of this process ask.
		t.a.hold.queueEntries[0].ticket.Open()
	} else {
		t.a.hold.queueEntries[0].ticket.Pass()
	}
}

// standBy waits in the local queue: the first for d, or until there is news since its last request, the
// others until they may read or leave.
func (t *readerTurn) standBy(d time.Duration) error {
	ticket := t.a.hold.queueEntries[0].ticket
	if state, _ := ticket.State(); state != queue.Turn {
		if !ticket.Join() {
			// Its owner now writes: so it need not wait for any other, and asks again at once.
			if writes, _ := t.a.hold.other.held(); writes && !t.writes { // since its last request
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
