package relock

import (
	"context"
	"fmt"
	"slices"

	"github.com/relock-go/relock/internal/queue"
)

// How a hold ends, from the outside in:
//
//	end         here: contexts, watchdog. It comes first, always.
//	finish      on Redis: handOver to the next of this process, or else giveBack to everybody;
//	            abandon if Redis does not answer. release is that with the hook Released.
//	giveUp      retires the name and has it undone in the background. It is part of abandon, of
//	            lose, and of disown, which forgets a grant that does not count.
//	leave       lets the next in the queues go on.
//	unregister  takes it out of its gates: it is gone.

// unlock takes one level of t away from h, whatever Redis answers. The last one ends the
// hold: here first, then on Redis, where the lock goes to the next waiter of this process
// or is given back.
func (h *hold) unlock(t *target, s *settings) error {
	h.check()
	h.mu.Lock()
	if !h.pop(t) {
		held := len(h.levels) > 0
		h.mu.Unlock()
		if !held { // its owner waits for it, or has just given it back
			return notHeld(h.owner)
		}
		return fmt.Errorf("%w by this handle: %s holds it by handles with other names, which have to unlock it", ErrNotHeld, h.owner.who())
	}
	last := len(h.levels) == 0
	if h.phase != held {
		cause, over := h.cause, last && h.phase == lost
		h.mu.Unlock()
		if over {
			h.unregister()
		}
		return cause
	}
	if last {
		h.end(ending, ErrReleased)
	} else {
		h.endFreed()
	}
	h.mu.Unlock()

	ctx := h.client.limits.after(s.unlockTimeout)
	if last {
		return h.release(ctx, s)
	}
	return h.step(ctx, s)
}

// releaseEffort is that of the commands of an Unlock by a handle with the settings s. A second
// copy of them, which does not go through the engine, is to fit into its time-out: it learns
// what keeps the engine silent.
func (h *hold) releaseEffort(s *settings) effort {
	e := h.paced(effort{})
	e.patience = min(e.patience, max(minCopyPatience, s.unlockTimeout/2))
	return e
}

// pop takes the newest level of t away. false: there is none. mu is held.
func (h *hold) pop(t *target) bool {
	for i := len(h.levels) - 1; i >= 0; i-- {
		if h.levels[i].target.id == t.id {
			h.levels = append(h.levels[:i], h.levels[i+1:]...)
			return true
		}
	}
	return false
}

// step tells Redis the counts after a level was taken away that was not the last. Without
// an answer the count on Redis is too high until the next command of the hold sets it right.
func (h *hold) step(ctx context.Context, s *settings) error {
	if h.take(ctx) {
		defer h.free()
		return h.tellCounts(ctx, s)
	}
	// Not left to the next command: that might be a renewal, and keep keys without a level.
	h.client.goroutines.Go(func() { h.stepLate(s) })
	return fmt.Errorf("the level is unlocked, but Redis does not know yet: %w", ended(ctx))
}

// stepLate is step for a caller who has gone.
func (h *hold) stepLate(s *settings) {
	if !h.take(h.client.background) {
		return
	}
	defer h.free()
	ctx, cancel := context.WithTimeout(h.client.background, s.unlockTimeout)
	defer cancel()
	_ = h.tellCounts(ctx, s) // the caller was told that Redis does not know
}

// tellCounts is step when it is its turn.
func (h *hold) tellCounts(ctx context.Context, s *settings) error {
	h.mu.Lock()
	if h.phase != held { // another caller's Unlock, or a loss, has the last word
		defer h.mu.Unlock()
		if h.phase == lost {
			return h.cause
		}
		return nil
	}
	t, field, identity, counts, longest := h.target, h.field, h.identity, h.counts(), h.longest
	h.mu.Unlock()

	answer, out := t.kind.release(ctx, h.releaseEffort(s), t, field, counts)
	if out.doubt {
		h.client.retire(identity)
	}
	if out.err != nil {
		if freed := t.without(counts); freed != nil { // or the next renewal would miss them
			h.client.retire(identity)
			h.client.undo(freed, field, h.client.now().after(longest), false)
			h.shrink(counts)
		}
		return fmt.Errorf("the level is unlocked, but Redis does not know: %w", out.err)
	}
	// A second copy does not find the keys that the first one gave back.
	if !answer.ours && !(out.doubt && slices.Contains(counts, 0)) {
		h.lose(errNotOnRedis)
		return fmt.Errorf("%w: %w", ErrLost, errNotOnRedis)
	}
	h.shrink(counts)
	return nil
}

