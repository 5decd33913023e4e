package relock

import (
	"errors"
	"time"

	"github.com/relock-go/relock/internal/gate"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// The turns of a read-write lock, and what its two sides have to do with each other in one
// process. Writers wait as for a plain lock; one that finds readers claims the lock on Redis,
// and a moment later no new reader gets in before it has written. Readers ask all at once.

// writerTurn is the turn of a writer.
type writerTurn struct {
	queue   plainTurn
	writes  *protocol.WriteSide
	claimed *identity.Identity // under which it last claimed the lock; nil: it has not
}

var _ turn = (*writerTurn)(nil)

func newWriterTurn(a *attempt, writes *protocol.WriteSide) turn {
	t := &writerTurn{queue: plainTurn{a: a}, writes: writes}
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
	switch err := t.queue.a.hold.other.usable(); {
	case err == nil:
		return ErrUpgrade
	case !errors.Is(err, errAgain):
		return err
	}
	return nil
}

func (t *writerTurn) ask() (protocol.Grant, redisexec.Outcome) {
	a, h := t.queue.a, t.queue.a.hold
	n := a.newName()
	if !a.waits {
		g, out := h.kind.protocol.Acquire(a.ctx, a.effort(), h.target, n.Field, &h.settings.Terms)
		return t.queue.answered(n, g, out)
	}
	g, out := t.writes.Take(a.ctx, a.effort(), h.target, n.Field, &h.settings.Terms, h.settings.EntryLease())
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
func (t *writerTurn) withdraw() {
	if t.claimed == nil {
		return
	}
	h := t.queue.a.hold
	h.session.identities.Retire(t.claimed)
	claim := t.claimed.Of(h.target, h.owner)
	h.undo(claim, max(h.settings.TTL, h.settings.EntryLease()), false)
}

// readerTurn is the turn of a reader: all readers ask at once. One that has to wait gets into
// line, the first of which asks for all; when it may read they follow together.
type readerTurn struct {
	a      *attempt
	reads  *protocol.ReadSide
	mark   uint64 // wake-ups of the queue before the last request, which it makes without the turn
	writes bool   // at its last request its owner held the other side, to write
}

var _ turn = (*readerTurn)(nil)

func newReaderTurn(a *attempt, reads *protocol.ReadSide) turn {
	a.longestSleep = a.hold.settings.EntryPoll()
	return &readerTurn{a: a, reads: reads}
}

func (t *readerTurn) await() (bool, error) {
	h := t.a.hold
	switch err := h.other.usable(); {
	case err == nil:
		return true, nil // its owner writes: no other is before it
	case !errors.Is(err, errAgain):
		return false, err
	}
	if t.a.queued || !h.places[0].queue.Taken() {
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
	a, h := t.a, t.a.hold
	t.mark = h.places[0].queue.Wakes()
	n := a.newName()
	writes := ""
	if writer := h.other.hold(); writer != nil {
		writer.mu.Lock()
		writes = writer.name.Field
		writer.mu.Unlock()
		h.other.lengthen(h.settings.TTL)
	}
	t.writes = writes != ""
	g, out := t.reads.Take(a.ctx, a.effort(), h.target, n.Field, &h.settings.Terms, writes)
	a.doubted(n, g, out, h.settings.TTL)
	if g, out = a.answered(n, g, out); out.Err == nil {
		a.suspect(g)
	}
	return g, out
}

func (t *readerTurn) rest(d time.Duration) error { return t.standBy(d) }

func (t *readerTurn) end(granted bool) {
	if granted {
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
			if !t.writes && t.a.hold.other.usable() == nil { // since it asked: see wakeOwner
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

// otherSide is the other side of a read-write lock, as a hold on one side sees it: the same
// owner may have a hold there, and waiters there are not told by messages of what happens in
// this process. The zero otherSide is that of a lock with one side: nothing is there.
type otherSide struct {
	session *session
	id      gate.ID // of the gate there
	owner   keys.Owner
}

// newOtherSide is the other side of the lock that o wants t of.
func newOtherSide(c *session, t *keys.Set, o keys.Owner) otherSide {
	switch t.Side {
	case keys.Writing:
		return otherSide{session: c, id: gate.ID{Key: t.Keys[0], Side: keys.Reading}, owner: o}
	case keys.Reading:
		return otherSide{session: c, id: gate.ID{Key: t.Keys[0], Side: keys.Writing}, owner: o}
	default:
		return otherSide{}
	}
}

// gate returns the gate there, or nil if nothing of this process uses it.
func (s *otherSide) gate() *gate.Gate[*hold] {
	if s.session == nil {
		return nil
	}
	return s.session.registry.Gate(s.id)
}

// hold returns the hold of the same owner there, or nil.
func (s *otherSide) hold() *hold {
	if g := s.gate(); g != nil {
		return g.Find(s.owner)
	}
	return nil
}

// unlock is the method that gives a hold there back.
func (s *otherSide) unlock() string {
	if s.id.Side == keys.Reading {
		return "RUnlock"
	}
	return "Unlock"
}

// shared reports whether holds on this side do not keep each other out: those of readers.
func (s *otherSide) shared() bool { return s.id.Side == keys.Writing }

// usable says how the owner's hold there stands: nil if it is held, an ErrLost if it was lost,
// and errAgain if there is none.
func (s *otherSide) usable() error {
	if h := s.hold(); h != nil {
		return h.usable()
	}
	return errAgain
}

// wake has those look again who want the other side: a hold has ended here, and no message
// tells of it.
func (s *otherSide) wake() {
	if g := s.gate(); g != nil {
		g.Queue.Wake()
	}
}

// released is wake after a release that was answered, unless a message of it reaches them.
func (s *otherSide) released(answer protocol.Released) {
	if g := s.gate(); g != nil && (answer.Heard < 0 || !answer.Ours || !g.Listening()) {
		g.Queue.Wake()
	}
}

// rivals is how many others of this process have to have had a chance, besides those in the
// queue, before the next of the queue asks: after each writer it is the readers' turn. So it
// is when the writer itself reads on.
func (s *otherSide) rivals() int {
	if s.id.Side != keys.Reading {
		return 0
	}
	if g := s.gate(); g != nil && (g.Queue.Taken() || g.Find(s.owner) != nil) {
		return 1
	}
	return 0
}

// lengthen tells the write hold of the same owner, if there is one, that for lease from now on
// its field may live on Redis: what its owner reads with keeps the key, and all that is in it.
func (s *otherSide) lengthen(lease time.Duration) {
	if s.id.Side != keys.Writing {
		return
	}
	if writer := s.hold(); writer != nil {
		writer.mu.Lock()
		writer.lease.Lengthen(lease)
		writer.mu.Unlock()
	}
}

// wakeOwner has the same owner look again where it waits for the other side, because it has
// got this one. Only a fixed owner can wait for one side and get hold of the other. If it
// writes now, no other is before it as a reader, wherever it stands in line; if it reads, it
// cannot get to write.
func (s *otherSide) wakeOwner() {
	waiter := s.hold()
	if waiter == nil {
		return
	}
	if s.id.Side == keys.Writing {
		if g := s.gate(); g != nil {
			g.Queue.Wake()
		}
		waiter.ring() // it may not have the turn
		return
	}
	waiter.mu.Lock()
	defer waiter.mu.Unlock()
	for _, p := range waiter.places {
		if state, _ := p.ticket.State(); state != queue.Waiting {
			p.queue.Wake()
			continue
		}
		p.ticket.Leave()
		waiter.ring()
	}
}
