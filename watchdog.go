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
	"github.com/relock-go/relock/internal/redisexec"
)

// The watchdog of a hold moves it from held to lost, and nothing else does but a release, or a
// re-entry, that finds out that Redis does not know the hold, and ForceUnlock.
//
//	asleep (a timer) --time to renew, or to look--> awake --nothing due--> asleep
//	awake: renew      answered, and ours           the deadline moves (lease.Prove)
//	                  answered, and not ours       lost: Redis has told
//	                  not answered in time         another copy is sent, and the answer to any of them counts
//	                  refused                      tries again soon
//	awake: deadline   no renewal came through      lost: here first, before Redis frees the key
//
// Invariants:
//   - The loss does not wait: not for an answer, not for another command of the hold, not for a hook.
//   - Only an answered renewal of this hold moves its deadline, from before it was sent.
//   - A renewal in doubt retires the identity: a late copy must not lengthen a later hold.
//   - lose retires the name before the loss can be seen, because the owner may lock again then.
//
// What can come late: the timer, which may run after the hold has ended, and finds the phase; the
// answer to a renewal, which finds it, too; and the machine itself after a suspension: clocksMoved
// is called when the clocks have moved apart, and every call looks at the deadline (check).

// errNotRenewed is the failure of a renewal that is under way when the hold has come to its end.
var errNotRenewed = lockerr.Reason(fmt.Errorf("%w before the lease expired", lockerr.ErrNoAnswer))

// watchdog is what accompanies a hold from its grant to its end: it renews the lease while
// a renewed level is open, tries again when Redis does not answer, and declares the hold
// lost when Redis says so or the deadline has come. With a fixed lease it has only the last
// to do. It is a goroutine when there is something to do, and a timer in between: most holds
// end before there is, and ten thousand that do not would otherwise cost the stacks of ten
// thousand goroutines. Its fields are guarded by the hold's mu.
type watchdog struct {
	timer *time.Timer // wakes it; nil before the hold is held
	awake bool        // the goroutine is there, and looks again before it goes
	stop  func()      // ends the renewal under way; nil if there was none

	failures int           // copies of renewals in a row without an answer
	failure  error         // the most telling of theirs; nil if the last one was answered
	retry    clock.Instant // after one: not before
}

// replan has the watchdog look at the hold, which is held at now, when there is something to do.
// mu is held.
func (h *hold) replan(now clock.Instant) {
	w := &h.watchdog
	if w.awake {
		return
	}
	wait, _ := h.plan(now)
	if w.timer == nil {
		w.timer = time.AfterFunc(wait, func() { h.session.goroutines.Run(h.watch) })
	} else {
		w.timer.Reset(wait)
	}
}

// watch does what there is to do.
func (h *hold) watch() {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := &h.watchdog
	if w.awake { // in a hook: the loss does not wait for that
		h.mu.Unlock()
		h.check()
		h.mu.Lock()
		h.wakeAtDeadline()
		return
	}
	for h.phase == held {
		wait, renew := h.plan(h.session.now())
		if w.awake = wait <= 0; !w.awake {
			w.timer.Reset(wait)
			return
		}
		h.mu.Unlock()
		if renew {
			h.renew()
		} else {
			h.check() // a re-entry may have lengthened the lease at the last moment
		}
		h.mu.Lock()
	}
}

// wakeAtDeadline has the watchdog look at the hold when its lease is over, if not before. mu is held.
func (h *hold) wakeAtDeadline() {
	if h.phase == held {
		h.watchdog.timer.Reset(max(0, h.lease.Left(h.session.now())))
	}
}

// plan returns how long there is nothing to do, and then whether a renewal is due; if not,
// the hold has come to its end. mu is held.
func (h *hold) plan(now clock.Instant) (wait time.Duration, renew bool) {
	if h.phase != held {
		return 0, false
	}
	interval := h.levels.renewInterval(now, h.lease.Acquired())
	if wait, renew = h.lease.Next(now, interval); renew {
		if h.watchdog.failures > 0 { // not before it is time to try again, nor after the lease is over
			wait = min(max(wait, now.Until(h.watchdog.retry)), h.lease.Left(now))
		}
		wait = max(0, wait)
	}
	return wait, renew
}

// renew lengthens the lease, once. What a failure means is for the next look at the hold.
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
	// Another command of the hold may be under way for longer than the lease lasts.
	inTime, cancel := context.WithTimeout(life, left)
	defer cancel()
	if waited, _ := h.known(inTime); waited {
		return // that has renewed the lease, or its failure was reported
	}
	if h.slot.take(inTime) {
		h.renewNow(life)
	}
}

// renewNow is renew when it is its turn. life ends with the hold.
func (h *hold) renewNow(life context.Context) {
	free := sync.OnceFunc(h.slot.free)
	defer free()

	h.mu.Lock()
	if h.phase != held {
		h.mu.Unlock()
		return
	}
	t, n, lease := h.target, h.name, h.levels.ttl()
	e := h.renewOptions()
	left := h.lease.Left(h.session.now())
	hooks := *h.hooks()
	h.mu.Unlock()

	// The loss must not wait for an answer.
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
		out.Err = out.Unconfirmed // a failover could forget it: it proves nothing
	}
	h.mu.Lock()
	if h.phase != held {
		h.mu.Unlock()
		return
	}
	out.Err = h.renewalSettled(out, lease)
	since := began
	if out.Err == nil {
		since = out.Sent // copies before that have been reported
	}
	event := h.event(h.session.now().Since(since), out.Err)
	h.wakeAtDeadline()
	h.mu.Unlock()
	free() // who unlocks need not wait for a hook
	if out.Err != nil {
		report(hooks.RenewFailed, h.owner, event)
	} else {
		report(hooks.Renewed, h.owner, event)
	}
}

