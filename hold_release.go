package relock

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/undo"
)

// How a hold ends, from the outside in:
//
//	end            ends the hold locally: contexts, watchdog. It always comes first.
//	finish         ends the hold on Redis: handOver to the next local waiter, otherwise release,
//	               which releases the keys, or replaces them by placeholders if the min hold is not over. If Redis
//	               does not answer, abandon. After finish, unlock calls the hook Released.
//	giveUp         retires the name, notifies the Unlocks that wait in its batch, and has the name released in the
//	               background. It is part of abandon, of lose, and of reject, which drops a grant that does not count.
//	leave          lets the next waiter in each local queue go on.
//	unregister     removes the hold from its gates: it is gone.
//
// Invariants:
//   - The open Lock is removed whatever Redis answers. An error reports only that the key may remain on Redis.
//   - If a release is not answered, the name is retired before Unlock returns.
//   - A hand-over goes to a waiter that wants the same keys, and whose ticket is reserved, so it cannot leave the queue
//     unnoticed. When the ticket is granted, the waiter is the holder.
//   - In each local queue exactly one of these follows the end: Grant, GiveWay, Leave or Replace. So the next waiter
//     always tries.
//
// What can come late: a delayed copy of the release, whose name holds nothing any more; a delayed copy of the hand-over,
// whose new name is undone after its old one (handOverByRedis); a waiter that leaves while the lock is handed to it
// (its name is undone); and an answer after the deadline (notOurs).

// unlock removes one open Lock of t from h, whatever Redis answers. The last one ends the hold, locally first. On Redis the
// lock is then handed over to the next local waiter, or released.
func (h *hold) unlock(t *keys.Set, s *settings) error {
	h.check()
	h.mu.Lock()
	lock, popped := h.locks.pop(t)
	if !popped {
		held := len(h.locks.open) > 0
		h.mu.Unlock()
		if !held { // its owner waits for it, or has just released it
			return notHeld(h.owner)
		}
		return fmt.Errorf("%w through this handle: %s acquired it through a handle for other names; call Unlock of that handle", ErrNotHeld, h.owner.Who())
	}
	last := len(h.locks.open) == 0
	if h.phase != held {
		// mutant: unlock-hides-loss
		cause, over := h.cause, last && h.phase == lost
		h.mu.Unlock()
		if over {
			h.unregister()
		}
		return cause
	}
	h.locks.recordMinHold(lock)
	if last {
		h.end(ending, ErrReleased)
	} else {
		h.endFreed()
	}
	h.mu.Unlock()

	switch {
	case !last:
		return h.step(h.session.limits.After(s.unlockTimeout), s)
	case h.linger(s):
		return nil
	case s.asyncUnlock && h.session.releases.Len() < mostReleases:
		h.detach()
		h.session.releases.Go(func() { h.session.noteRelease(h.finishAndReport(s)) })
		return nil
	default:
		return h.finishAndReport(s)
	}
}

// mostReleases bounds the releases of a client in the background. Each release is a goroutine. When there are more, Redis
// does not answer, or not as fast as locks are unlocked: then an Unlock waits for its release. Holds that lingered have no
// such bound: no Unlock could wait, and each name has one at most, because a lock lingers only if Redis has answered.
const mostReleases = 1000

// detach lets the Unlock of h, which has ended, return before the release: h is not the hold of its owner any more.
func (h *hold) detach() {
	h.session.detached.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.detached = true
	for _, p := range h.queueEntries {
		p.gate.detach(h)
	}
}

// isDetached reports whether the last Unlock of h has returned, and its release is not answered yet.
func (h *hold) isDetached() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.detached
}

// finishAndReport ends h on Redis, and calls the hook Released.
func (h *hold) finishAndReport(s *settings) error {
	err := h.finish(h.session.limits.After(s.unlockTimeout), s)
	h.unregister()
	h.reportReleased(h.session.now().Since(h.lease.Acquired()), err)
	return err
}

// reportReleased calls the hook Released after h was held for the time lasted.
func (h *hold) reportReleased(lasted time.Duration, err error) {
	h.mu.Lock()
	hook, event := h.hooks().Released, Event{}
	if hook != nil {
		event = h.event(lasted, err)
	}
	h.mu.Unlock()
	if hook != nil {
		h.session.report("Released", hook, h.owner, event)
	}
}

// releaseOptions returns the options of the commands of an Unlock by a handle with the settings s. A second copy of such
// a command, which does not go through the engine, fits into the time-out of the Unlock. Its error explains why the
// engine does not answer.
func (h *hold) releaseOptions(s *settings) redisexec.CallOptions {
	e := h.session.paced(redisexec.CallOptions{}, h.settings.TTL)
	e.Patience = min(e.Patience, max(redisexec.MinCopyPatience, s.unlockTimeout/2))
	return e
}

