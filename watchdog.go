package relock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// The watchdog moves a hold from held to lost. Otherwise a hold is lost only by ForceUnlock, or by a release or a
// re-entry that finds that the key no longer has the hold.
//
//	asleep (a timer) --time to renew, or to check--> awake --nothing due--> asleep
//	awake: renew      answered, and ours           the deadline moves (lease.Prove)
//	                  answered, and not ours       lost: Redis does not have the hold
//	                  not answered in time         another copy is sent, and the answer to any copy counts
//	                  refused                      tries again soon
//	awake: deadline   no renewal was answered      lost: here first, before Redis frees the key
//
// Invariants:
//   - A loss waits for nothing: no answer, no other command of the hold, no hook.
//   - Only an answered renewal of this hold moves its deadline, counted from before it was sent.
//   - If the outcome of a renewal is unknown, the identity is retired: a delayed copy must not extend a later hold.
//   - lose retires the name before the loss is visible, because the owner may lock again from then on.
//
// What can come late: the timer, which may run after the end of the hold, and checks the phase; the answer to a
// renewal, which checks it, too; and the machine itself after a suspension: clocksMoved is called when the clocks have
// moved apart, and every call checks the deadline (check).

// errNotRenewed is the failure of a renewal that is in flight at the deadline of the hold.
var errNotRenewed = lockerr.Reason(fmt.Errorf("%w before the lease expired", lockerr.ErrNoAnswer))

// watchdog accompanies a hold from its grant to its end. It renews the lease while a Lock of the hold asks for renewal,
// tries again when Redis does not answer, and ends the hold as lost when Redis does not have it or the deadline
// has come. With a fixed lease it only watches the deadline. It is a goroutine when there is work, and a timer in
// between: most holds end before that, and ten thousand long holds would otherwise cost the stacks of ten
// thousand goroutines. Its fields are guarded by the hold's mu.
type watchdog struct {
	timer *time.Timer // wakes it; nil before the hold is held
	awake bool        // the goroutine is running, and checks again before it ends
	stop  func()      // ends the renewal in flight; nil before the first

	failures int           // unanswered copies of renewals in a row
	failure  error         // the most informative of their errors; nil if the last one was answered
	retry    clock.Instant // the next try after a failure
}

// replan schedules the next check of the hold, which is held at now. A watchdog that is awake will look by itself, but may be in
// a hook, or wait for an answer, beyond the deadline. mu is held.
func (h *hold) replan(now clock.Instant) {
	w := &h.watchdog
	if w.awake {
		h.wakeAtDeadline()
		return
	}
	wait, _ := h.plan(now)
	if w.timer == nil {
		w.timer = time.AfterFunc(wait, func() { h.session.goroutines.Run(h.watch) })
	} else {
		w.timer.Reset(wait)
	}
}

// watch checks the hold, and renews it while a renewal is due.
func (h *hold) watch() {
	h.mu.Lock()
	w := &h.watchdog
	if w.awake { // in a hook, for which a loss must not wait
		h.mu.Unlock()
		h.check()
		h.mu.Lock()
		h.wakeAtDeadline()
		h.mu.Unlock()
		return
	}
	for h.phase == held {
		wait, renew := h.plan(h.session.now())
		if w.awake = wait <= 0; !w.awake {
			w.timer.Reset(wait)
			break
		}
		h.mu.Unlock()
		if renew {
			h.renew()
		} else {
			h.check() // a re-entry may have extended the lease at the last moment
		}
		h.mu.Lock()
	}
	h.mu.Unlock() // not deferred: a hook may have ended the goroutine meanwhile (runtime.Goexit)
}

// wakeAtDeadline schedules a check at the end of the lease, if none is scheduled before. mu is held.
func (h *hold) wakeAtDeadline() {
	if h.phase == held {
		h.watchdog.timer.Reset(max(0, h.lease.Left(h.session.now())))
	}
}

