package relock

import (
	"context"
	"errors"
	"slices"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// How a hold that has ended is handed over to the next local waiter, while it is the turn of this process. The ticket of the
// waiter is reserved, and granted when the waiter is the holder. There are two orders:
//
//	entersFirst   The waiter begins under the lease of the hold that ended, which is proven. A rename follows (batch.go).
//	redisFirst    One command replaces the name on Redis by the name of the waiter, which enters with the answer.
//
// Redis is asked first if the waiter needs more than the rest of a lease (a token, replicas, a fixed lease), or if the hold can
// be in no batch: because of its kind, its replicas, or its name, or because its batch is over.
//
// Without an answer the two orders differ. A waiter that has entered is the holder: the rename is repeated until its lease is
// over. A waiter that has not entered asks Redis itself, and the name that was sent for it is undone.

// order is how a lock goes to the next local waiter.
type order uint8

const (
	noWaiter    order = iota // it goes to none: none waits, or the first one wants something else
	othersTurn               // it goes to none: one waits, but it is the turn of others
	entersFirst              // the waiter enters, and Redis gets its name afterwards
	redisFirst               // Redis gets the name of the waiter, which enters afterwards
)

// handOver hands h, which has ended, over to the next local waiter, and returns the channel for the answer of Redis. If Redis
// has to be asked first, and the slot is taken, it returns the reserved ticket of that waiter instead. If there is no waiter to
// hand over to, it returns neither. crowded: there is a local waiter, but it is the turn of others.
func (h *hold) handOver(s *settings, slotTaken bool) (answer <-chan error, next *queue.Ticket[*hold], crowded bool) {
	for {
		var how order
		if next, how = h.successor(s.localHandoffs, slotTaken); how != entersFirst {
			return nil, next, how == othersTurn
		}
		if answer = h.letIn(next); answer != nil {
			return answer, nil, false
		}
		// That waiter has left, or the batch is over.
	}
}

// successor reserves the ticket of the next local waiter, if that waiter wants the same keys as h and the turn of this
// process is not over. Redis is asked first only if the slot is taken.
func (h *hold) successor(limit int, slotTaken bool) (next *queue.Ticket[*hold], how order) {
	switch {
	case h.session.closed(): // all waiters leave
		return nil, noWaiter
	case h.kind.rename == nil && !slotTaken: // Redis is asked first, which needs the slot
		return nil, noWaiter
	}
	for _, p := range h.queueEntries[1:] {
		if _, waiting := p.queue.Handoffs(); waiting {
			return nil, noWaiter // a waiter wants only some of the keys
		}
	}
	p := h.queueEntries[0]
	inRow, waiting := p.queue.Handoffs()
	if !waiting || h.inMinHold() {
		return nil, noWaiter
	}
	h.mu.Lock()
	left, late, lingered := h.lease.Left(h.session.now()), h.name.Late, h.lingered
	h.mu.Unlock()
	atLimit := inRow >= limit
	goesOn := limit > 0 && (h.batch.goesOn() || lingered && !p.gate.wantedElsewhere())
	if h.givesWay() || h.other.rivals() > 0 || atLimit && !goesOn {
		return nil, othersTurn
	}
	// A name that a delayed copy may create again is undone when Redis no longer has it. So it cannot be in a batch.
	batches := h.kind.rename != nil && h.settings.replicas.N == 0 && !late && !h.batch.isOver()
	from := h.onRedis()
	next = p.ticket.Reserve(func(w *hold) bool {
		w.offered = offer{}
		switch {
		case w.target.ID != h.target.ID:
			return false
		case batches && w.settings.canFollow(left):
			how = entersFirst // no command is sent for it
			return true
		case !slotTaken, atLimit: // beyond the limit only batches go on, whose renames count the line
			return false
		}
		// The current identity is taken only now: if a command of the waiter's owner had an unknown outcome before the
		// waiter joined the queue, that identity is retired.
		id := h.session.identities.Current()
		// A detached hold of the waiter's owner may have left the same name, which a script that replaces it would delete.
		if id.Of(h.target, w.owner).Field == from.Field {
			return false
		}
		w.offered = offer{identity: id, ended: make(chan struct{})}
		how = redisFirst
		return true
	})
	if next == nil && atLimit {
		how = othersTurn
	}
	return next, how
}

// letIn makes the waiter with the reserved ticket follow h before Redis has its name, and returns the channel for the answer of
// Redis. nil: the waiter has left, or the batch is over.
func (h *hold) letIn(ticket *queue.Ticket[*hold]) <-chan error {
	b, next := h.joinBatch(), ticket.Value
	h.mu.Lock()
	lingered := h.lingered
	h.mu.Unlock()
	n := h.session.identities.Current().Of(b.target, next.owner)
	next.follow(h, n, b)
	// After lingering nobody waits for a rename. A longer lease needs one: its first renewal may be due after the end of this one.
	asks := !lingered || next.wantedLease() > h.wantedLease()
	answer, over := b.handOver(next, n, asks, func() bool { return h.queueEntries[0].ticket.Grant(ticket) })
	if over {
		next.forget()
		ticket.Refuse()
	}
	return answer
}

// givesWay reports whether Wanted has notified the owner of h, and an owner of another process waits: then it is the turn of that
// process, although local waiters may have come first.
func (h *hold) givesWay() bool {
	h.mu.Lock()
	notified, queueEntries := h.demand != nil && goroutine.Closed(h.demand), h.queueEntries
	h.mu.Unlock()
	return notified && slices.ContainsFunc(queueEntries, func(p queueEntry) bool { return p.gate.wantedElsewhere() })
}

// handOverByRedis hands the lock over to the waiter with the reserved ticket: one command replaces the name on Redis, and the
// waiter enters when that is answered. It returns false if the hand-over was certainly not executed, so that the caller still
// has to release the lock. The slot is taken.
func (h *hold) handOverByRedis(ctx context.Context, s *settings, ticket *queue.Ticket[*hold]) (passed bool, err error) {
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
		err = h.release(ctx, s, false)
		if errors.Is(err, lockerr.ErrNotOnRedis) {
			next.undoName(to, next.settings.TTL)
			err = h.notOurs(began, redisexec.Outcome{Ambiguous: true})
		}
		return true, err
	case !g.Held:
		err = h.notOurs(began, out)
		if len(t.Keys) > 1 { // one key was lost, and the others may still have either name
			h.giveUp(err)
			next.undoName(to, next.settings.TTL)
		}
	case out.Unconfirmed == nil && h.grant(ticket, to, out.Sent):
		return true, nil
	default: // the lock has left h, and the waiter does not hold it: too few replicas confirmed it, or the waiter has left
		next.undoName(to, next.settings.TTL)
	}
	ticket.Refuse()
	h.leave()
	h.other.wake()
	return true, err
}

// grant lets the waiter with the reserved ticket enter under the name n, which Redis has by a command sent at sent. false: the
// waiter has left.
func (h *hold) grant(ticket *queue.Ticket[*hold], n keys.Name, sent clock.Instant) bool {
	next := ticket.Value
	next.receive(n, sent, next.settings.TTL, 0)
	if !h.queueEntries[0].ticket.Grant(ticket) {
		return false
	}
	for i, p := range h.queueEntries {
		p.gate.answered()
		if i > 0 {
			p.ticket.Replace(next.queueEntries[i].ticket) // next waits for it
		}
	}
	return true
}