// step writes the counts to Redis after an open Lock was removed that was not the last one. If Redis does not answer, the
// count on Redis is too high until the next command of the hold corrects it.
func (h *hold) step(ctx context.Context, s *settings) error {
	if h.slot.take(ctx) {
		defer h.slot.free()
		return h.sendCounts(ctx, s)
	}
	// This is not left to the next command, which may be a renewal and would extend keys without an open Lock.
	h.session.goroutines.Go(func() {
		if !h.slot.take(h.session.background) {
			return
		}
		defer h.slot.free()
		ctx, cancel := context.WithTimeout(h.session.background, s.unlockTimeout)
		defer cancel()
		_ = h.sendCounts(ctx, s) // the Unlock has returned that Redis has not confirmed the count
	})
	return fmt.Errorf("released one of several holds locally, but Redis has not confirmed the new count yet: %w", lockerr.Ended(ctx))
}

// sendCounts is step with the slot taken.
func (h *hold) sendCounts(ctx context.Context, s *settings) error {
	h.mu.Lock()
	if h.phase != held { // another Unlock has ended the hold, or it was lost
		defer h.mu.Unlock()
		if h.phase == lost {
			return h.cause
		}
		return nil
	}
	n, counts, lasts, keep := h.name, h.locks.counts(h.target.Keys), h.lease.Longest(), h.locks.placeholderUntil
	t := h.target.Lacking(n.Absent)
	h.mu.Unlock()

	freed, e := t.Without(counts), h.releaseOptions(s)
	if freed != nil {
		e = h.confirmsPlaceholder(ctx, e)
	}
	answer, out := protocol.ReleaseUntil(ctx, h.kind.protocol, e, t, n.Field, counts, h.session.now, keep)
	if out.Ambiguous || out.Unconfirmed != nil {
		h.session.identities.Retire(n.Identity)
	}
	if out.Err != nil {
		if freed != nil { // otherwise the next renewal would not find these keys
			h.undoKeys(freed, n, lasts)
			h.shrink(counts)
		}
		return fmt.Errorf("released one of several holds locally, but Redis did not confirm the new count: %w", out.Err)
	}
	// A second copy does not find the keys that the first one released.
	if !answer.Ours && !(out.Ambiguous && freed != nil) {
		h.releasePlaceholders(answer, t, n, keep)
		h.lose(lockerr.ErrNotOnRedis)
		return fmt.Errorf("%w: %w", ErrLost, lockerr.ErrNotOnRedis)
	}
	if freed != nil && n.Late { // the end of h undoes only the keys that it has then
		h.undoKeys(freed, n, lasts)
	}
	h.shrink(counts)
	return minHoldUnconfirmed(out)
}

// confirmsPlaceholder returns e for a release that leaves a placeholder, if the min hold is not over: the replicas of the Locks
// that ask for the min hold confirm it.
func (h *hold) confirmsPlaceholder(ctx context.Context, e redisexec.CallOptions) redisexec.CallOptions {
	if !h.inMinHold() {
		return e
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return e.ConfirmedBy(h.settings.replicas.And(h.locks.placeholderReplicas).Before(ctx))
}

// minHoldUnconfirmed returns the error of a release whose placeholders too few replicas confirmed; nil: enough did.
func minHoldUnconfirmed(out redisexec.Outcome) error {
	if out.Unconfirmed == nil {
		return nil
	}
	return fmt.Errorf("released, but a failover may end the min hold early, because too few replicas confirmed it: %w", out.Unconfirmed)
}

// releasePlaceholders releases, in the background, the placeholders until the end of the min hold on keys of t after an answer
// that n did not hold all of them: a lost hold leaves no placeholder. A hold of one key on one deployment has left none.
func (h *hold) releasePlaceholders(answer protocol.Released, t *keys.Set, n keys.Name, until clock.Instant) {
	if several := len(t.Keys) > 1 || len(h.session.undos) > 1; answer.Placeholder && several {
		h.session.undo(h.kind.protocol, undo.Name{Keys: t, Until: until}, keys.Placeholder(n.Field, until))
	}
}

// shrink removes the keys whose count is 0 from h, and lets their local queues go on. A hold of one key keeps its key.
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
	var kept, left []queueEntry
	for i, p := range h.queueEntries {
		if counts[i] == 0 {
			left = append(left, p)
		} else {
			keys, kept = append(keys, p.gate.id.key), append(kept, p)
		}
	}
	h.target, h.queueEntries, h.demand = h.target.Only(keys), kept, nil
	h.mu.Unlock()
	for _, p := range left {
		p.ticket.Leave()
		h.session.registry.exit(p.gate, h)
	}
}

