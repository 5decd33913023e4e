package relock

import (
	"context"
	"errors"
	"slices"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
)

// How a Lock chooses between a new hold and a re-entry. The owner may already have holds on some of the keys, each with
// its own name and lease. Lock checks all of them first:
//
//	none          a new hold for all keys, by an attempt (enterNew)
//	all keys      one more open Lock on each hold (enter): one request that sets the hold counts
//	some keys     a new hold for the rest first (enterRest), then an open Lock on the others
//	unsettled     one is being acquired or released: wait for its next phase, and check again. So Locks of one
//	              fixed owner, on several goroutines, queue behind each other
//	lost          ErrLost, until the hold is unlocked
//
// An open Lock is one Lock of a hold that was not unlocked yet (hold_locks.go).
//
// Invariants:
//   - All or nothing: if the rest is not acquired, the added open Locks are removed.
//   - An open Lock is added only if Redis confirms its count. If Redis does not answer, the open Lock is not added, and the next
//     command of the hold corrects the count, because counts are absolute.
//   - An open Lock is added if and only if its Lock succeeds. An open Lock that no caller unlocks would never end the hold.
//   - A re-entry never sets the count of a key without an open Lock to 0, because other clients take a 0 for no lock.
//   - If a hold is lost while the rest is waited for, the wait ends.
//   - One command of a hold is in flight at a time (hold.slot).
//
// What can come late: the hold ends while the request is in flight. Then Redis may have the new count, and the release
// that ends the hold is sent after it. enter reports how the hold ended.

// errAgain reports that an Unlock of the same owner ended a hold while an open Lock was being added to it. The Lock acquires
// a new hold.
var errAgain = errors.New("relock: the hold ended meanwhile")

// find appends the holds that o has on keys of t to holds, in any phase.
func (m *Mutex) find(holds []*hold, o keys.Owner, t *keys.Set) []*hold {
	for i := range t.Keys {
		if h := m.session.registry.find(gateID{t.Keys[i], t.Side}, o); h != nil && !slices.Contains(holds, h) {
			holds = append(holds, h)
		}
	}
	return holds
}

// covering appends the caller's holds on keys of m to holds. If they do not cover all keys of m, it returns nil.
func (m *Mutex) covering(holds []*hold) []*hold {
	if m.err != nil {
		return nil
	}
	holds = m.find(holds, m.owner(), m.target)
	if len(missingKeys(holds, m.target)) > 0 {
		return nil
	}
	return holds
}

// call is one Lock or TryLock in progress.
type call struct {
	mutex  *Mutex
	owner  keys.Owner
	adds   openLock
	waits  bool    // Lock, not TryLock
	record *record // of the events that hooks receive
}

// lock adds an open Lock to every key of m for its owner. It re-enters the keys that the owner holds, and acquires all other
// keys together.
func (m *Mutex) lock(ctx context.Context, waits bool) (locked bool, err error) {
	c := call{mutex: m, adds: openLock{settings: &m.settings, target: m.target}, waits: waits, record: newRecord(ctx, m)}
	locked, err = c.lock(ctx)
	c.record.ended(locked, err)
	return locked, err
}

// lock is Mutex.lock without the hook for its end.
func (c *call) lock(ctx context.Context) (locked bool, err error) {
	m := c.mutex
	if err := m.usable(ctx); err != nil {
		return false, err
	}
	if c.waits && m.settings.waitTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, m.settings.waitTimeout, lockerr.WaitOver(m.settings.waitTimeout))
		defer cancel()
	}
	c.owner = m.owner()
	var buf [4]*hold
	for {
		if m.session.closed() {
			return false, ErrClosed
		}
		holds := m.find(buf[:0], c.owner, m.target)
		if m.session.detached.Load() > 0 {
			holds = c.findDetached(holds)
		}
		if i := slices.IndexFunc(holds, (*hold).unsettled); i >= 0 {
			h := holds[i]
			if !c.waits && !h.isDetached() {
				return false, h.explain(h.outageError())
			}
			if err := h.await(ctx); err != nil {
				return false, h.explain(err)
			}
			continue
		}
		if len(holds) > 0 {
			locked, err = c.reenter(ctx, holds)
		} else {
			locked, err = c.enterNew(ctx, m.target)
		}
		if !errors.Is(err, errAgain) {
			return locked, err
		}
		c.record.again()
	}
}