// shrink lets go of the keys whose count is 0: their queues go on.
func (h *hold) shrink(counts []int) {
	h.mu.Lock()
	if h.phase == gone { // lost and unlocked meanwhile
		h.mu.Unlock()
		return
	}
	var keys []string
	var kept, left []place
	for i, p := range h.places {
		if counts[i] == 0 {
			left = append(left, p)
		} else {
			keys, kept = append(keys, p.key), append(kept, p)
		}
	}
	h.target, h.places = h.target.only(keys), kept
	h.mu.Unlock()
	for _, p := range left {
		p.ticket.Leave()
		p.remove(h)
		h.client.registry.exit(p.gate)
	}
}

// release is finish for a hold of which Acquired was told.
func (h *hold) release(ctx context.Context, s *settings) error {
	err := h.finish(ctx, s)
	h.mu.Lock()
	event := h.event(h.client.now().since(h.acquired), err)
	hooks := h.hooks()
	h.mu.Unlock()
	report(hooks.Released, event)
	return err
}

// finish gives the lock back, or hands it over. h is ending; after it, h is gone.
func (h *hold) finish(ctx context.Context, s *settings) error {
	defer h.unregister()
	// The watchdog has been stopped: a renewal under way is abandoned, not waited for.
	if !h.take(ctx) {
		return h.abandon(ended(ctx))
	}
	defer h.free()
	next, crowded := h.successor(s.localHandoffs)
	if next != nil {
		if passed, err := h.handOver(ctx, s, next); passed {
			return err
		}
	}
	return h.giveBack(ctx, s, crowded)
}

// successor reserves the ticket of the next waiter, if it wants just what h holds and it is
// still this process' turn. crowded: there is one, but others come first.
func (h *hold) successor(limit int) (next *queue.Ticket[*hold], crowded bool) {
	for _, p := range h.places[1:] {
		if _, waiting := p.queue.Handoffs(); waiting {
			return nil, false // somebody wants only a part
		}
	}
	first := h.places[0]
	inRow, waiting := first.queue.Handoffs()
	if !waiting {
		return nil, false
	}
	if inRow >= limit || h.target.kind.rivals(h) > 0 {
		return nil, true
	}
	return first.ticket.Reserve(func(w *hold) bool {
		if w.target.id != h.target.id {
			return false
		}
		// Not earlier: what the waiter's owner left in doubt before it got into line was retired.
		w.offered, w.settled = h.client.identity(), make(chan struct{})
		return true
	}), false
}

// handOver passes the lock to the waiter whose ticket successor has reserved. false: Redis
// surely did not, and the lock is still to be given back.
func (h *hold) handOver(ctx context.Context, s *settings, ticket *queue.Ticket[*hold]) (bool, error) {
	next := ticket.Value
	defer close(next.settled)
	c, identity := h.client, next.offered
	to := h.target.field(identity, next.owner)
	e := h.releaseEffort(s).confirmedBy(next.settings.replicas.before(ctx))
	began := c.now()
	g, out := h.target.kind.handoff(ctx, e, next.target, h.field, to, next.settings) // the same keys
	if out.doubt {
		c.retire(h.identity)
		c.retire(identity)
	}
	switch {
	case out.err != nil && !out.doubt:
		ticket.Refuse()
		return false, nil
	case out.err != nil:
		next.undo(to, next.settings.ttl, false) // before the waiter can leave without owing it
		ticket.Refuse()
		return true, h.abandon(out.err)
	case !g.held:
		ticket.Refuse()
		h.leave()
		h.wakeOtherSide()
		return true, h.notOurs(began, out)
	case out.unconfirmed != nil: // h has let go; its successor has not got hold, and tries by itself
		c.retire(identity)
		next.undo(to, next.settings.ttl, false)
		ticket.Refuse()
		h.leave()
		return true, nil
	}
	next.receive(identity, to, g.token, out.sent, next.settings.ttl)
	if !h.places[0].ticket.Grant(ticket) {
		h.passOn(next, identity, to, g.token, out.sent)
		return true, nil
	}
	for i, p := range h.places {
		p.heard()
		if i > 0 {
			p.ticket.Replace(next.places[i].ticket) // next waits for it
		}
	}
	return true, nil
}

