package relock

import (
	"sync"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/undo"
)

// phase is where in its life a hold is.
//
//	acquiring -> held -> ending -> gone
//	    |         |        | (Close)
//	    |         +----> lost ---> gone
//	    +------------------------> gone
type phase uint8

const (
	acquiring phase = iota // wants the keys; waits, or has asked Redis
	held                   // has them: granted, and the lease has not run out
	ending                 // given up by its last Unlock or by Close; Redis is being told
	lost                   // ended before its levels were unlocked, which is still to come
	gone                   // in no gate any more
)

// hold is one owner's use of one key, or of several keys taken together: from the wish for
// it, through one acquisition with all its levels, to the release. What is in doubt about
// one hold never touches another, even of the same owner: on Redis each has a name of its
// own, or one that no earlier hold can be reached by any more.
type hold struct {
	// These do not change.
	session  *session
	kind     *kind
	owner    keys.Owner
	settings *settings     // of the handle that wanted it
	other    *otherSide    // of a read-write lock; nil: it is no such lock
	started  clock.Instant // when it was wanted

	// What others have to do with it while it is acquired.
	alarm queue.Alarm // wakes the waiter
	// undos are what the caller waits for after a failure: what Redis may have of the attempt is being undone.
	undos undoWaits
	// given is the place in the line that it was given together with the turn; nil: none was. It is guarded by the
	// queue, as offered is: the hand-over that was sent for it. Reserve writes them, and they are read after the
	// ticket was granted, or has left.
	given   *given
	offered offer

	mu    sync.Mutex
	phase phase
	// changed is closed at the next change of phase; made when that is waited for.
	changed chan struct{}

	// target and places go together, key by key. Keys of a MultiMutex leave when their last
	// level is unlocked. The goroutine that acquires the hold, or ends it, reads them without mu: no other changes
	// them then.
	target *keys.Set
	places []place

	// name, batch and slot are written under mu, by the goroutine that acquires the hold, or by that of the hold before,
	// which then grants the ticket. Who ends the hold reads them without mu: they do not change any more.
	name  identity.Name
	batch *batch // of those that follow one another under one lease; nil: it is alone
	slot  *slot  // taken while a command about its keys is under way: one at a time. It stays once there is a name

	// mu guards the rest.
	lease    lease.Lease
	levels   levels // at least one while it is held
	contexts contextSet
	watchdog watchdog
	cause    error // of the end: wraps ErrLost, ErrClosed or ErrReleased

	first struct { // room for the usual one of each
		slot    slot
		place   [1]place
		ticket  queue.Ticket[*hold]
		attempt attempt // of the goroutine that acquires it
	}
}

// offer is a hand-over that was sent for a waiter. The zero offer: none was.
type offer struct {
	identity *identity.Identity // under which the waiter is to hold the lock
	ended    chan struct{}      // closed when the hand-over has ended
}

func newHold(c *session, k *kind, o keys.Owner, t *keys.Set, s *settings) *hold {
	h := &hold{
		session:  c,
		kind:     k,
		owner:    o,
		settings: s,
		target:   t,
		lease:    lease.New(s.TTL),
		started:  c.now(),
	}
	if k.side != keys.Alone {
		h.other = newOtherSide(c, t, o)
	}
	h.places, h.slot = h.first.place[:0], &h.first.slot
	h.levels.wish, h.levels.open = s, h.levels.room[:0]
	return h
}

// register puts h into the gates of its keys, with a ticket for each. false: its owner is
// there already; then h is gone.
func (h *hold) register() bool {
	for i := range h.target.Keys {
		g := h.session.registry.enter(gateID{h.target.Keys[i], h.target.Side}, h.target.Channels[i])
		if !g.add(h) {
			h.session.registry.exit(g, h)
			h.unregister()
			return false
		}
		p := h.kind.stand(g)
		if p.ticket = &h.first.ticket; i > 0 {
			p.ticket = new(queue.Ticket[*hold])
		}
		p.queue.Issue(p.ticket, h, &h.alarm)
		h.mu.Lock() // others can find it from here on
		h.places = append(h.places, p)
		h.mu.Unlock()
	}
	return true
}

