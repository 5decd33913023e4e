package relock

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// The error of a wait names the holder of the lock, how much longer its lease lasts, and whether Redis answers. An
// attempt does not ask Redis for that. All attempts for a key record the answers at its gate, and the error is made of
// those.
//
// An answer may be old. So the error says "last known" if the lease of the last known holder has ended by now, or if
// Redis does not answer.

// explain adds to the error of a wait for h who holds the lock, or held it at the last answer, and whether Redis does not
// answer. nil stays nil.
func (h *hold) explain(err error) error {
	if err == nil {
		return nil
	}
	return h.alsoWaits(h.nameHolder(err))
}

// nameHolder adds what is known of the holder, and of Redis.
func (h *hold) nameHolder(err error) error {
	h.mu.Lock()
	queueEntries := h.queueEntries
	h.mu.Unlock()
	now := h.session.now()
	seen, key, outage := h.lastKnown(queueEntries, now)
	// failed: err already reports that Redis does not answer.
	failed := outage.failure != nil && errors.Is(err, outage.failure) || !byContext(err) && errors.Is(err, lockerr.ErrNoAnswer)
	if !byContext(err) && !failed || errors.Is(err, lockerr.ErrNotReplicated) {
		return err // complete as it is
	}
	silence, answers := outage.since(h.started, now), false
	switch {
	case failed:
	case outage.failure != nil:
		err = fmt.Errorf("%w; requests to Redis have been failing%s: %w", err, lasting(silence), outage.failure)
	case silence >= redisexec.MinCopyPatience:
		// An answer may take as long as one copy is waited for. A longer silence is reported.
		err = fmt.Errorf("%w; %w%s", err, lockerr.ErrNoAnswer, lasting(silence))
	default:
		answers = true // or the answer may be on its way
	}
	if seen.holder == "" {
		return err
	}
	// The error begins with the name of the lock. Only a lock of several names has to name the key again.
	of := ""
	if len(queueEntries) > 1 {
		of = strconv.Quote(key) + " "
	}
	waited := now.Since(h.started).Round(time.Millisecond)
	left, still := leftOf(seen, now)
	switch {
	case !answers:
		return fmt.Errorf("%w; last known: %s%s", err, of, state(seen))
	case !still:
		return fmt.Errorf("%w; after %v, last known: %s%s", err, waited, of, state(seen))
	default:
		return fmt.Errorf("%w; after %v %sstill %s, %s", err, waited, of, state(seen), left)
	}
}

// lastKnown returns the last known state of one of the keys, and of Redis. Of several keys it chooses the one that is most
// likely taken: a key that another hold of this client has, or else the key with the latest answer.
func (h *hold) lastKnown(queueEntries []queueEntry, now clock.Instant) (seen sighting, key string, out outage) {
	// here: another hold of this client has the chosen key. That is certain, so no other key replaces it.
	here := false
	// The latest answer counts, unless a hold of this client was found.
	for _, p := range queueEntries {
		s, o := p.gate.lastKnown(now)
		// One outage is reported. A failure is more informative than a silence, so the first failure stays.
		if out.failure == nil && o.asked != (clock.Instant{}) {
			out = o
		}
		if s.holder == "" || s.hold == h || here {
			continue
		}
		_, here = leftOf(s, now)
		here = here && s.hold != nil
		if here || seen.holder == "" || s.at.Since(seen.at) > 0 {
			seen, key = s, p.gate.id.key
		}
	}
	return seen, key, out
}

// state describes why the key was not available when s was seen.
func state(s sighting) string {
	owner, hasBeen := keys.ReplacedBy(s.holder)
	switch {
	case s.hold != nil:
		return fmt.Sprintf("held by %s of this client", s.holder)
	case s.claims:
		return "closed to readers by the waiting writer " + s.holder
	case hasBeen:
		return fmt.Sprintf("reserved by the min hold of %s", owner)
	default:
		return "held by " + s.holder
	}
}

// leftOf describes the rest of the lease of s by now. false: nothing is left, so s may not have the key any more.
func leftOf(s sighting, now clock.Instant) (string, bool) {
	// Such a key was created by hand, or by a program that sets no lease.
	if s.hold == nil && s.lease < 0 {
		return "without expiry", true
	}
	// The lease of a hold of this client is known exactly, the lease of another one only as of s.
	left := s.lease - now.Since(s.at)
	if s.hold != nil {
		left = s.hold.remaining(now)
	}
	return fmt.Sprintf("lease ends in %v", left.Round(time.Millisecond)), left > 0
}

// lasting describes a duration, or returns "" if it is too short to report.
func lasting(d time.Duration) string {
	if d = d.Round(time.Millisecond); d <= 0 {
		return ""
	}
	return fmt.Sprintf(" for %v", d)
}

// byContext reports whether err is the end of the caller's context, or of WithWaitTimeout.
func byContext(err error) bool {
	return errors.Is(err, lockerr.ErrTimeout) || lockerr.IsContextError(err)
}

// recordAnswer records the outcome of a request at the gates.
func (a *attempt) recordAnswer(g protocol.Grant, out redisexec.Outcome) {
	h := a.hold
	for _, p := range h.queueEntries {
		// Every gate records it, so that any waiter for any of the keys can report the state of Redis.
		if out.Err == nil || out.Permanent || errors.Is(out.Err, errLate) { // it was answered; a permanent error ends the wait
			p.gate.answered()
		}
		switch {
		case out.Err == nil, out.Permanent:
		case byContext(out.Err), a.hurried(out.Err):
			p.gate.stopsAsking(h.session.now())
		default:
			p.gate.failsToAsk(h.session.now(), out.Err)
		}
	}
	if out.Err == nil && g.Holder != "" {
		// The lease of a hold of this client is known more precisely than from the answer.
		here := h.session.holder(h.target, g.Key, g.Holder, clock.Instant{})
		h.queueEntries[g.Key].gate.sees(sighting{at: h.session.now(), holder: g.Holder, hold: here, claims: g.Claimed, lease: g.TTL})
	}
}

// hurried reports whether err is a silence that was cut short: the caller's ctx ends so soon that the copies
// had less time than usual. Then Redis may only be slow.
func (a *attempt) hurried(err error) bool {
	end, ends := a.ctx.Deadline()
	return ends && errors.Is(err, lockerr.ErrNoAnswer) && time.Until(end) < a.hold.session.patience
}

// outageError is the error of a TryLock that does not ask, because another waiter of this process is
// before it; nil if Redis answers that waiter, or may be about to. Such a TryLock makes no round trip. That must not
// hide an outage: while Redis is silent, "the lock is taken" would be a guess.
func (h *hold) outageError() error {
	h.mu.Lock()
	queueEntries := h.queueEntries
	h.mu.Unlock()
	now := h.session.now()
	paced := h.session.paced(redisexec.CallOptions{}, h.settings.TTL).ConfirmedBy(h.settings.replicas)
	patience := max(paced.Patience, paced.MaxPatience)
	for _, p := range queueEntries {
		if x := p.queue.Holder(); x != nil && !h.kind.shared() && x.remaining(now) > 0 {
			return nil // it is certainly taken, whether Redis answers or not
		}
	}
	for _, p := range queueEntries {
		_, o := p.gate.lastKnown(now)
		switch silence := o.since(o.asked, now); {
		case o.failure != nil:
			return fmt.Errorf("requests to Redis have been failing%s: %w", lasting(silence), o.failure)
		case silence > patience:
			return fmt.Errorf("%w%s", lockerr.ErrNoAnswer, lasting(silence))
		}
	}
	return nil
}