// plan returns how long there is nothing to do for h, which is held, and whether a renewal is due then. If no renewal is due,
// the deadline ends the hold then. mu is held.
func (h *hold) plan(now clock.Instant) (wait time.Duration, renew bool) {
	interval := h.locks.renewInterval(now)
	if wait, renew = h.lease.Next(now, interval); renew {
		if h.watchdog.failures > 0 { // not before the next try, nor after the end of the lease
			wait = min(max(wait, now.Until(h.watchdog.retry)), h.lease.Left(now))
		}
		wait = max(0, wait)
	}
	return wait, renew
}

// renew extends the lease once. The next check of the hold acts on a failure.
func (h *hold) renew() {
	h.mu.Lock()
	if h.phase != held {
		h.mu.Unlock()
		return
	}
	life, stop := context.WithCancel(context.Background())
	defer stop()
	h.watchdog.stop = stop
	left := h.lease.Left(h.session.now())
	h.mu.Unlock()
	// Another command of the hold may be in flight for longer than the lease lasts.
	inTime, cancel := context.WithTimeout(life, left)
	defer cancel()
	if waited, _ := h.confirmName(inTime); waited {
		return // the rename has renewed the lease, or its failure was reported
	}
	if h.slot.take(inTime) {
		h.renewNow(life)
	}
}

// renewNow is renew with the slot taken. life ends with the hold.
func (h *hold) renewNow(life context.Context) {
	free := sync.OnceFunc(h.slot.free)
	defer free()

	h.mu.Lock()
	if h.phase != held {
		h.mu.Unlock()
		return
	}
	t, n, lease := h.target, h.name, h.locks.ttl()
	e := h.renewOptions()
	left := h.lease.Left(h.session.now())
	hooks := h.hooks()
	h.mu.Unlock()

	// A loss must not wait for an answer.
	inTime, cancel := context.WithTimeoutCause(life, left, errNotRenewed)
	defer cancel()
	began := h.session.now()
	e.Unanswered = func(err error) { h.unanswered(inTime, began, err) }
	ours, out := h.kind.protocol.Renew(inTime, e, t, n.Field, lease)
	if out.Ambiguous {
		h.session.identities.Retire(n.Identity)
	}
	if out.Err == nil && !ours {
		h.lose(lockerr.ErrNotOnRedis)
		return
	}
	if out.Err == nil {
		out.Err = out.Unconfirmed // a failover could lose it: it proves nothing
	}
	h.mu.Lock()
	if h.phase != held {
		h.mu.Unlock()
		return
	}
	out.Err = h.renewalSettled(out, lease)
	since := began
	if out.Err == nil {
		since = out.Sent // earlier copies have been reported
	}
	event := h.event(h.session.now().Since(since), out.Err)
	h.wakeAtDeadline()
	h.mu.Unlock()
	free() // an Unlock need not wait for a hook
	if out.Err != nil {
		h.session.report("RenewFailed", hooks.RenewFailed, h.owner, event)
	} else {
		h.session.report("Renewed", hooks.Renewed, h.owner, event)
	}
}

// unanswered records that a copy of the renewal, which began at began, was not answered in time. inTime is the context
// of the renewal, which goes on. A slow hook delays the next copy, but not the end of the hold.
func (h *hold) unanswered(inTime context.Context, began clock.Instant, err error) {
	h.mu.Lock()
	if h.phase != held {
		h.mu.Unlock()
		return
	}
	w := &h.watchdog
	w.failures++
	w.failure = redisexec.MoreInformative(w.failure, err)
	hook, event := h.hooks().RenewFailed, h.event(h.session.now().Since(began), err)
	h.wakeAtDeadline()
	h.mu.Unlock()
	if hook == nil {
		return
	}
	answered := make(chan struct{})
	h.session.goroutines.Go(func() {
		defer close(answered)
		h.session.report("RenewFailed", hook, h.owner, event)
	})
	select {
	case <-answered:
	case <-inTime.Done():
	}
}

// renewOptions are the options of one renewal, which lasts until the end of the lease. mu is held.
func (h *hold) renewOptions() redisexec.CallOptions {
	left, failures := h.lease.Left(h.session.now()), h.watchdog.failures
	e := redisexec.CallOptions{Patience: h.session.patience << min(failures, 10), Renews: true}.ConfirmedBy(h.locks.replicas().Within(left / 4))
	e.Patience, e.MaxPatience = max(redisexec.MinPatience, min(e.Patience, left/2)), left/2
	e.Bundled = failures == 0 && e.Replicas.N == 0 && protocol.BundlePatience(h.session.patience, h.locks.ttl()) <= left/2
	return e
}