// unanswered records that a copy of the renewal that began then was not answered in its time. inTime is the context of
// the renewal, which goes on. A hook that takes its time delays the next copy, but not the end of the hold.
func (h *hold) unanswered(inTime context.Context, began clock.Instant, err error) {
	h.mu.Lock()
	if h.phase != held {
		h.mu.Unlock()
		return
	}
	w := &h.watchdog
	w.failures++
	w.failure = redisexec.MoreTelling(w.failure, err)
	hook, event := h.hooks().RenewFailed, h.event(h.session.now().Since(began), err)
	h.wakeAtDeadline()
	h.mu.Unlock()
	if hook == nil {
		return
	}
	told := make(chan struct{})
	h.session.goroutines.Go(func() {
		defer close(told)
		report(hook, h.owner, event)
	})
	select {
	case <-told:
	case <-inTime.Done():
	}
}

// renewOptions are those of one renewal, which has until the end of the lease. mu is held.
func (h *hold) renewOptions() redisexec.CallOptions {
	left, failures := h.lease.Left(h.session.now()), h.watchdog.failures
	e := redisexec.CallOptions{Patience: h.session.patience << min(failures, 10)}.ConfirmedBy(h.levels.replicas().Within(left / 4))
	e.Patience, e.MaxPatience = max(redisexec.MinPatience, min(e.Patience, left/2)), left/2
	e.Batchable = failures == 0 && e.Replicas.N == 0
	return e
}

// renewalSettled records how a renewal ended, and returns its failure. mu is held.
func (h *hold) renewalSettled(out redisexec.Outcome, lasts time.Duration) error {
	w := &h.watchdog
	if out.Err == nil {
		h.lease.Prove(out.Sent, lasts, h.levels.ttl())
		h.lease.Note(out.LeaseLeft, out.Sent)
		w.failures, w.failure = 0, nil
		return nil
	}
	w.failures++
	if errors.Is(out.Err, errNotRenewed) && w.failure != nil { // cut short: those before know more
		out.Err = fmt.Errorf("%w; earlier error: %w", out.Err, w.failure)
	}
	w.failure = redisexec.MoreTelling(w.failure, out.Err)
	now := h.session.now()
	// Ever shorter pauses would be without number before the lease is over, if the failures come at once.
	w.retry = now.After(max(lease.MinRenewInterval, min(clock.Backoff(w.failures), h.lease.Left(now)/4)))
	return out.Err
}

// clocksMoved has the watchdog look at the hold: the wall clock and the monotonic one, on which timers run,
// have moved apart.
func (h *hold) clocksMoved() {
	h.check() // the watchdog may be in a hook, or wait for an answer
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase == held {
		h.replan(h.session.now())
	}
}

// check loses the hold if its deadline has passed: the watchdog may not have run yet.
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

// leaseOver says why the lease of h has run out. mu is held.
func (h *hold) leaseOver(now clock.Instant) error {
	switch {
	case h.watchdog.failure != nil:
		return fmt.Errorf("%w before it was renewed: %w", errLeaseOver, h.watchdog.failure)
	case h.levels.renewInterval(now, h.lease.Acquired()) > 0:
		return fmt.Errorf("%w before it was renewed", errLeaseOver)
	case h.levels.renewed():
		return fmt.Errorf("%w: maximum hold time reached (WithMaxHold)", errLeaseOver)
	default:
		return fmt.Errorf("%w: renewal is disabled (WithoutRenewal)", errLeaseOver)
	}
}

// How a loss was found out.
var (
	errLeaseOver = errors.New("lease expired")
	errForced    = errors.New("forced open by ForceUnlock")
)

// lose ends the hold without its holder's doing. Its name is given up, and released in
// the background in case it still stands on Redis; the next waiter of this process tries
// at once.
func (h *hold) lose(why error) {
	h.mu.Lock()
	if h.phase != held {
		h.mu.Unlock()
		return
	}
	// Before the loss can be seen: the owner may unlock, and acquire again, from then on.
	h.session.identities.Retire(h.name.Identity)
	h.end(lost, fmt.Errorf("%w: %w", ErrLost, why))
	event := h.event(h.session.now().Since(h.lease.Acquired()), why)
	event.Cause = causeOf(why)
	hooks := h.hooks()
	for _, p := range h.places {
		p.ticket.Leave()
	}
	h.mu.Unlock()

	if errors.Is(why, lockerr.ErrNotOnRedis) {
		why = h.cause // which is an ErrLost also for those whose Unlock waits
	}
	h.giveUp(why)
	if h.other != nil {
		h.other.wake()
	}
	report(hooks.Lost, h.owner, event)
}
