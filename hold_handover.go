package relock

import (
	"context"
	"errors"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// How one command on Redis hands the lock over to the next local waiter. It is used if a hand-over before Redis has the
// new name (hold_follow.go) is not possible: because the waiter needs a token, for example, or because this kind of
// lock has no batches.

// successor reserves the ticket of the next local waiter, if that waiter wants the same keys as h and the turn of this
// process is not over. crowded: there is a local waiter, but it is the turn of others.
func (h *hold) successor(limit int) (next *queue.Ticket[*hold], crowded bool) {
	if h.session.closed() { // all waiters leave
		return nil, false
	}
	for _, p := range h.queueEntries[1:] {
		if _, waiting := p.queue.Handoffs(); waiting {
			return nil, false // a waiter wants only some of the keys
		}
	}
	first := h.queueEntries[0]
	inRow, waiting := first.queue.Handoffs()
	if !waiting || h.inMinHold() {
		return nil, false
	}
	if inRow >= limit || h.givesWay() || h.other.rivals() > 0 {
		return nil, true
	}
	from := h.onRedis()
	return first.ticket.Reserve(func(w *hold) bool {
		// The current identity is taken only now: if a command of the waiter's owner had an unknown outcome before the
		// waiter joined the queue, that identity is retired.
		id := h.session.identities.Current()
		// A detached hold of the waiter's owner may have left the same name, which a script that replaces it would delete.
		if w.target.ID != h.target.ID || id.Of(h.target, w.owner).Field == from.Field {
			return false
		}
		w.offered = offer{identity: id, ended: make(chan struct{})}
		return true
	}), false
}

// handOver hands the lock over to the waiter whose ticket successor has reserved. It returns false if the hand-over was
// certainly not executed, so that the caller still has to release the lock.
func (h *hold) handOver(ctx context.Context, s *settings, ticket *queue.Ticket[*hold]) (bool, error) {
	next := ticket.Value
	defer close(next.offered.ended)
	c, id := h.session, next.offered.identity
	to := id.Of(h.target, next.owner)
	e := h.releaseOptions(s).ConfirmedBy(next.settings.replicas.Before(ctx))
	began := c.now()
	from := h.onRedis()
	t := next.target.Lacking(from.Absent) // the same keys
	g, out := h.kind.protocol.Handoff(ctx, e, t, from.Field, to.Field, &next.settings.Terms)
	to.Token, to.Absent, to.Late = g.Token, g.Absent, out.Late()
	if out.Ambiguous {
		c.identities.Retire(from.Identity)
		c.identities.Retire(id)
	}
	switch {
	case !out.Ambiguous && (out.Err != nil || !g.Held && len(t.Keys) > 1): // if one key was lost, the others are still there
		ticket.Refuse()
		return false, nil
	case out.Err != nil:
		next.undoName(to, next.settings.TTL) // before the waiter can leave: its Lock waits for the undo
		ticket.Refuse()
		if !out.Refused {
			return true, h.abandon(out.Err)
		}
		// Redis rejected one copy, and did not answer another. If that is executed before the release, the new name has the keys, and
		// is undone again, because the undo may have come before the copy.
		err := h.release(ctx, s, false)
		if errors.Is(err, lockerr.ErrNotOnRedis) {
			next.undoName(to, next.settings.TTL)
			err = h.notOurs(began, redisexec.Outcome{Ambiguous: true})
		}
		return true, err
	case !g.Held:
		err := h.notOurs(began, out)
		if len(t.Keys) > 1 { // one key was lost, and the others may still have either name
			h.giveUp(err)
			next.undoName(to, next.settings.TTL)
		}
		ticket.Refuse()
		h.leave()
		h.other.wake()
		return true, err
	}
	if out.Unconfirmed == nil {
		next.receive(to, out.Sent, next.settings.TTL, 0)
		if h.queueEntries[0].ticket.Grant(ticket) {
			for i, p := range h.queueEntries {
				p.gate.answered()
				if i > 0 {
					p.ticket.Replace(next.queueEntries[i].ticket) // next waits for it
				}
			}
			return true, nil
		}
	}
	// The lock has left h, and the waiter does not hold it: too few replicas confirmed it, or the waiter has left.
	next.undoName(to, next.settings.TTL)
	ticket.Refuse()
	h.leave()
	h.other.wake()
	return true, nil
}