// renewalSettled records the outcome of a renewal, and returns its failure. mu is held.
func (h *hold) renewalSettled(out redisexec.Outcome, lasts time.Duration) error {
	w := &h.watchdog
	if out.Err == nil {
		h.answered()
		h.lease.Prove(out.Sent, lasts, h.locks.ttl())
		h.lease.Note(out.LeaseLeft, out.Sent)
		w.failures, w.failure = 0, nil
		return nil
	}
	w.failures++
	if errors.Is(out.Err, errNotRenewed) && w.failure != nil { // cut short by the deadline: the earlier failure is more informative
		out.Err = fmt.Errorf("%w; earlier error: %w", out.Err, w.failure)
	}
	w.failure = redisexec.MoreInformative(w.failure, out.Err)
	now := h.session.now()
	// If failures come at once, shrinking pauses would lead to ever more tries before the end of the lease.
	w.retry = now.After(max(lease.MinRenewInterval, min(clock.Backoff(w.failures), h.lease.Left(now)/4)))
	return out.Err
}

// answered records at the gates that Redis answered a command of h: waiters do not ask meanwhile. mu is held.
func (h *hold) answered() {
	for _, p := range h.queueEntries {
		p.gate.answered()
	}
}

// clocksMoved schedules a check of the hold after the wall clock and the monotonic one, on which timers run, have moved
// apart.
func (h *hold) clocksMoved() {
	h.check() // the watchdog may be in a hook, or waiting for an answer
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase == held {
		h.replan(h.session.now())
	}
}

// check ends the hold as lost if its deadline has passed, because the watchdog may not have run yet.
func (h *hold) check() {
	h.mu.Lock()
	if h.phase != held {
		h.mu.Unlock()
		return
	}
	now := h.session.now()
	if h.lease.Left(now) > 0 {
		h.mu.Unlock()
		return
	}
	why := h.leaseOver(now)
	h.mu.Unlock()
	h.lose(why)
}

// leaseOver returns why the lease of h expired. mu is held.
func (h *hold) leaseOver(now clock.Instant) error {
	switch {
	case h.watchdog.failure != nil:
		return fmt.Errorf("%w before it was renewed: %w", errLeaseOver, h.watchdog.failure)
	case h.locks.renewInterval(now) > 0:
		return fmt.Errorf("%w before it was renewed", errLeaseOver)
	case h.locks.renewed():
		return fmt.Errorf("%w: maximum hold time reached (WithMaxHold)", errLeaseOver)
	default:
		return fmt.Errorf("%w: renewal is disabled (WithoutRenewal)", errLeaseOver)
	}
}

// Reasons for a loss.
var (
	errLeaseOver = errors.New("lease expired")
	errForced    = errors.New("forced open by ForceUnlock or ForceRelease")
)

// lose ends the hold without an Unlock. Its name is retired, and released in the background in case the key still has
// it. The next local waiter tries at once.
func (h *hold) lose(why error) {
	h.mu.Lock()
	if h.phase != held {
		h.mu.Unlock()
		return
	}
	cause := fmt.Errorf("%w: %w", ErrLost, why)
	answer := why // of the Unlocks that wait in the batch
	if errors.Is(why, lockerr.ErrNotOnRedis) {
		answer = cause
	}
	// Before the loss is visible: from then on the owner may unlock, and lock again.
	h.session.identities.Retire(h.name.Identity)
	h.batch.end(answer) // retires its names: h may get one of them just now
	h.end(lost, cause)
	event := h.event(h.session.now().Since(h.lease.Acquired()), why)
	event.Cause = causeOf(why)
	hooks := h.hooks()
	for _, p := range h.queueEntries {
		p.ticket.Leave()
	}
	h.mu.Unlock()

	h.giveUp(answer)
	h.other.wake()
	h.session.report("Lost", hooks.Lost, h.owner, event)
}
