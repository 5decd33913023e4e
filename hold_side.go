package relock

import (
	"errors"
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
)

// otherSide is the other side of a read-write lock, as a hold on one side sees it: the same
// owner may have a hold there, and waiters there are not told by messages of what happens in
// this process.
type otherSide struct {
	session *session
	id      gateID // of the gate there
	owner   keys.Owner
}

// newOtherSide is the other side of the lock that o wants t of.
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
	return s.session.registry.gate(s.id)
}

// hold returns the hold of the same owner there, or nil.
func (s *otherSide) hold() *hold {
	if g := s.gate(); g != nil {
		return g.find(s.owner)
	}
	return nil
}

// unlock is the method that gives a hold there back.
func (s *otherSide) unlock() string {
	if s.id.side == keys.Reading {
		return "RUnlock"
	}
	return "Unlock"
}

// shared reports whether holds on this side do not keep each other out: those of readers.
func (s *otherSide) shared() bool { return s.id.side == keys.Writing }

// usable says how the owner's hold there stands: nil if it is held, an ErrLost if it was lost,
// and errAgain if there is none.
func (s *otherSide) usable() error {
	if h := s.hold(); h != nil {
		return h.usable()
	}
	return errAgain
}

// held is usable for an attempt on this side.
func (s *otherSide) held() (bool, error) {
	switch err := s.usable(); {
	case err == nil:
		return true, nil
	case errors.Is(err, errAgain):
		return false, nil
	default:
		return false, err
	}
}

// field is the name on Redis of the owner's hold there: not always that which the owner would get now,
// because the client may have got a new identity since.
func (s *otherSide) field() string {
	other := s.hold()
	if other == nil {
		return ""
	}
	other.mu.Lock()
	defer other.mu.Unlock()
	return other.name.Field
}

// wake has those look again who want the other side: a hold has ended here, and no message
// tells of it.
func (s *otherSide) wake() {
	if g := s.gate(); g != nil {
		g.queue.Wake()
	}
}

// released is wake after a release that was answered, unless a message of it reaches them.
func (s *otherSide) released(answer protocol.Released) {
	if g := s.gate(); g != nil && (answer.Heard < 0 || !answer.Ours || !g.listening()) {
		g.queue.Wake()
	}
}

// rivals is how many others of this process have to have had a chance, besides those in the
// queue, before the next of the queue asks: after each writer it is the readers' turn. So it
// is when the writer itself reads on.
func (s *otherSide) rivals() int {
	if s.id.side != keys.Reading {
		return 0
	}
	if g := s.gate(); g != nil && (g.queue.Taken() || g.find(s.owner) != nil) {
		return 1
	}
	return 0
}

// lengthen tells the write hold of the same owner, if there is one, that for lease from now on
// its field may live on Redis: what its owner reads with keeps the key, and all that is in it.
func (s *otherSide) lengthen(lease time.Duration) {
	if s.id.side != keys.Writing {
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
	if s.id.side == keys.Writing {
		if g := s.gate(); g != nil {
			g.queue.Wake()
		}
		waiter.alarm.Ring() // it may not have the turn
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
		waiter.alarm.Ring()
	}
}