// findDetached appends to holds those detached holds of the owner that c has to wait for, because a request under the
// name of such a hold must not overtake its release. A Lock of a Mutex does not wait here for a detached hold that a Mutex
// acquired: it waits behind that hold in the local queue, and sends nothing before it has the turn. If the hold lingers, a
// TryLock follows it, too. A lock of another kind cannot follow: then the lock that lingers is released first.
func (c *call) findDetached(holds []*hold) []*hold {
	m, follows := c.mutex, (*kind)(nil)
	if c.waits && m.kind.rename != nil {
		follows = m.kind
	}
	sides := []keys.Side{m.kind.side}
	if m.kind.side == keys.Writing || m.kind.side == keys.Reading {
		sides = []keys.Side{keys.Writing, keys.Reading}
	}
	for _, key := range m.target.Keys {
		for _, side := range sides {
			g := m.session.registry.gate(gateID{key, side})
			if g == nil {
				continue
			}
			if m.kind.rename == nil {
				if l := g.takeLingering(nil); l != nil {
					l.release()
					holds = append(holds, l.hold)
				}
			}
			if h := g.findDetached(c.owner, follows); h != nil {
				holds = append(holds, h) // mutant: async-name-reused
			}
		}
	}
	return holds
}

// unsettled reports whether h is being acquired or released.
func (h *hold) unsettled() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.phase == acquiring || h.phase == ending
}

// await waits until h has been acquired or released, or lingers, or ctx ends.
func (h *hold) await(ctx context.Context) error {
	h.mu.Lock()
	if h.phase != acquiring && h.phase != ending || h.lingersNow() {
		h.mu.Unlock()
		return nil
	}
	changed := h.changes()
	h.mu.Unlock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return lockerr.Ended(ctx)
	case <-h.session.closing:
		return ErrClosed
	}
}

// enterNew acquires a hold on t, whose keys the owner does not hold, with the open Lock of c. It returns errAgain if another
// goroutine of the same owner was faster.
func (c *call) enterNew(ctx context.Context, t *keys.Set) (locked bool, err error) {
	h := newHold(c.mutex.session, c.mutex.kind, c.owner, t, c.adds.settings, c.waits)
	if !h.register() {
		return false, errAgain
	}
	if h.session.closed() { // Close may have listed the holds before h was registered
		h.unregister()
		return false, ErrClosed
	}
	if h.session.detached.Load() > 0 && len(c.findDetached(nil)) > 0 { // it was detached since lock looked for it
		h.unregister()
		return false, errAgain
	}
	for _, r := range h.session.registrars {
		r.start()
	}
	if acquired, err := h.acquire(ctx, c.record); !acquired {
		h.unregister()
		if err != nil {
			h.awaitUndo()
		}
		return false, err
	}
	locked, err = h.open(c.adds, c.record)
	if locked && h.owner.Fixed != "" {
		h.other.wakeOwner()
	}
	return locked, err
}

// open makes h, which was granted, held with one open Lock, for the Lock whose record is r.
func (h *hold) open(lock openLock, r *record) (bool, error) {
	h.mu.Lock()
	if h.session.closed() {
		h.mu.Unlock()
		h.giveUp(ErrClosed)
		h.leave()
		h.unregister()
		return false, ErrClosed
	}
	now := h.session.now()
	h.lease.Begin(now)
	h.setPhase(held)
	h.locks.open = append(h.locks.open, lock.from(now))
	h.replan(now)
	queueEntries, seen, batch := h.queueEntries, sighting{at: now, holder: h.name.Field, hold: h}, h.batch
	hook, event := h.settings.hooks.Acquired, Event{}
	if hook != nil {
		event = h.event(0, nil)
	}
	h.mu.Unlock()
	if !h.kind.shared() { // a reader keeps no other reader out
		for _, p := range queueEntries {
			p.gate.sees(seen)
		}
	}
	if r != nil {
		r.acquired(&event, now)
	}
	if hook != nil {
		h.session.report("Acquired", hook, h.owner, event)
	}
	if batch.isOver() { // the lock was lost before h was held, so the loss was not reported
		h.lose(lockerr.ErrNotOnRedis)
	}
	return true, nil
}

// reenter acquires the keys of c that are in none of holds, as a lock of the kind of c, and then adds the open Lock of c to
// holds, which may be of another kind, such as a fair one. In this order a Lock that does not get the rest has changed
// no lease and no token of holds.
func (c *call) reenter(ctx context.Context, holds []*hold) (bool, error) {
	lock := c.adds
	for _, h := range holds {
		if err := h.usable(); err != nil {
			return false, err
		}
	}
	if !lock.settings.reentrant {
		return false, ErrReentrant
	}
	var entered []*hold
	if missing := missingKeys(holds, lock.target); len(missing) > 0 {
		rest := lock.target.Only(missing).FencedWith(lock.target)
		held, err := c.enterRest(ctx, holds, rest)
		if !held {
			return false, err
		}
		if entered = c.mutex.find(nil, c.owner, rest); err != nil {
			return false, lockerr.Join(err, unlockInner(ctx, entered, lock))
		}
	}
	for _, h := range holds {
		if err := h.enter(ctx, lock); err != nil {
			return false, lockerr.Join(err, unlockInner(ctx, entered, lock))
		}
		entered = append(entered, h)
	}
	if len(missingKeys(entered, lock.target)) > 0 { // an Unlock of another goroutine has released some of the others
		return false, lockerr.Join(errAgain, unlockInner(ctx, entered, lock))
	}
	return true, nil
}