// unregister takes h out of its gates: it is gone.
func (h *hold) unregister() {
	h.mu.Lock()
	h.setPhase(gone)
	places := h.places
	h.places = nil
	h.mu.Unlock()
	for _, p := range places {
		h.session.registry.exit(p.gate, h)
	}
}

// setPhase moves h on, and has those look again that wait for a change. mu is held.
func (h *hold) setPhase(p phase) {
	h.phase = p
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// changes returns a channel that is closed at the next change of phase, or sooner. mu is held.
func (h *hold) changes() <-chan struct{} {
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return h.changed
}

// count returns the number of levels on the target t, as far as its keys are in this hold:
// 0 if one of those is not locked.
func (h *hold) count(t *keys.Set) int {
	// mutant: clock-not-asked
	h.check()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != held {
		return 0
	}
	least, counts := -1, h.levels.counts(h.target.Keys)
	for i, key := range h.target.Keys {
		if t.Has(key) && (least < 0 || counts[i] < least) {
			least = counts[i]
		}
	}
	return max(least, 0)
}

// left returns for how long after now the target t is proven to be held, as far as its keys are in
// this hold: 0 if one of those is not.
func (h *hold) left(t *keys.Set, now clock.Instant) time.Duration {
	h.check()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != held || len(h.levels.open) == 0 || h.freed(t) {
		return 0
	}
	return max(0, h.lease.Left(now))
}

// holdsAs reports whether field is the name that h holds its keys by, as far as Redis knew when it was
// asked.
func (h *hold) holdsAs(field string, asked clock.Instant) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.phase == held && (h.name.Field == field || h.batch.knows(field, asked))
}

// end is the local end of a hold that is held, which comes before Redis hears of it:
// contexts are cancelled and the watchdog stops. mu is held.
func (h *hold) end(p phase, cause error) {
	h.setPhase(p)
	h.cause = cause
	h.levels.keep(h.levels.open...) // Close leaves them open
	if p == lost {
		h.levels.keepUntil = clock.Instant{}
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

// keptUntil is until when the keys of h are kept on Redis though it has ended. Zero: they are not.
func (h *hold) keptUntil() clock.Instant {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.levels.keepUntil
}

// isKept reports whether no one can follow h yet.
func (h *hold) isKept() bool {
	h.mu.Lock()
	until := h.levels.keepUntil
	h.mu.Unlock()
	return until != (clock.Instant{}) && h.session.now().UntilMono(until) > 0
}

// leave gives up the places in the queues; the next in each tries at once.
func (h *hold) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.places {
		p.ticket.Leave()
	}
}

// fencingToken returns the token of a hold that is held, or lost and not unlocked yet. false: its
// owner has not got all those keys of t that it is to have.
func (h *hold) fencingToken(t *keys.Set) (int64, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != held && h.phase != lost || len(h.levels.open) == 0 || h.freed(t) {
		return 0, false
	}
	return h.name.Token, true
}

// wanted reports whether h is being acquired: its owner has not got it.
func (h *hold) wanted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.phase == acquiring
}

// giveUp retires the names by which Redis may know h, and only then tells those who wait in its batch why, and has the
// names released. Whoever heard of the doubt before could lock again by such a name, and would lose that to the release.
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
	h.undos.add(h.session.undo(h.kind.protocol, undo.Name{Keys: b.target, Until: until, KeepUntil: h.keptUntil()}, fields...))
}

// undoName has what h may have on Redis by the name n, which has been retired, given up in
// the background. It ends by itself within lasts.
func (h *hold) undoName(n identity.Name, lasts time.Duration) {
	h.mu.Lock()
	t := h.target.Lacking(n.Absent)
	h.mu.Unlock()
	h.undo(h.kind.protocol, t, n, lasts, false)
}
