package relock

import (
	"errors"
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
)

// otherSide is the other side of a read-write lock, from the point of view of a hold on one side. The same
// owner may have a hold there, and no message notifies the waiters there of what happens in
// this process. Nil: the lock has no sides. Then there is nobody to wake, to notify or to find.
type otherSide struct {
	session *session
	id      gateID // of the gate there
	owner   keys.Owner
}

// newOtherSide returns the other side of the lock t of o.
func newOtherSide(c *session, t *keys.Set, o keys.Owner) *otherSide {
	switch t.Side {
	case keys.Writing:
		return &otherSide{session: c, id: gateID{t.Keys[0], keys.Reading}, owner: o}
	case keys.Reading:
		return &otherSide{session: c, id: gateID{t.Keys[0], keys.Writing}, owner: o}
	default:
		return nil
	}
}

// gate returns the gate there, or nil if nothing of this process uses it.
func (s *otherSide) gate() *gate {
	if s == nil {
		return nil
	}
	return s.session.registry.gate(s.id)
}

// hold returns the hold of the same owner there, or nil.
func (s *otherSide) hold() *hold {
	if g := s.gate(); g != nil {
		return g.find(s.owner)
	}
	return nil
}

// unlock returns the name of the method that releases a hold there.
func (s *otherSide) unlock() string {
	if s.id.side == keys.Reading {
		return "RUnlock"
	}
	return "Unlock"
}

// held reports whether the owner holds the lock there. ErrLost: it has lost it.
func (s *otherSide) held() (bool, error) {
	h := s.hold()
	if h == nil {
		return false, nil
	}
	err := h.usable()
	if errors.Is(err, errAgain) {
		return false, nil
	}
	return err == nil, err
}

// field returns the name on Redis of the owner's hold there. A new hold of the owner may get another name,
// because the client's identity may have changed since.
func (s *otherSide) field() string {
	other := s.hold()
	if other == nil {
		return ""
	}
	other.mu.Lock()
	defer other.mu.Unlock()
	return other.name.Field
}

// wake makes the waiters on the other side check again: a hold has ended here, which no message announces.
func (s *otherSide) wake() {
	if g := s.gate(); g != nil {
		g.queue.Wake()
	}
}

// notifyWanted notifies the owners that hold the lock on the other side that another owner waits for it.
func (s *otherSide) notifyWanted() {
	if g := s.gate(); g != nil {
		g.notifyWanted()
	}
}

// released is wake after a release that was answered, unless its message reaches them.
func (s *otherSide) released(answer protocol.Released) {
	if g := s.gate(); g != nil && (answer.Receivers < 0 || !answer.Ours || !g.listening()) {
		g.queue.Wake()
	}
}

// rivals returns how many other waiters of this process should have had a chance, besides those in the
// queue, before the next in the queue asks: after each writer it is the readers' turn, also
// if the writer itself reads on.
func (s *otherSide) rivals() int {
	if s == nil || s.id.side != keys.Reading {
		return 0
	}
	if g := s.gate(); g != nil && (g.queue.Taken() || g.find(s.owner) != nil) {
		return 1
	}
	return 0
}

// lengthen records in the write hold of the same owner, if there is one, that its field may live on Redis for lease
// from now on: the owner's read hold keeps the key with all its fields.
func (s *otherSide) lengthen(lease time.Duration) {
	if s == nil || s.id.side != keys.Writing {
		return
	}
	if writer := s.hold(); writer != nil {
		writer.mu.Lock()
		writer.lease.Lengthen(lease)
		writer.mu.Unlock()
	}
}

// wakeOwner makes the same owner check again where it waits for the other side, because it has
// acquired this one. Only a fixed owner can wait for one side and acquire the other. If it
// now writes, it need not wait for other readers, wherever it is in the queue; if it reads, it
// cannot acquire the write side.
func (s *otherSide) wakeOwner() {
	waiter := s.hold()
	if waiter == nil {
		return
	}
	if s.id.side == keys.Writing {
		if g := s.gate(); g != nil {
			g.queue.Wake()
		}
		waiter.alarm.Ring() // it may not have the turn
		return
	}
	waiter.mu.Lock()
	defer waiter.mu.Unlock()
	for _, p := range waiter.queueEntries {
		if state, _ := p.ticket.State(); state != queue.Waiting {
			p.queue.Wake()
			continue
		}
		p.ticket.Leave()
		waiter.alarm.Ring()
	}
}
