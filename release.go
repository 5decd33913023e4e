package relock

import (
	"context"
	"fmt"
	"slices"

	"github.com/relock-go/relock/internal/queue"
)

// unlock takes one level of t away from h, whatever Redis answers. The last one ends the
// hold: here first, then on Redis, where the lock goes to the next waiter of this process
// or is given back.
func (h *hold) unlock(t *target, s *settings) error {
	h.check()
	h.mu.Lock()
	if !h.pop(t) {
		h.mu.Unlock()
		return fmt.Errorf("%w: %s holds it by another handle's levels, which only that can unlock", ErrNotHeld, h.owner)
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
	}
	h.mu.Unlock()

	ctx, cancel := context.WithTimeoutCause(context.Background(), s.unlockTimeout,
		fmt.Errorf("%w within %v", errNoAnswer, s.unlockTimeout))
	defer cancel()
	if last {
		return h.release(ctx, s)
	}
	return h.step(ctx)
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
func (h *hold) step(ctx context.Context) error {
	if !h.take(ctx) {
		return ended(ctx)
	}
	defer h.free()
	h.mu.Lock()
	if h.phase != held { // another caller's Unlock, or a loss, has the last word
		defer h.mu.Unlock()
		if h.phase == lost {
			return h.cause
		}
		return nil
	}
	t, field, identity, counts := h.target, h.field, h.identity, h.counts()
	h.mu.Unlock()

	answer, out := h.client.protocol.release(ctx, h.paced(effort{}), t, field, counts)
	if out.doubt {
		h.client.retire(identity)
	}
	if out.err != nil {
		return fmt.Errorf("the level is unlocked, but Redis does not know: %w", out.err)
	}
	// A second copy does not find the keys that the first one gave back.
	if !answer.ours && !(out.doubt && slices.Contains(counts, 0)) {
		h.lose(errNotOnRedis)
		return fmt.Errorf("%w: %w", ErrLost, errNotOnRedis)
	}
	h.shrink(counts)
	h.ring()
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
	var gates []*gate
	var tickets []*queue.Ticket[*hold]
	var leftGates []*gate
	var leftTickets []*queue.Ticket[*hold]
	for i, count := range counts {
		if count == 0 {
			leftGates, leftTickets = append(leftGates, h.gates[i]), append(leftTickets, h.tickets[i])
			continue
		}
		keys, gates, tickets = append(keys, h.target.keys[i]), append(gates, h.gates[i]), append(tickets, h.tickets[i])
	}
	h.target, h.gates, h.tickets = h.target.only(keys), gates, tickets
	h.mu.Unlock()
	for i, g := range leftGates {
		leftTickets[i].Leave()
		g.remove(h)
		h.client.registry.exit(g)
	}
}

// release is finish for a hold whose beginning was reported.
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
		if passed, err := h.handOver(ctx, next); passed {
			return err
		}
	}
	return h.giveBack(ctx, crowded)
}

// successor reserves the next waiter, if it wants just what h holds and it is still this
// process' turn. crowded: there is one, but other processes come first.
func (h *hold) successor(limit int) (next *hold, crowded bool) {
	for _, g := range h.gates[1:] {
		if _, waiting := g.queue.Handoffs(); waiting {
			return nil, false // somebody wants only a part
		}
	}
	inRow, waiting := h.gates[0].queue.Handoffs()
	if !waiting {
		return nil, false
	}
	if inRow >= limit {
		return nil, true
	}
	t := h.tickets[0].Reserve(func(w *hold) bool {
		if w.target.id != h.target.id {
			return false
		}
		// Not earlier: what the waiter's owner left in doubt before it got into line was retired.
		w.offered = h.client.identity()
		return true
	})
	if t == nil {
		return nil, false
	}
	return t.Value, false
}

// handOver passes the lock to next, which successor has reserved. false: Redis surely did
// not, and the lock is still to be given back.
func (h *hold) handOver(ctx context.Context, next *hold) (bool, error) {
	c, identity := h.client, next.offered
	to := *identity + ":" + next.owner.String()
	g, out := c.protocol.handoff(ctx, h.paced(effort{}), h.target, h.field, to, next.settings)
	if out.doubt {
		c.retire(h.identity)
		c.retire(identity)
	}
	switch {
	case out.err != nil && !out.doubt:
		next.tickets[0].Refuse()
		return false, nil
	case out.err != nil:
		next.tickets[0].Refuse()
		c.undo(h.target, to, c.now().after(next.settings.ttl))
		return true, h.abandon(out.err)
	case !g.held:
		next.tickets[0].Refuse()
		h.leave()
		return true, h.notOurs(out)
	}
	next.receive(identity, to, g.token, out.sent)
	if !h.tickets[0].Grant(next.tickets[0]) {
		h.passOn(next, identity, to, g.token, out.sent)
		return true, nil
	}
	for i, gate := range h.gates {
		gate.heard()
		if i > 0 {
			h.tickets[i].Replace(next.tickets[i]) // next waits for it
		}
	}
	return true, nil
}

// passOn deals with a grant for a waiter that has gone: the client, not the caller of
// Unlock, hands it on or gives it back.
func (h *hold) passOn(next *hold, identity *string, field string, token int64, sent instant) {
	orphan := newHold(h.client, next.owner, h.target, next.settings)
	orphan.phase = ending
	orphan.receive(identity, field, token, sent)
	for i, t := range h.tickets {
		g := h.client.registry.enter(h.target.keys[i], h.target.channels[i])
		orphan.gates = append(orphan.gates, g)
		orphan.tickets = append(orphan.tickets, g.queue.Ticket(orphan, orphan.alarm))
		t.Replace(orphan.tickets[i])
	}
	h.client.goroutines.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), next.settings.unlockTimeout)
		defer cancel()
		// An error is already being dealt with: its name is undone in the background.
		_ = orphan.finish(ctx, next.settings)
	})
}

// giveBack releases the keys for everybody. crowded: waiters of this process were not
// served because other processes come first.
func (h *hold) giveBack(ctx context.Context, crowded bool) error {
	marks := make([]uint64, len(h.gates))
	for i, g := range h.gates {
		marks[i] = g.queue.Wakes()
	}
	answer, out := h.client.protocol.release(ctx, h.paced(effort{}), h.target, h.field, make([]int, len(h.gates)))
	if out.doubt {
		h.client.retire(h.identity)
	}
	if out.err != nil {
		return h.abandon(out.err)
	}
	for i, g := range h.gates {
		g.heard()
		alone := answer.heard == 0 || answer.heard == 1 && g.listening()
		if crowded && !alone {
			h.tickets[i].GiveWay(marks[i], max(answer.heard, 1))
		} else {
			h.tickets[i].Leave()
		}
	}
	if !answer.ours {
		return h.notOurs(out)
	}
	return nil
}

// notOurs judges the answer that Redis does not know the hold. If an earlier copy of the
// same command may have been executed, that one succeeded; past the deadline, or without
// one, the hold had been lost: by a command of somebody else's, of which late copies may be
// on their way to the name.
func (h *hold) notOurs(out outcome) error {
	h.client.retire(h.identity)
	h.mu.Lock()
	defer h.mu.Unlock()
	if out.doubt && h.client.now().until(h.deadline) > 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrLost, errNotOnRedis)
}

// abandon ends the hold without Redis' answer: its name is released in the background, and
// the next waiter tries under a new one.
func (h *hold) abandon(err error) error {
	h.giveUp()
	h.leave()
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Errorf("it is unlocked, but Redis may not know, and keep the key for up to %v: %w", h.longest, err)
}
