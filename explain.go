package relock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// findings are what a wait has learned so far, for who is told that it was in vain. They are
// guarded by the hold's mu: several goroutines of a fixed owner wait for the same.
type findings struct {
	key    string        // that somebody else had when Redis was last asked; "" if nobody was seen
	holder string        // his field
	claims bool          // he did not hold it: he waited to write
	lease  time.Duration // what he had left; negative: for ever
	seen   instant       // when that was answered

	silent  instant // when the first request began that was not answered; zero: the last one was
	failure error   // of the last one, if Redis or the network has failed it
}

// requestBegins records that a request begins.
func (h *hold) requestBegins() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.findings.silent == (instant{}) {
		h.findings.silent = h.client.now()
	}
}

// requestEnded records how the request has ended.
func (h *hold) requestEnded(g grant, out outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := &h.findings
	if out.err != nil {
		if !byContext(out.err) {
			f.failure = out.err
		}
		return
	}
	f.silent, f.failure = instant{}, nil
	if g.holder != "" {
		f.key, f.holder, f.lease, f.seen = h.target.keys[g.key], g.holder, g.ttl, h.client.now()
		f.claims = g.claimed
	}
}

// byContext reports whether err is the end of a caller's patience.
func byContext(err error) bool {
	return errors.Is(err, ErrTimeout) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// explain adds to the end of a wait what it was waiting for: who has the lock, or that Redis
// does not say.
func (h *hold) explain(err error) error {
	now := h.client.now()
	h.mu.Lock()
	f, t, places := h.findings, h.target, h.places
	h.mu.Unlock()

	outage := f.failure != nil && errors.Is(err, f.failure)
	if !byContext(err) && !outage || errors.Is(err, ErrNotReplicated) {
		return err // says all itself
	}
	waited, it := now.since(h.started).Round(time.Millisecond), "it"
	if len(t.keys) > 1 {
		it = strconv.Quote(f.key)
	}
	if t.kind.side == reading {
		places = nil // readers do not keep each other out
	}
	for _, p := range places {
		if field, left := p.heldBeside(h); field != "" {
			return fmt.Errorf("%w; after %v %q was still held by %s, of this client, %s", err, waited, p.key, field, left)
		}
	}
	silence, known := now.since(f.silent).Round(time.Millisecond), f.holder != ""
	switch {
	case f.silent == (instant{}), known && silence < minCopyPatience: // an answer may be on its way
		if known {
			err = fmt.Errorf("%w; after %v %s was still %s by %s, %s", err, waited, it, f.kept(), f.holder, f.left(now))
		}
		return err
	case f.failure == nil:
		err = fmt.Errorf("%w; no answer from Redis for %v", err, silence)
	case !outage:
		err = fmt.Errorf("%w; no success with Redis for %v: %w", err, silence, f.failure)
	}
	if known {
		err = fmt.Errorf("%w; before that %s was %s by %s", err, it, f.kept(), f.holder)
	}
	return err
}

// kept says how the one who was seen was in the way.
func (f *findings) kept() string {
	if f.claims {
		return "kept from readers"
	}
	return "held"
}

// left says what the holder who was seen has left by now.
func (f *findings) left(now instant) string {
	if f.lease < 0 {
		return "without expiry"
	}
	return leftOf(f.lease - now.since(f.seen))
}

// heldBeside returns the field of another hold than h of this client that has the key, and
// says what that has left; "" if there is none.
func (g *gate) heldBeside(h *hold) (field, left string) {
	for _, other := range g.all() {
		other.mu.Lock()
		if other != h && other.phase == held {
			field, left = other.field, leftOf(other.client.now().until(other.deadline))
		}
		other.mu.Unlock()
	}
	return field, left
}

func leftOf(lease time.Duration) string {
	return fmt.Sprintf("with %v left", max(0, lease).Round(time.Millisecond))
}
