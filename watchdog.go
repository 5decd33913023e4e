package relock

import (
	"context"
	"time"
)

// minPatience is the least time a renewal is waited for, however close the deadline is.
const minPatience = 10 * time.Millisecond

// watch is the watchdog: a goroutine that accompanies a hold from its grant to its end. It
// renews the lease while a renewed level is open, tries again when Redis does not answer,
// and declares the hold lost when Redis says so or the deadline has come. With a fixed
// lease it has only the last to do.
func (h *hold) watch() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	failures := 0
	var retry instant // after a failure: not before
	for {
		now := h.client.now()
		wait, renew := h.plan(now)
		if failures > 0 {
			wait = max(wait, now.until(retry))
		}
		if wait > 0 {
			timer.Reset(wait)
			select {
			case <-h.life.Done():
				return
			case <-h.alarm:
			case <-timer.C:
			}
			continue
		}
		if !renew {
			if h.check(); h.life.Err() != nil {
				return
			}
			continue // a re-entry has lengthened the lease at the last moment
		}
		if h.renew(failures > 0) {
			failures = 0
			continue
		}
		failures++
		now = h.client.now()
		retry = now.after(min(backoff(failures), h.left(now)/4))
	}
}

// left returns the time before the deadline.
func (h *hold) left(now instant) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(0, now.until(h.deadline))
}

// plan returns how long there is nothing to do, and then whether a renewal is due; if not,
// the hold has come to its end.
func (h *hold) plan(now instant) (wait time.Duration, renew bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	left := now.until(h.deadline)
	if h.phase != held || left <= 0 {
		return 0, false
	}
	if h.raiseAt != (instant{}) {
		return max(0, min(left, now.until(h.raiseAt))), true
	}
	interval := time.Duration(0)
	for _, lv := range h.levels {
		bounded := lv.maxHold > 0 && now.until(lv.renewUntil) <= 0
		if lv.settings.renewed && !bounded && (interval == 0 || lv.renewInterval < interval) {
			interval = lv.renewInterval
		}
	}
	if interval == 0 {
		return left, false
	}
	return max(0, min(left, now.until(h.renewed.after(interval)))), true
}

// renew lengthens the lease. false: no answer; the caller tries again. aside is for a
// second attempt: the engine may be what is stuck.
func (h *hold) renew(aside bool) bool {
	// Another command of the hold may be under way for longer than the lease lasts.
	inTime, cancel := context.WithTimeout(h.life, h.left(h.client.now()))
	defer cancel()
	if !h.take(inTime) {
		return true
	}
	defer h.free()
	h.mu.Lock()
	t, field, lease, identity := h.target, h.field, h.lease(), h.identity
	left := h.client.now().until(h.deadline)
	e := effort{attempts: 1, patience: h.client.patience, aside: aside}.confirmedBy(h.replicas().within(left / 4))
	e.patience = max(minPatience, min(e.patience, left/2))
	if !aside && e.replicas.n == 0 {
		e.most = left / 2
	}
	hooks := *h.hooks()
	h.mu.Unlock()

	began := h.client.now()
	ours, out := t.kind.renew(h.life, e, t, field, lease)
	if out.doubt {
		h.client.retire(identity)
	}
	if h.life.Err() != nil {
		return true
	}
	if out.err == nil && !ours {
		h.lose(errNotOnRedis)
		return true
	}
	if out.err == nil {
		out.err = out.unconfirmed // a failover could forget it: it proves nothing
	}
	h.mu.Lock()
	if out.err == nil {
		h.prove(out.sent, lease)
	}
	event := h.event(h.client.now().since(began), out.err)
	h.mu.Unlock()
	if out.err != nil {
		report(hooks.RenewFailed, event)
		return false
	}
	report(hooks.Renewed, event)
	return true
}

// watchClocks wakes every watchdog when the wall clock and the monotonic one have moved
// apart, as they do when the machine was suspended: timers run on the latter.
// last is when the client was made, however much later this runs.
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
			h.ring()
		}
	}
}

const (
	clockCheck = 250 * time.Millisecond
	clockDrift = 5 * time.Millisecond
)
