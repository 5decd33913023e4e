package relock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/undo"
)

// How a hold ends, from the outside in:
//
//	end            here: contexts, watchdog. It comes first, always.
//	finish         on Redis: handOverLocally or handOver to the next of this process, or else giveBack to all, which
//	               keeps the keys for no one if its min hold is not over;
//	               abandon if Redis does not answer. After it, unlock calls the hook Released.
//	giveUp         retires the name, notifies those who wait in its batch, and has it released in the background. It
//	               is part of abandon, of lose, and of reject, which forgets a grant that does not count.
//	leave          lets the next in the queues go on.
//	unregister     takes it out of its gates: it is gone.
//
// Invariants:
//   - The level is gone whatever Redis answers. An error says only that Redis may keep the key.
//   - A release that was not answered ends the name: it is retired before Unlock returns.
//   - A hand-over goes to a waiter that wants the same keys, and whose ticket is reserved: it
//     cannot leave the queue unnoticed. Granted, the ticket is that of a holder.
//   - In each queue exactly one of these follows the end: Grant, GiveWay, Leave or Replace. So the
//     next in line always tries.
//
// What can come late: a copy of the release, which meets a name that has nothing; a copy of the
// hand-over, whose new name is undone after its old one (giveBackInDoubt); a waiter that leaves
// while it is handed the lock (passOn); and an answer after the deadline (notOurs).

// unlock takes one level of t away from h, whatever Redis answers. The last one ends the
// hold: here first, then on Redis, where the lock goes to the next waiter of this process
// or is given back.
func (h *hold) unlock(t *keys.Set, s *settings) error {
	h.check()
	h.mu.Lock()
	lv, popped := h.levels.pop(t)
	if !popped {
		held := len(h.levels.open) > 0
		h.mu.Unlock()
		if !held { // its owner waits for it, or has just given it back
			return notHeld(h.owner)
		}
		return fmt.Errorf("%w through this handle: %s acquired it through a handle for other names; call Unlock of that handle", ErrNotHeld, h.owner.Who())
	}
	last := len(h.levels.open) == 0
	if h.phase != held {
		// mutant: unlock-hides-loss
		cause, over := h.cause, last && h.phase == lost
		h.mu.Unlock()
		if over {
			h.unregister()
		}
		return cause
	}
	h.levels.keep(lv)
	if last {
		h.end(ending, ErrReleased)
	} else {
		h.endFreed()
	}
	h.mu.Unlock()

	ctx := h.session.limits.After(s.unlockTimeout)
	if !last {
		return h.step(ctx, s)
	}
	err := h.finish(ctx, s)
	h.mu.Lock()
	hook, event := h.hooks().Released, Event{}
	if hook != nil {
		event = h.event(h.session.now().Since(h.lease.Acquired()), err)
	}
	h.mu.Unlock()
	if hook != nil {
		h.session.report("Released", hook, h.owner, event)
	}
	return err
}

// releaseOptions are those of the commands of an Unlock by a handle with the settings s. A second
// copy of them, which does not go through the engine, is to fit into its time-out: it learns
// what keeps the engine silent.
func (h *hold) releaseOptions(s *settings) redisexec.CallOptions {
	e := h.session.paced(redisexec.CallOptions{}, h.settings.TTL)
	e.Patience = min(e.Patience, max(redisexec.MinCopyPatience, s.unlockTimeout/2))
	return e
}

// step tells Redis the counts after a level was taken away that was not the last. Without
// an answer the count on Redis is too high until the next command of the hold sets it right.
func (h *hold) step(ctx context.Context, s *settings) error {
	if h.slot.take(ctx) {
		defer h.slot.free()
		return h.sendCounts(ctx, s)
	}
	// Not left to the next command: that might be a renewal, and keep keys without a level.
	h.session.goroutines.Go(func() { h.stepLate(s) })
	return fmt.Errorf("released one of several holds locally, but Redis has not confirmed the new count yet: %w", lockerr.Ended(ctx))
}

// stepLate is step for a caller who has gone.
func (h *hold) stepLate(s *settings) {
	if !h.slot.take(h.session.background) {
		return
	}
	defer h.slot.free()
	ctx, cancel := context.WithTimeout(h.session.background, s.unlockTimeout)
	defer cancel()
	_ = h.sendCounts(ctx, s) // the caller was told that Redis does not know
}

