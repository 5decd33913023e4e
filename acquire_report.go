package relock

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
)

// explain adds to the end of a wait what it was waiting for: who has the lock, or had it when that
// was last told, and that Redis does not answer. nil stays nil.
func (h *hold) explain(err error) error {
	now := h.client.now()
	h.mu.Lock()
	places := h.places
	h.mu.Unlock()
	seen, key, outage := h.learned(places, now)
	failed := outage.failure != nil && errors.Is(err, outage.failure) || !byContext(err) && errors.Is(err, lockerr.NoAnswer)
	if !byContext(err) && !failed || errors.Is(err, ErrNotReplicated) {
		return err // says all itself
	}
	silence, answers := outage.since(h.started, now), false
	switch {
	case failed:
	case outage.failure != nil:
		err = fmt.Errorf("%w; no success with Redis%s: %w", err, lasting(silence), outage.failure)
	case silence >= redisexec.MinCopyPatience:
		err = fmt.Errorf("%w; no answer from Redis%s", err, lasting(silence))
	default:
		answers = true // or it may be on its way
	}
	if seen.holder == "" {
		return err
	}
	it := "it"
	if len(places) > 1 {
		it = strconv.Quote(key)
	}
	if !answers {
		return fmt.Errorf("%w; before that %s was %s", err, it, seen.kept())
	}
	waited := now.Since(h.started).Round(time.Millisecond)
	if left, still := seen.left(now); still {
		return fmt.Errorf("%w; after %v %s was still %s, %s", err, waited, it, seen.kept(), left)
	}
	return fmt.Errorf("%w; after %v %s was last %s", err, waited, it, seen.kept())
}

// learned returns what is known of that one of h's keys that is in its way, and of Redis: of a key
// that another hold of this client has, or else of the one that was told of last.
func (h *hold) learned(places []place, now clock.Instant) (seen sighting, key string, out outage) {
	here := false
	for _, p := range places {
		s, o := p.gate.learned()
		if out.failure == nil && o.asked != (clock.Instant{}) {
			out = o
		}
		if s.holder == "" || s.hold == h || here {
			continue
		}
		_, here = s.left(now)
		here = here && s.hold != nil
		if here || seen.holder == "" || s.at.Since(seen.at) > 0 {
			seen, key = s, p.gate.key
		}
	}
	return seen, key, out
}

// kept says how the one who was seen was in the way.
func (s *sighting) kept() string {
	switch {
	case s.hold != nil:
		return fmt.Sprintf("held by %s, of this client", s.holder)
	case s.claims:
		return "kept from readers by " + s.holder
	default:
		return "held by " + s.holder
	}
}

// left says what the one who was seen has left by now. false: nothing, so it may not have the key any
// more.
func (s *sighting) left(now clock.Instant) (string, bool) {
	if s.hold == nil && s.lease < 0 {
		return "without expiry", true
	}
	left, still := s.lease-now.Since(s.at), true
	if s.hold != nil {
		s.hold.mu.Lock()
		left, still = s.hold.lease.left(now), s.hold.phase == held
		s.hold.mu.Unlock()
	}
	return fmt.Sprintf("with %v left", left.Round(time.Millisecond)), still && left > 0
}

// lasting says how long something has lasted, if that is worth saying.
func lasting(d time.Duration) string {
	if d = d.Round(time.Millisecond); d <= 0 {
		return ""
	}
	return fmt.Sprintf(" for %v", d)
}

// byContext reports whether err is the end of a caller's patience.
func byContext(err error) bool { return errors.Is(err, ErrTimeout) || lockerr.IsContextError(err) }
