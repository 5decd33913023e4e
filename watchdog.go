package relock

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// minPatience is the least time a renewal is waited for, however close the deadline is.
const minPatience = 10 * time.Millisecond

// errNotRenewed is the failure of a renewal that is under way when the hold has come to its end.
var errNotRenewed = fmt.Errorf("%w before the lease ran out", errNoAnswer)

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

	failures int     // renewals in a row without an answer
	failure  error   // of the last one; nil if it was answered
	retry    instant // after one: not before
}

// replan has the watchdog look at the hold, which is held, when there is something to do.
// mu is held.
func (h *hold) replan() {
	w := &h.watchdog
	if w.awake {
		return
	}
	wait, _ := h.plan(h.client.now())
	if w.timer == nil {
		w.timer = time.AfterFunc(wait, func() { h.client.goroutines.run(h.watch) })
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
		wait, renew := h.plan(h.client.now())
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
		h.watchdog.timer.Reset(max(0, h.client.now().until(h.deadline)))
	}
}

// plan returns how long there is nothing to do, and then whether a renewal is due; if not,
// the hold has come to its end. mu is held.
func (h *hold) plan(now instant) (wait time.Duration, renew bool) {
	left := now.until(h.deadline)
	if h.phase != held || left <= 0 {
		return 0, false
	}
	if h.raiseAt != (instant{}) {
		return h.soon(now, min(left, now.until(h.raiseAt))), true
	}
	interval := time.Duration(0)
	for _, lv := range h.renewable() {
		if lv.renewedAt(now) && (interval == 0 || lv.renewInterval < interval) {
			interval = lv.renewInterval
		}
	}
	if interval == 0 {
		return left, false
	}
	return h.soon(now, min(left, now.until(h.renewed.after(interval)))), true
}

// soon returns the time to a renewal that is due in d: after a failure it comes when it is
// time to try again. mu is held.
func (h *hold) soon(now instant, d time.Duration) time.Duration {
	if h.watchdog.failures > 0 {
		d = max(d, now.until(h.watchdog.retry))
	}
	return max(0, d)
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
	left := h.client.now().until(h.deadline)
	h.mu.Unlock()
	// Another command of the hold may be under way for longer than the lease lasts.
	inTime, cancel := context.WithTimeout(life, left)
	defer cancel()
	if h.take(inTime) {
		h.renewNow(life)
	}
}

// renewNow is renew when it is its turn. life ends with the hold.
func (h *hold) renewNow(life context.Context) {
	free := sync.OnceFunc(h.free)
	defer free()

	h.mu.Lock()
	if h.phase != held {
		h.mu.Unlock()
		return
	}
	t, field, lease, identity := h.target, h.field, h.lease(), h.identity
	e := h.renewEffort()
	left := h.client.now().until(h.deadline)
	hooks := *h.hooks()
	h.mu.Unlock()

	// The loss must not wait for an answer.
	inTime, cancel := context.WithTimeoutCause(life, left, errNotRenewed)
	defer cancel()
	began := h.client.now()
	ours, out := t.kind.renew(inTime, e, t, field, lease)
	if out.doubt {
		h.client.retire(identity)
	}
	if out.err == nil && !ours {
		h.lose(errNotOnRedis)
		return
	}
	if out.err == nil {
		out.err = out.unconfirmed // a failover could forget it: it proves nothing
	}
	h.mu.Lock()
	if h.phase != held {
		h.mu.Unlock()
		return
	}
	h.renewalSettled(out, lease)
	event := h.event(h.client.now().since(began), out.err)
	h.wakeAtDeadline()
	h.mu.Unlock()
	free() // who unlocks need not wait for a hook
	if out.err != nil {
		report(hooks.RenewFailed, event)
	} else {
		report(hooks.Renewed, event)
	}
}

// renewEffort is that of one renewal. A second attempt does not go through the engine: that
// may be what is stuck. mu is held.
func (h *hold) renewEffort() effort {
	left := h.client.now().until(h.deadline)
	aside := h.watchdog.failures > 0
	e := effort{attempts: 1, patience: h.client.patience, aside: aside}.confirmedBy(h.replicas().within(left / 4))
	e.patience = max(minPatience, min(e.patience, left/2))
	if !aside && e.replicas.n == 0 {
		e.most = left / 2
	}
	return e
}

// renewalSettled records how a renewal ended. mu is held.
func (h *hold) renewalSettled(out outcome, lease time.Duration) {
	w := &h.watchdog
	if out.err == nil {
		h.prove(out.sent, lease)
		w.failures, w.failure = 0, nil
		return
	}
	w.failures++
	w.failure = out.err
	now := h.client.now()
	w.retry = now.after(min(backoff(w.failures), max(0, now.until(h.deadline))/4))
}

// watchClocks wakes every watchdog when the wall clock and the monotonic one have moved
// apart since last, as they do when the machine was suspended: timers run on the latter.
func (c *Client) watchClocks(last instant) {
	ticker := time.NewTicker(clockCheck)
	defer ticker.Stop()
	for {
		select {
		case <-c.closing:
			return
		case <-ticker.C:
		}
		now := c.now()
		if now.drift(last) < clockDrift {
			continue
		}
		last = now
		for _, h := range c.registry.all() {
			h.check() // its watchdog may be in a hook, or wait for an answer
			h.mu.Lock()
			if h.phase == held {
				h.replan()
			}
			h.mu.Unlock()
		}
	}
}

const (
	clockCheck = 250 * time.Millisecond
	clockDrift = 5 * time.Millisecond
)