// sendCounts is step when it is its turn.
func (h *hold) sendCounts(ctx context.Context, s *settings) error {
	h.mu.Lock()
	if h.phase != held { // another caller's Unlock, or a loss, has the last word
		defer h.mu.Unlock()
		if h.phase == lost {
			return h.cause
		}
		return nil
	}
	n, counts, lasts, keep := h.name, h.levels.counts(h.target.Keys), h.lease.Longest(), h.levels.keepUntil
	t := h.target.Lacking(n.Absent)
	h.mu.Unlock()

	p := protocol.KeepingUntil(h.kind.protocol, h.session.now, keep)
	answer, out := p.Release(ctx, h.releaseOptions(s), t, n.Field, counts)
	if out.Ambiguous {
		h.session.identities.Retire(n.Identity)
	}
	if out.Err != nil {
		if freed := t.Without(counts); freed != nil { // or the next renewal would miss them
			h.session.identities.Retire(n.Identity)
			h.session.undo(h.kind.protocol, undo.Name{Keys: freed, Until: h.session.now().After(lasts), KeepUntil: keep}, n.Field)
			h.shrink(counts)
		}
		return fmt.Errorf("released one of several holds locally, but Redis did not confirm the new count: %w", out.Err)
	}
	// A second copy does not find the keys that the first one gave back.
	if !answer.Ours && !(out.Ambiguous && slices.Contains(counts, 0)) {
		h.forgetKept(answer, t, n)
		h.lose(lockerr.ErrNotOnRedis)
		return fmt.Errorf("%w: %w", ErrLost, lockerr.ErrNotOnRedis)
	}
	h.shrink(counts)
	return nil
}

// forgetKept has what was kept of t given back, of which it turned out that n did not hold all: a hold that
// was lost keeps nothing.
func (h *hold) forgetKept(answer protocol.Released, t *keys.Set, n identity.Name) {
	if answer.Kept {
		until := h.keptUntil()
		h.session.undo(h.kind.protocol, undo.Name{Keys: t, Until: until}, keys.Kept(n.Field, until))
	}
}

// shrink lets go of the keys whose count is 0: their queues go on. What has one key keeps it.
func (h *hold) shrink(counts []int) {
	if !slices.Contains(counts, 0) {
		return
	}
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
			keys, kept = append(keys, p.gate.id.key), append(kept, p)
		}
	}
	h.target, h.places = h.target.Only(keys), kept
	h.mu.Unlock()
	for _, p := range left {
		p.ticket.Leave()
		h.session.registry.exit(p.gate, h)
	}
}

// finish gives the lock back, or hands it over. h is ending; after it, h is gone. The answer is that of all who ended
// in its batch before.
func (h *hold) finish(ctx context.Context, s *settings) error {
	defer h.unregister()
	if answer := h.handOverLocally(s); answer != nil {
		return h.awaitAnswer(ctx, answer)
	}
	if h.batch != nil {
		h.endBatch(ctx)
	}
	// The watchdog has been stopped: a renewal under way is abandoned, not waited for.
	if !h.slot.take(ctx) {
		return h.abandon(lockerr.Ended(ctx))
	}
	if h.batch != nil {
		runtime.Gosched() // those who were answered just now may want the lock again
		if answer := h.handOverLocally(s); answer != nil {
			h.slot.free()
			return h.awaitAnswer(ctx, answer)
		}
	}
	defer h.slot.free()
	// Redis is told first.
	next, crowded := h.successor(s.localHandoffs)
	passed, err := false, error(nil)
	if next != nil {
		passed, err = h.handOver(ctx, s, next)
	}
	if !passed {
		err = h.giveBack(ctx, s, crowded)
	}
	if h.batch != nil {
		h.batch.end(err)
	}
	if h.name.Late {
		h.undoName(h.name, h.lease.Longest())
	}
	return err
}

