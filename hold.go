package relock

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/undo"
)

// phase is the state of a hold.
//
//	acquiring -> held -> ending -> gone
//	    |         |        | (Close)
//	    |         +----> lost ---> gone
//	    +------------------------> gone
type phase uint8

const (
	acquiring phase = iota // waits, or a request for the keys is in flight
	held                   // the keys are granted, and the lease has not run out
	ending                 // ended here by its last Unlock or by Close; the release is being sent
	lost                   // ended before its last Unlock, which is still to come
	gone                   // in no gate
)

// hold is one owner's use of one key, or of several keys that are acquired together: from the request, through one
// acquisition and its re-entries, to the release. A command of one hold whose outcome is unknown never affects another
// hold, even of the same owner: each hold has its own name on Redis, or a name under which no command of an earlier
// hold can still be executed.
type hold struct {
	// These fields do not change.
	session  *session
	kind     *kind
	owner    keys.Owner
	settings *settings     // of the handle that acquires it
	waits    bool          // its Lock waits until the keys are free; a TryLock does not
	other    *otherSide    // of a read-write lock; nil for other kinds
	started  clock.Instant // when the hold was requested

	// Other goroutines use these while the hold is acquired.
	alarm queue.Alarm // wakes the waiter
	// inherited is the entry in the line that the hold received together with the turn; nil: it received none. offered is
	// the hand-over that was sent for the hold. The queue guards both: Reserve writes them, and they are read after the
	// ticket was granted, or has left.
	inherited *inheritedEntry
	offered   offer
	// note is what is known of deadlocks, while it waits; nil: nothing.
	note atomic.Pointer[waitNote]

	mu    sync.Mutex
	phase phase
	// changed is closed at the next change of phase. It is created when a goroutine waits for that change.
	changed chan struct{}

	// target and queueEntries go together, key by key. A key of a MultiMutex leaves both when its last open Lock is unlocked.
	// The goroutine that acquires the hold reads them without mu, and so does the one that ends it and has its slot: no other
	// goroutine changes them then. That of a kind with batches has one key, and needs no slot.
	target       *keys.Set
	queueEntries []queueEntry

	name keys.Name // guarded by mu

	// batch and slot are written under mu, by the goroutine that acquires the hold, or by the goroutine that ends the previous
	// hold and then grants the ticket. The goroutine that ends the hold reads them without mu, because they no longer change.
	batch *batch // of holds that follow one another under one lease; nil: the hold is in no batch
	slot  *slot  // taken while a command for its keys is in flight: one at a time. Does not change once there is a name

	// mu guards the rest.

	// undos are the undos of what a failed attempt may have on Redis: the caller of Lock waits for them for a moment, so that
	// the next attempt, of any owner, does not meet its remains. A hand-over that comes too late adds one.
	undos    []<-chan struct{}
	lease    lease.Lease
	locks    openLocks // at least one while it is held
	contexts contextSet
	demand   chan struct{} // closed when another owner waits; nil: nobody has asked (Wanted)
	watchdog watchdog
	cause    error // why the hold ended: wraps ErrLost, ErrClosed or ErrReleased
	detached bool  // its last Unlock has returned, and its release is sent in the background
	lingered bool  // it is detached, and lingers, or has lingered (hold_linger.go)

	first struct { // saves allocations: most holds need one of each
		slot   slot
		entry  [1]queueEntry
		ticket queue.Ticket[*hold]
	}
}

// offer is a hand-over that was sent for a waiter. In the zero offer, none was sent.
type offer struct {
	identity *keys.Identity // under which the waiter will hold the lock
	ended    chan struct{}  // closed when the hand-over has ended
}

func newHold(c *session, k *kind, o keys.Owner, t *keys.Set, s *settings, waits bool) *hold {
	h := &hold{
		session:  c,
		kind:     k,
		owner:    o,
		settings: s,
		waits:    waits,
		target:   t,
		lease:    lease.New(s.TTL),
		started:  c.now(),
	}
	h.other = newOtherSide(c, t, o)
	h.queueEntries, h.slot = h.first.entry[:0], &h.first.slot
	h.locks.wish, h.locks.open = s, h.locks.room[:0]
	return h
}

// register puts h into the gates of its keys, with a ticket for each. If the owner already has a hold in one of these
// gates, register returns false, and h is gone.
func (h *hold) register() bool {
	for i := range h.target.Keys {
		g := h.session.registry.enter(gateID{h.target.Keys[i], h.target.Side}, h.target.Channels[i], h)
		if g == nil {
			h.unregister()
			return false
		}
		p := h.kind.newQueueEntry(g)
		if p.ticket = &h.first.ticket; i > 0 {
			p.ticket = new(queue.Ticket[*hold])
		}
		p.queue.Issue(p.ticket, h, &h.alarm)
		h.mu.Lock() // other goroutines can find h from here on
		h.queueEntries = append(h.queueEntries, p)
		h.mu.Unlock()
	}
	return true
}

// unregister removes h from its gates; h is then gone.
func (h *hold) unregister() {
	h.mu.Lock()
	h.setPhase(gone)
	queueEntries, detached := h.queueEntries, h.detached
	h.queueEntries = nil
	h.mu.Unlock()
	for _, p := range queueEntries {
		h.session.registry.exit(p.gate, h)
	}
	if detached {
		h.session.detached.Add(-1)
	}
}