// enterRest acquires rest for the owner of holds, which have the other keys of c. If one of these is lost or released
// meanwhile, the wait ends, and the error is the reason, or errAgain.
func (c *call) enterRest(ctx context.Context, holds []*hold, rest *keys.Set) (bool, error) {
	waiting := contextOfAll(ctx, holds, c.adds.target)
	defer waiting.endUpTo(nearestHoldContext(ctx), nil)
	held, err := c.enterNew(waiting, rest)
	if !held && ctx.Err() != nil {
		return false, err
	}
	var over error
	for _, h := range holds {
		over = lockerr.Join(over, h.usable())
	}
	switch {
	case over != nil:
		err = over
	case waiting.Err() != nil && ctx.Err() == nil: // a key was released
		err = errAgain
	}
	return held, err
}

// unlockInner removes an open Lock that was added to holds. If ctx has ended, it waits for Redis for undoGrace at most.
func unlockInner(ctx context.Context, holds []*hold, lock openLock) error {
	var errs []error
	s := *lock.settings
	if ctx.Err() != nil {
		s.unlockTimeout = min(s.unlockTimeout, undoGrace)
	}
	for _, h := range holds {
		h.mu.Lock()
		h.locks.revoke(lock.target)
		h.mu.Unlock()
		if err := h.unlock(lock.target, &s); err != nil && !errors.Is(err, ErrLost) {
			errs = append(errs, err)
		}
	}
	return lockerr.Join(errs...)
}

// missingKeys returns the keys of t that are in none of holds.
func missingKeys(holds []*hold, t *keys.Set) (missing []string) {
	for _, key := range t.Keys {
		if !slices.ContainsFunc(holds, func(h *hold) bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.target.Has(key)
		}) {
			missing = append(missing, key)
		}
	}
	return missing
}

// usable returns why h cannot be re-entered; nil: it can.
func (h *hold) usable() error {
	h.check()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch h.phase {
	case held:
		return nil
	case lost:
		// mutant: loss-forgotten
		return h.cause
	default:
		return errAgain
	}
}

// enter adds lock to a hold in the phase held. If Redis does not answer, the open Lock is not added, and the next
// command of the hold corrects the count on Redis.
func (h *hold) enter(ctx context.Context, lock openLock) error {
	if _, err := h.confirmName(ctx); err != nil {
		return err
	}
	if !h.slot.take(ctx) {
		return lockerr.Ended(ctx)
	}
	defer h.slot.free()
	if err := h.usable(); err != nil {
		return err
	}
	h.mu.Lock()
	t, n := h.target, h.name
	mint := lock.settings.Fencing && (n.Token == 0 || lock.target.Spans(t))
	counts := h.locks.counts(t.Keys)
	// The slot is taken, so no renewal is sent meanwhile.
	left := h.lease.Left(h.session.now())
	e := h.session.paced(tryOptions, h.settings.TTL).ConfirmedBy(h.locks.replicas().And(lock.settings.replicas).Within(left / 4))
	e.Renews = true
	h.lease.Lengthen(lock.settings.TTL)
	h.mu.Unlock()
	h.other.lengthen(lock.settings.TTL)
	common := false
	for i, key := range t.Keys {
		if lock.target.Has(key) {
			// mutant: reentry-not-counted
			counts[i]++
			common = true
		}
		counts[i] = max(counts[i], 1) // a key without an open Lock is about to be released: 0 is not a count
	}
	if !common {
		return errAgain // an Unlock has released the common keys
	}
	g, out := h.kind.protocol.Reenter(ctx, e, t.FencedWith(lock.target), n.Field, &lock.settings.Terms, mint, counts)
	if out.Ambiguous {
		h.session.identities.Retire(n.Identity)
	}
	if out.Err != nil {
		return out.Err
	}
	if !g.Held {
		h.lose(lockerr.ErrNotOnRedis)
		return h.usable()
	}
	if out.Unconfirmed != nil {
		return out.Unconfirmed
	}
	h.mu.Lock()
	h.answered()
	if h.phase != held {
		h.mu.Unlock()
		return h.usable()
	}
	h.lease.Prove(out.Sent, lock.settings.TTL, h.locks.ttl())
	h.lease.Note(out.LeaseLeft, out.Sent)
	h.name.Token = max(h.name.Token, g.Token)
	now := h.session.now()
	if h.lease.Left(now) <= 0 { // the next reading of a wall clock might be an earlier time
		why := h.leaseOver(now)
		h.mu.Unlock()
		h.lose(why)
		return h.usable()
	}
	h.locks.open = append(h.locks.open, lock.from(now))
	h.replan(now)
	h.mu.Unlock()
	return nil
}