// giveBackInDoubt is giveBack after a hand-over begun at began that Redis has refused, but of which
// a copy was not answered. If that is executed before the release, the name it was for has the keys:
// to be undone then, because what undid it before may have come too soon.
func (h *hold) giveBackInDoubt(ctx context.Context, s *settings, began clock.Instant, undo func()) error {
	err := h.giveBack(ctx, s, false)
	if errors.Is(err, lockerr.ErrNotOnRedis) {
		undo()
		return h.notOurs(began, redisexec.Outcome{Ambiguous: true})
	}
	return err
}

// giveBack releases the keys for all. crowded: waiters of this process were not
// served because others come first.
func (h *hold) giveBack(ctx context.Context, s *settings, crowded bool) error {
	var buf [4]uint64
	marks := buf[:0]
	for _, p := range h.places {
		marks = append(marks, p.queue.Wakes())
	}
	h.mu.Lock()
	t, n, keep := h.target, h.name, h.levels.keepUntil
	h.mu.Unlock()
	if h.batch != nil {
		n = h.onRedis()
	}
	e, began := h.releaseOptions(s), h.session.now()
	if keep != (clock.Instant{}) && began.UntilMono(keep) > 0 {
		e = e.ConfirmedBy(h.settings.replicas.Before(ctx))
	}
	p := protocol.KeepingUntil(h.kind.protocol, h.session.now, keep)
	answer, out := p.Release(ctx, e, t.Lacking(n.Absent), n.Field, make([]int, len(h.places)))
	if out.Ambiguous || out.Unconfirmed != nil {
		h.session.identities.Retire(n.Identity)
	}
	if out.Err != nil {
		return h.abandon(out.Err)
	}
	var lost error
	if !answer.Ours {
		lost = h.notOurs(began, out)
		h.forgetKept(answer, t, n)
	}
	for i, p := range h.places {
		p.gate.heard()
		if len(h.places) == 1 && !answer.Kept {
			p.gate.setAlone(!answer.Granted)
		}
		if h.kind.lined != nil && crowded && !answer.Granted {
			p.gate.beginForeignTurn(h.session.now())
		}
		if crowded && h.kind.lined == nil {
			heard := answer.Heard
			if h.other != nil {
				heard += h.other.rivals()
			}
			if h.session.scattered && answer.Heard >= 0 {
				heard = max(heard, 2) // perhaps
			}
			if alone := heard == 0 || heard == 1 && p.gate.listening(); !alone {
				p.ticket.GiveWay(marks[i], max(heard*(1+answer.Extra), 1))
				continue
			}
		}
		p.ticket.Leave()
	}
	if h.other != nil {
		h.other.released(answer)
	}
	if !answer.Ours {
		return lost
	}
	if out.Unconfirmed != nil {
		return fmt.Errorf("released, but a failover may end the min hold early, because too few replicas confirmed it: %w", out.Unconfirmed)
	}
	return nil
}

// notOurs judges the answer to a command begun at began that Redis does not know the hold.
// If an earlier copy of the same command may have been executed, that one succeeded, however
// late the answer is. Begun past the deadline, or without such a copy, the hold had been lost:
// by a command of another owner's, of which late copies may be on their way to the name. So the name is retired, before
// anyone hears of that.
func (h *hold) notOurs(began clock.Instant, out redisexec.Outcome) error {
	h.session.identities.Retire(h.onRedis().Identity)
	h.mu.Lock()
	defer h.mu.Unlock()
	if out.Ambiguous && began.Until(h.lease.Deadline()) > 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrLost, lockerr.ErrNotOnRedis)
}

// abandon ends the hold without Redis' answer: its name is released in the background, and
// the next waiter tries under a new one.
func (h *hold) abandon(err error) error {
	h.giveUp(err)
	h.leave()
	if h.other != nil {
		h.other.wake()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unconfirmed(err)
}

// unconfirmed is err for a hold that has ended here, of which Redis may not have heard. mu is held.
func (h *hold) unconfirmed(err error) error {
	lasts := h.lease.Longest()
	if h.levels.keepUntil != (clock.Instant{}) {
		lasts = max(lasts, h.session.now().UntilMono(h.levels.keepUntil).Round(time.Millisecond))
	}
	return fmt.Errorf("released locally, but not confirmed by Redis; the key may remain for up to %v: %w", lasts, err)
}