// setPhase sets the phase of h, and wakes the goroutines that wait for that. mu is held.
func (h *hold) setPhase(p phase) {
	h.phase = p
	h.wake()
}

// wake wakes the goroutines that wait for a change. mu is held.
func (h *hold) wake() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// changes returns a channel that is closed when h next changes its phase or begins to linger, or sooner. mu is held.
func (h *hold) changes() <-chan struct{} {
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return h.changed
}

// count returns the hold count of those keys of t that are in this hold: the least of them. It returns 0 if one of these
// keys is not locked.
func (h *hold) count(t *keys.Set) int {
	// mutant: clock-not-asked
	h.check()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != held {
		return 0
	}
	least, counts := -1, h.locks.counts(h.target.Keys)
	for i, key := range h.target.Keys {
		if t.Has(key) && (least < 0 || counts[i] < least) {
			least = counts[i]
		}
	}
	return max(least, 0)
}

// left returns for how long after now those keys of t that are in this hold are proven to be held. It returns 0 if one of
// these keys is not held.
func (h *hold) left(t *keys.Set, now clock.Instant) time.Duration {
	h.check()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != held || h.unlocked(t) {
		return 0
	}
	return max(0, h.lease.Left(now))
}

// remaining returns for how long h is still proven; 0: it is not held.
func (h *hold) remaining(now clock.Instant) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != held {
		return 0
	}
	return h.lease.Left(now)
}

// holdsAs reports whether h is held and field is its name, or may have been the name of its batch on Redis at the time
// asked.
func (h *hold) holdsAs(field string, asked clock.Instant) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.phase == held && (h.name.Field == field || h.batch.mayBeOnRedis(field, asked))
}

// end ends a hold locally, before the release is sent: it cancels the contexts and stops the watchdog. The hold is in
// the phase held. mu is held.
func (h *hold) end(p phase, cause error) {
	h.setPhase(p)
	h.cause = cause
	h.locks.recordMinHold(h.locks.open...) // after Close they stay open
	if p == lost {
		h.locks.placeholderUntil = clock.Instant{}
	}
	for _, x := range h.contexts.take(nil) {
		// mutant: context-ends-late
		x.cancel(lockerr.Wrap("hold", h.target.Name, cause))
	}
	h.watchdog.timer.Stop()
	if h.watchdog.stop != nil {
		h.watchdog.stop()
	}
}

// placeholderUntil returns the end of the min hold, until which a placeholder reserves the keys of h on Redis after h has
// ended. Zero: there is no min hold.
func (h *hold) placeholderUntil() clock.Instant {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.locks.placeholderUntil
}

// inMinHold reports whether the min hold of h is not over: until then no hold can follow.
func (h *hold) inMinHold() bool {
	until := h.placeholderUntil()
	return until != (clock.Instant{}) && h.session.now().UntilMono(until) > 0
}

// leave removes the tickets from the local queues. The next waiter of each queue tries at once: what an attempt that leaves
// has found does not count for it.
func (h *hold) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.queueEntries {
		p.ticket.Leave()
	}
}

// fencingToken returns the token of a hold that is held, or lost and not unlocked yet. It returns false if the owner does
// not hold all those keys of t that are in this hold.
func (h *hold) fencingToken(t *keys.Set) (int64, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != held && h.phase != lost || h.unlocked(t) {
		return 0, false
	}
	return h.name.Token, true
}

// isAcquiring reports whether h is still being acquired.
func (h *hold) isAcquiring() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.phase == acquiring
}

// giveUp retires the names that Redis may have for h. Only then does it send why to the Unlocks that wait in the batch,
// and has the names released in the background. In the other order, an owner that was notified could lock again under
// such a name, and the release would end that hold.
func (h *hold) giveUp(why error) {
	h.mu.Lock()
	n, b, lasts := h.name, h.batch, h.lease.Longest()
	h.mu.Unlock()
	h.session.identities.Retire(n.Identity)
	b.end(why)
	if b == nil {
		h.undoName(n, lasts)
		return
	}
	var fields []string
	for _, n := range b.names() {
		fields = append(fields, n.Field)
	}
	until := h.session.now().After(lasts)
	h.addUndo(h.session.undo(h.kind.protocol, undo.Name{Keys: b.target, Until: until, PlaceholderUntil: h.placeholderUntil()}, fields...))
}

// undoName is undo for all that h may have on Redis under the name n.
func (h *hold) undoName(n keys.Name, lasts time.Duration) {
	h.mu.Lock()
	t := h.target.Lacking(n.Absent)
	h.mu.Unlock()
	h.undoKeys(t, n, lasts)
}

// undoKeys is undoName for some of the keys. A late copy of a request of a MultiMutex may also be one for an entry in the line
// of one key.
func (h *hold) undoKeys(t *keys.Set, n keys.Name, lasts time.Duration) {
	h.undo(h.kind.protocol, t, n, lasts, false)
	if n.Late && h.kind.lock == KindMulti && h.kind.lined != nil {
		for i := range t.Keys {
			h.undo(h.kind.lined, t.Only(t.Keys[i:i+1]), n, lasts, false)
		}
	}
}
