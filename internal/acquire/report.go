package acquire

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/gate"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// Explain adds to the end of a wait at places what it was waiting for: who has the lock, or had it when that
// was last told, and that Redis does not answer. nil stays nil.
func (a *Attempt) Explain(places []Place, err error) error {
	now := a.env.Now()
	seen, key, outage := a.learned(places, now)
	failed := outage.Failure != nil && errors.Is(err, outage.Failure) || !ByContext(err) && errors.Is(err, lockerr.ErrNoAnswer)
	if !ByContext(err) && !failed || errors.Is(err, lockerr.ErrNotReplicated) {
		return err // says all itself
	}
	silence, answers := outage.Since(a.started, now), false
	switch {
	case failed:
	case outage.Failure != nil:
		err = fmt.Errorf("%w; no success with Redis%s: %w", err, lasting(silence), outage.Failure)
	case silence >= redisexec.MinCopyPatience:
		err = fmt.Errorf("%w; no answer from Redis%s", err, lasting(silence))
	default:
		answers = true // or it may be on its way
	}
	if seen.Holder == "" {
		return err
	}
	it := "it"
	if len(places) > 1 {
		it = strconv.Quote(key)
	}
	if !answers {
		return fmt.Errorf("%w; before that %s was %s", err, it, kept(seen))
	}
	waited := now.Since(a.started).Round(time.Millisecond)
	if left, still := leftOf(seen, now); still {
		return fmt.Errorf("%w; after %v %s was still %s, %s", err, waited, it, kept(seen), left)
	}
	return fmt.Errorf("%w; after %v %s was last %s", err, waited, it, kept(seen))
}

// learned returns what is known of that one of its keys that is in its way, and of Redis: of a key
// that another hold of this client has, or else of the one that was told of last.
func (a *Attempt) learned(places []Place, now clock.Instant) (seen Sighting, key string, out gate.Outage) {
	here := false
	for _, p := range places {
		s, o := p.Gate.Learned()
		if out.Failure == nil && o.Asked != (clock.Instant{}) {
			out = o
		}
		if s.Holder == "" || s.Hold == a.hold || here {
			continue
		}
		_, here = leftOf(s, now)
		here = here && s.Hold != nil
		if here || seen.Holder == "" || s.At.Since(seen.At) > 0 {
			seen, key = s, p.Gate.ID.Key
		}
	}
	return seen, key, out
}

// kept says how the one who was seen was in the way.
func kept(s Sighting) string {
	switch {
	case s.Hold != nil:
		return fmt.Sprintf("held by %s, of this client", s.Holder)
	case s.Claims:
		return "kept from readers by " + s.Holder
	default:
		return "held by " + s.Holder
	}
}

// leftOf says what the one who was seen has left by now. false: nothing, so it may not have the key any
// more.
func leftOf(s Sighting, now clock.Instant) (string, bool) {
	if s.Hold == nil && s.Lease < 0 {
		return "without expiry", true
	}
	left, still := s.Lease-now.Since(s.At), true
	if s.Hold != nil {
		left, still = s.Hold.Remaining(now)
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

// ByContext reports whether err is the end of a caller's patience.
func ByContext(err error) bool {
	return errors.Is(err, lockerr.ErrTimeout) || lockerr.IsContextError(err)
}

// requestBegins records that a request begins.
func (a *Attempt) requestBegins() {
	now := a.env.Now()
	for _, p := range a.places {
		p.Gate.Asks(now)
	}
}

// requestEnded records how the request has ended.
func (a *Attempt) requestEnded(g protocol.Grant, out redisexec.Outcome) {
	now := a.env.Now()
	for _, p := range a.places {
		switch {
		case out.Err == nil, out.Permanent: // the latter ends the wait
			p.Gate.Heard()
		case ByContext(out.Err):
			p.Gate.StopsAsking(now)
		default:
			p.Gate.FailsToAsk(now, out.Err)
		}
	}
	if out.Err == nil && g.Holder != "" {
		here := a.env.Holder(a.target, g.Key, g.Holder)
		a.places[g.Key].Gate.Sees(Sighting{At: now, Holder: g.Holder, Hold: here, Claims: g.Claimed, Lease: g.TTL})
	}
}

// Outage is the error of a TryLock that does not ask, because another waiter of this process is
// before it: nil if Redis answers that one, or may be about to.
func (a *Attempt) Outage(places []Place) error {
	now := a.env.Now()
	patience := a.paced(redisexec.CallOptions{}).ConfirmedBy(a.replicas).Patience
	for _, p := range places {
		_, o := p.Gate.Learned()
		switch silence := o.Since(o.Asked, now); {
		case o.Failure != nil:
			return fmt.Errorf("no success with Redis%s: %w", lasting(silence), o.Failure)
		case silence > patience:
			return fmt.Errorf("%w%s", lockerr.ErrNoAnswer, lasting(silence))
		}
	}
	return nil
}
