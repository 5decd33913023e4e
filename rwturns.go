package relock

import (
	"errors"
	"time"

	"github.com/relock-go/relock/internal/queue"
)

// claiming is the way of those who want to write: that of a plain lock. Who finds readers
// claims the lock on Redis, and a moment later nobody new may read before he has written.
type claiming struct {
	inTurn
	*writeSide
}

func (claiming) longest(s *settings) time.Duration { return s.entryPoll() }

// line refuses an owner that reads: it would wait for itself.
func (c claiming) line(w *wait) (bool, error) {
	if err := w.reads(); err != nil {
		return false, err
	}
	ready, err := c.inTurn.line(w)
	if ready && !w.named() { // a fixed owner may have got to read while it stood there
		err = w.reads()
	}
	return ready && err == nil, err
}

// reads says why the owner cannot write, if it wants to and reads.
func (w *wait) reads() error {
	if w.target.kind.side != writing {
		return nil
	}
	switch err := w.beside(reading); {
	case err == nil:
		return ErrUpgrade
	case !errors.Is(err, errAgain):
		return err
	}
	return nil
}

func (c claiming) request(w *wait, identity *identity, field string) (grant, outcome) {
	if !w.waits {
		return c.acquire(w.ctx, w.effort(), w.target, field, w.settings)
	}
	g, out := c.take(w.ctx, w.effort(), w.target, field, w.settings, w.settings.entryLease())
	if out.doubt || !g.held && out.err == nil && sideOf(g.holder) == reading {
		if w.claimed != identity {
			c.withdraw(w)
		}
		w.claimed = identity
	}
	return g, out
}

// withdraw takes the claim of w back, if it has one. Its name is retired: what it is withdrawn
// with may be sent again at any time. A request in doubt may have got more than a claim by
// that name, for as long as the TTL.
func (claiming) withdraw(w *wait) {
	if w.claimed == nil {
		return
	}
	w.client.retire(w.claimed)
	w.undo(w.target.field(w.claimed, w.owner), max(w.settings.ttl, w.settings.entryLease()), false)
}

// rivals are the readers of this process: after each writer it is their turn. So it is when
// the writer itself reads on.
func (claiming) rivals(h *hold) int {
	g := h.client.registry.gate(gateID{key: h.target.keys[0], side: reading})
	if g != nil && (g.queue.Taken() || g.find(h.owner) != nil) {
		return 1
	}
	return 0
}

// end withdraws the claim of a writer who gives up.
func (c claiming) end(w *wait, granted bool) {
	if !granted {
		c.withdraw(w)
	}
	c.inTurn.end(w, granted)
}

// together is the way of those who want to read: all of them ask at once. Who has to wait
// gets into line, the first of which asks for all; when he may read they follow together.
type together struct {
	inTurn
	*readSide
}

func (together) longest(s *settings) time.Duration { return s.entryPoll() }

func (together) line(w *wait) (bool, error) {
	switch err := w.beside(writing); {
	case err == nil:
		return true, nil // it writes: nobody is before it
	case !errors.Is(err, errAgain):
		return false, err
	}
	if w.queued || !w.places[0].queue.Taken() {
		return true, nil
	}
	if !w.waits {
		return false, nil
	}
	w.contend()
	err := w.standBy(0)
	return err == nil, err
}

// request says under which name the owner writes, if it does: not always that which its read
// hold will have, because the client may have got a new identity since.
func (t together) request(w *wait, _ *identity, field string) (grant, outcome) {
	writes := ""
	if h := w.counterpart(writing); h != nil {
		h.mu.Lock()
		writes = h.field
		h.mu.Unlock()
		w.prolongWriter(w.settings.ttl)
	}
	w.writes = writes != ""
	return t.take(w.ctx, w.effort(), w.target, field, w.settings, writes)
}

func (together) ask(w *wait) (grant, outcome) {
	w.mark = w.places[0].queue.Wakes()
	g, out := w.try()
	if out.err == nil {
		w.suspect(g)
	}
	return g, out
}

func (together) rest(w *wait, d time.Duration) error { return w.standBy(d) }

func (together) end(w *wait, granted bool) {
	if granted {
		w.places[0].ticket.Open()
	} else {
		w.places[0].ticket.Pass()
	}
}

// standBy waits in line: the first for d, or until there is news since his last request, the
// others until he may read or leaves.
func (w *wait) standBy(d time.Duration) error {
	t := w.places[0].ticket
	if state, _ := t.State(); state != queue.Turn {
		if !t.Join() {
			if !w.writes && w.beside(writing) == nil { // since it asked: see rouseOwner
				t.Leave()
				return nil
			}
			return w.awaitTurn(t)
		}
		t.Since(w.mark)
		if w.news() {
			return nil
		}
	}
	return w.rest(d)
}

// beside says how the owner's hold on the other side of the lock stands: nil if it is held,
// an ErrLost if it was lost, and errAgain if there is none.
func (w *wait) beside(other side) error {
	h := w.counterpart(other)
	if h == nil {
		return errAgain
	}
	return h.usable()
}

// counterpart returns the owner's hold on the other side of the lock, or nil.
func (w *wait) counterpart(other side) *hold {
	return w.client.registry.find(gateID{key: w.target.keys[0], side: other}, w.owner)
}

// otherSide returns the gate of the other side of a read-write lock, if somebody uses it, or nil.
func (h *hold) otherSide() *gate {
	h.mu.Lock()
	t := h.target
	h.mu.Unlock()
	switch t.kind.side {
	case writing:
		return h.client.registry.gate(gateID{key: t.keys[0], side: reading})
	case reading:
		return h.client.registry.gate(gateID{key: t.keys[0], side: writing})
	default:
		return nil
	}
}

// wakeOtherSide has those of this process look again who want the other side of the lock: h has
// ended, and no message tells of it.
func (h *hold) wakeOtherSide() {
	if g := h.otherSide(); g != nil {
		g.queue.Wake()
	}
}

// prolongWriter tells the write hold of h's owner, if there is one, that for lease from now on
// its field may live on Redis: what its owner reads with keeps the key, and all that is in it.
func (h *hold) prolongWriter(lease time.Duration) {
	g := h.otherSide()
	if g == nil {
		return
	}
	if writer := g.find(h.owner); writer != nil {
		writer.mu.Lock()
		writer.longest = max(writer.longest, lease)
		writer.mu.Unlock()
	}
}

// rouseOwner has h's owner look again where it waits for the other side of the lock. Only a
// fixed owner can wait for one side and get hold of the other. If it writes now, nobody is
// before it as a reader, wherever it stands in line; if it reads, it cannot get to write.
func (h *hold) rouseOwner() {
	g := h.otherSide()
	if g == nil {
		return
	}
	waiter := g.find(h.owner)
	if waiter == nil {
		return
	}
	if g.side == writing {
		g.queue.Wake()
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