// passOn deals with a grant for a waiter that has gone: the client, not the caller of
// Unlock, hands it on or gives it back. The waiter's Lock waits for that, for a moment.
func (h *hold) passOn(next *hold, identity *identity, field string, token int64, sent instant) {
	orphan := newHold(h.client, next.owner, h.target, next.settings)
	orphan.phase = ending
	orphan.receive(identity, field, token, sent, next.settings.ttl)
	for _, p := range h.places {
		g := h.client.registry.enter(p.gateID, p.channel)
		ticket := p.queue.Ticket(orphan, orphan.alarm)
		orphan.places = append(orphan.places, place{gate: g, queue: p.queue, ticket: ticket})
		p.ticket.Replace(ticket)
	}
	passed := make(chan struct{})
	next.owe(passed)
	h.client.goroutines.Go(func() {
		defer close(passed)
		ctx, cancel := context.WithTimeout(context.Background(), next.settings.unlockTimeout)
		defer cancel()
		// An error is already being dealt with: its name is undone in the background.
		if orphan.finish(ctx, next.settings) != nil {
			orphan.tidy()
		}
	})
}

// giveBack releases the keys for everybody. crowded: waiters of this process were not
// served because others come first.
func (h *hold) giveBack(ctx context.Context, s *settings, crowded bool) error {
	marks := make([]uint64, len(h.places))
	for i, p := range h.places {
		marks[i] = p.queue.Wakes()
	}
	began := h.client.now()
	answer, out := h.target.kind.release(ctx, h.releaseEffort(s), h.target, h.field, make([]int, len(h.places)))
	if out.doubt {
		h.client.retire(h.identity)
	}
	if out.err != nil {
		return h.abandon(out.err)
	}
	for i, p := range h.places {
		p.heard()
		heard := answer.heard + h.target.kind.rivals(h)
		if h.client.scattered && answer.heard >= 0 {
			heard = max(heard, 2) // perhaps
		}
		alone := heard == 0 || heard == 1 && p.listening()
		if crowded && !alone {
			if h.target.kind.twice {
				heard *= 2
			}
			p.ticket.GiveWay(marks[i], max(heard, 1))
		} else {
			p.ticket.Leave()
		}
	}
	if g := h.otherSide(); g != nil && (answer.heard < 0 || !answer.ours || !g.listening()) {
		g.queue.Wake() // no message tells it
	}
	if !answer.ours {
		return h.notOurs(began, out)
	}
	return nil
}

// notOurs judges the answer to a command begun at began that Redis does not know the hold.
// If an earlier copy of the same command may have been executed, that one succeeded, however
// late the answer is. Begun past the deadline, or without such a copy, the hold had been lost:
// by a command of somebody else's, of which late copies may be on their way to the name.
func (h *hold) notOurs(began instant, out outcome) error {
	h.client.retire(h.identity)
	h.mu.Lock()
	defer h.mu.Unlock()
	if out.doubt && began.until(h.deadline) > 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrLost, errNotOnRedis)
}

// abandon ends the hold without Redis' answer: its name is released in the background, and
// the next waiter tries under a new one.
func (h *hold) abandon(err error) error {
	h.giveUp()
	h.leave()
	h.wakeOtherSide()
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Errorf("it is unlocked, but Redis may not know, and keep the key for up to %v: %w", h.longest, err)
}
