package relock

import (
	"context"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/queue"
)

// How one command on Redis hands the lock over to the next local waiter. It is used if a hand-over before Redis has the
// new name (hold_follow.go) is not possible: because the waiter needs a token, for example, or because this kind of
// lock has no batches.

// successor reserves the ticket of the next local waiter, if that waiter wants the same keys as h and the turn of this
// process is not over. crowded: there is a local waiter, but it is the turn of others.
func (h *hold) successor(limit int) (next *queue.Ticket[*hold], crowded bool) {
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
		if out.Refused {
			return true, h.releaseAfterHandover(ctx, s, began, func() { next.undoName(to, next.settings.TTL) })
		}
		return true, h.abandon(out.Err)
	case !g.Held:
		err := h.notOurs(began, out)
		ticket.Refuse()
		h.leave()
		h.other.wake()
		return true, err
	case out.Unconfirmed != nil: // the lock left h, but the waiter does not hold it, and tries by itself
		c.identities.Retire(id)
		next.undoName(to, next.settings.TTL)
		ticket.Refuse()
		h.leave()
		return true, nil
	}
	next.receive(to, out.Sent, next.settings.TTL, 0)
	if !h.queueEntries[0].ticket.Grant(ticket) {
		h.passOn(next, to, out.Sent)
		return true, nil
	}
	for i, p := range h.queueEntries {
		p.gate.answered()
		if i > 0 {
			p.ticket.Replace(next.queueEntries[i].ticket) // next waits for it
		}
	}
	return true, nil
}

// passOn handles a grant for a waiter that has left: in the background, the client hands the lock on or releases it. The
// waiter's Lock, not the caller of Unlock, waits for that for a short time.
func (h *hold) passOn(next *hold, granted identity.Name, sent clock.Instant) {
	orphan := newHold(h.session, h.kind, next.owner, h.target, next.settings)
	orphan.phase = ending
	orphan.receive(granted, sent, next.settings.TTL, 0)
	for _, p := range h.queueEntries {
		before := p.ticket
		p.gate, p.ticket = h.session.registry.enter(p.gate.id, p.gate.channel), p.queue.Ticket(orphan, &orphan.alarm)
		orphan.queueEntries = append(orphan.queueEntries, p)
		before.Replace(p.ticket)
	}
	passed := make(chan struct{})
	next.undos.add(passed)
	h.session.goroutines.Go(func() {
		defer close(passed)
		ctx := h.session.limits.After(next.settings.unlockTimeout)
		// After an error the name is already being undone in the background.
		if orphan.finish(ctx, next.settings) != nil {
			orphan.awaitUndo()
		}
	})
}