// finish hands the lock over, or releases it. h is ending. The answer counts for all holds of the batch that ended before.
func (h *hold) finish(ctx context.Context, s *settings) error {
	if answer, _, _ := h.handOver(s, false); answer != nil {
		return h.awaitAnswer(ctx, answer)
	}
	h.endBatch(ctx)
	// The watchdog is stopped, which abandons a renewal in flight.
	if !h.slot.take(ctx) {
		return h.abandon(lockerr.Ended(ctx))
	}
	if h.batch != nil || h.isDetached() {
		runtime.Gosched() // owners that were just answered, or whose Unlock has returned, may want the lock again
	}
	answer, next, crowded := h.handOver(s, true)
	if answer != nil {
		h.slot.free()
		return h.awaitAnswer(ctx, answer)
	}
	defer h.slot.free()
	h.batch.holderEnds() // it may have begun just now, for a waiter that has left
	passed, err := false, error(nil)
	if next != nil {
		passed, err = h.handOverByRedis(ctx, s, next)
	}
	if !passed {
		err = h.release(ctx, s, crowded)
	}
	h.batch.end(err)
	h.mu.Lock()
	name, longest := h.name, h.lease.Longest()
	h.mu.Unlock()
	if name.Late {
		h.undoName(name, longest)
	}
	return err
}

// zeros is only read.
var zeros [4]int

// noneLeft returns the counts of n keys that are released.
func noneLeft(n int) []int {
	if n <= len(zeros) {
		return zeros[:n:n] // an allocation less for each Unlock
	}
	return make([]int, n)
}

// release releases the keys on Redis. crowded: local waiters were not served, because it is the turn of others.
func (h *hold) release(ctx context.Context, s *settings, crowded bool) error {
	var buf [4]uint64
	marks := buf[:0]
	for _, p := range h.queueEntries {
		marks = append(marks, p.queue.Wakes())
	}
	h.mu.Lock()
	t, keep := h.target, h.locks.placeholderUntil
	h.mu.Unlock()
	n := h.onRedis()
	e, began := h.confirmsPlaceholder(ctx, h.releaseOptions(s)), h.session.now()
	none := noneLeft(len(h.queueEntries))
	answer, out := protocol.ReleaseUntil(ctx, h.kind.protocol, e, t.Lacking(n.Absent), n.Field, none, h.session.now, keep)
	if out.Ambiguous || out.Unconfirmed != nil {
		h.session.identities.Retire(n.Identity)
	}
	if out.Err != nil {
		return h.abandon(out.Err)
	}
	err := minHoldUnconfirmed(out)
	if !answer.Ours {
		err = h.notOurs(began, out)
		h.releasePlaceholders(answer, t, n, keep)
	}
	h.leaveFor(answer, out.Sent, marks, crowded)
	return err
}

// leaveFor leaves the local queues after the answer to a release that was sent at sent. marks are the numbers of wake-ups
// before it. If crowded, the local waiters give way to those that the release woke.
func (h *hold) leaveFor(answer protocol.Released, sent clock.Instant, marks []uint64, crowded bool) {
	for i, p := range h.queueEntries {
		p.gate.answered()
		if len(h.queueEntries) == 1 && !answer.Placeholder {
			p.gate.seesLine(lineIs(answer.Granted), sent)
		}
		if h.kind.lined != nil && crowded && !answer.Granted {
			p.gate.beginForeignTurn(h.session.now())
		}
		if crowded && h.kind.lined == nil {
			receivers := answer.Receivers + h.other.rivals()
			if h.session.scattered && answer.Receivers >= 0 {
				receivers = max(receivers, 2) // perhaps
			}
			if alone := receivers == 0 || receivers == 1 && p.gate.listening(); !alone {
				p.ticket.GiveWay(marks[i], max(receivers*(1+answer.Extra), 1))
				continue
			}
		}
		p.ticket.Leave()
	}
	h.other.released(answer)
}

// notOurs returns the error after an answer that h does not hold the keys on Redis, to a command that was sent at began.
// If the command was sent before the deadline, and an earlier copy of it may have been executed, that copy succeeded,
// and there is no error, however late the answer is. Otherwise the hold was lost, by a command of another owner. The name
// is retired first, before a loss is reported, because delayed copies of commands for it may still arrive.
func (h *hold) notOurs(began clock.Instant, out redisexec.Outcome) error {
	h.session.identities.Retire(h.onRedis().Identity)
	h.mu.Lock()
	defer h.mu.Unlock()
	if out.Ambiguous && began.Until(h.lease.Deadline()) > 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrLost, lockerr.ErrNotOnRedis)
}

// abandon ends the hold without an answer from Redis. Its name is released in the background, and the next waiter tries
// under a new name.
func (h *hold) abandon(err error) error {
	h.giveUp(err)
	h.leave()
	h.other.wake()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unconfirmed(err)
}

// unconfirmed wraps err for a hold that ended locally and whose release Redis did not confirm. mu is held.
func (h *hold) unconfirmed(err error) error {
	lasts := h.lease.Longest()
	if h.locks.placeholderUntil != (clock.Instant{}) {
		lasts = max(lasts, h.session.now().UntilMono(h.locks.placeholderUntil).Round(time.Millisecond))
	}
	return fmt.Errorf("released locally, but not confirmed by Redis; the key may remain for up to %v: %w", lasts, err)
}
