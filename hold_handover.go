package relock

import (
	"context"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/queue"
)

// How a hold that ends is handed over to the next waiter of this process when Redis is told first: because that waiter
// needs what only Redis can give, or the lock is of a kind without batches. See hold_follow.go for the other way.

// successor reserves the ticket of the next waiter, if it wants just what h holds and it is
// still this process' turn. crowded: there is one, but others come first.
func (h *hold) successor(limit int) (next *queue.Ticket[*hold], crowded bool) {
	for _, p := range h.places[1:] {
		if _, waiting := p.queue.Handoffs(); waiting {
			return nil, false // an owner wants only a part
		}
	}
	first := h.places[0]
	inRow, waiting := first.queue.Handoffs()
	if !waiting || h.isKept() {
		return nil, false
	}
	if inRow >= limit || h.other != nil && h.other.rivals() > 0 {
		return nil, true
	}
	return first.ticket.Reserve(func(w *hold) bool {
		if w.target.ID != h.target.ID {
			return false
		}
		// Not earlier: what the waiter's owner left in doubt before it got into line was retired.
		w.offered = offer{identity: h.session.identities.Current(), ended: make(chan struct{})}
		return true
	}), false
}

// handOver passes the lock to the waiter whose ticket successor has reserved. false: Redis
// surely did not, and the lock is still to be given back.
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
		next.undoName(to, next.settings.TTL) // before the waiter can leave without owing it
		ticket.Refuse()
		if out.Refused {
			return true, h.giveBackInDoubt(ctx, s, began, func() { next.undoName(to, next.settings.TTL) })
		}
		return true, h.abandon(out.Err)
	case !g.Held:
		err := h.notOurs(began, out)
		ticket.Refuse()
		h.leave()
		if h.other != nil {
			h.other.wake()
		}
		return true, err
	case out.Unconfirmed != nil: // h has let go; its successor has not got hold, and tries by itself
		c.identities.Retire(id)
		next.undoName(to, next.settings.TTL)
		ticket.Refuse()
		h.leave()
		return true, nil
	}
	next.receive(to, out.Sent, next.settings.TTL, 0)
	if !h.places[0].ticket.Grant(ticket) {
		h.passOn(next, to, out.Sent)
		return true, nil
	}
	for i, p := range h.places {
		p.gate.heard()
		if i > 0 {
			p.ticket.Replace(next.places[i].ticket) // next waits for it
		}
	}
	return true, nil
}

// passOn deals with a grant for a waiter that has gone: the client, not the caller of
// Unlock, hands it on or gives it back. The waiter's Lock waits for that, for a moment.
func (h *hold) passOn(next *hold, granted identity.Name, sent clock.Instant) {
	orphan := newHold(h.session, h.kind, next.owner, h.target, next.settings)
	orphan.phase = ending
	orphan.receive(granted, sent, next.settings.TTL, 0)
	for _, p := range h.places {
		g := h.session.registry.enter(p.gate.id, p.gate.channel)
		ticket := p.queue.Ticket(orphan, &orphan.alarm)
		orphan.places = append(orphan.places, place{gate: g, queue: p.queue, inLine: p.inLine, ticket: ticket})
		p.ticket.Replace(ticket)
	}
	passed := make(chan struct{})
	next.undos.add(passed)
	h.session.goroutines.Go(func() {
		defer close(passed)
		ctx := h.session.limits.After(next.settings.unlockTimeout)
		// An error is already being dealt with: its name is undone in the background.
		if orphan.finish(ctx, next.settings) != nil {
			orphan.awaitUndo()
		}
	})
}
