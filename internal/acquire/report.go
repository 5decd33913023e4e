package acquire

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/gate"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// What the error of a wait says. Who reads it wants to know which owner has the lock, for how much longer, and
// whether Redis answers at all. An attempt does not ask Redis for that. All who ask for a key note at its gate what
// they were told, and the error is made of that.
//
// What was told may be old. So the error says "was last held" if the lease that it knows of is over by now, and
// "before that it was held" if Redis does not answer.

// Explain adds to the end of a wait at places what it was waiting for: who has the lock, or had it when that
// was last told, and that Redis does not answer. nil stays nil.
func (a *Attempt) Explain(places []Place, err error) error {
	now := a.env.Now()
	seen, key, outage := a.learned(places, now)
	// failed: err says already that Redis does not answer.
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
		// An answer may take as long as one copy is waited for. After that it is worth a word.
		err = fmt.Errorf("%w; no answer from Redis%s", err, lasting(silence))
	default:
		answers = true // or it may be on its way
	}
	if seen.Holder == "" {
		return err
	}
	// The name of a lock is at the beginning of the error. Of several keys it is to say which.
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
// Of several keys one is named, the one that is most likely in the way.
func (a *Attempt) learned(places []Place, now clock.Instant) (seen Sighting, key string, out gate.Outage) {
	// here: a hold of this client has the key that was found. That is known for certain, so no other key is named
	// instead.
	here := false
	// Of all that was seen the latest counts, but for a hold of this client.
	for _, p := range places {
		s, o := p.Gate.Learned()
		// One outage is told. A failure says more than a silence, so the first failure stays.
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
	owner, hasBeen := keys.KeptFor(s.Holder)
	switch {
	case s.Hold != nil:
		return fmt.Sprintf("held by %s, of this client", s.Holder)
	case s.Claims:
		return "kept from readers by " + s.Holder
	case hasBeen:
		return fmt.Sprintf("kept for the min hold of %s, which has ended", owner)
	default:
		return "held by " + s.Holder
	}
}

// leftOf says what the one who was seen has left by now. false: nothing, so it may not have the key any
// more.
func leftOf(s Sighting, now clock.Instant) (string, bool) {
	// Such a key was made by hand, or by a program that sets no lease.
	if s.Hold == nil && s.Lease < 0 {
		return "without expiry", true
	}
	// The lease of a hold of this client is known as it is now, that of another as it was when it was seen.
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
	for _, p := range a.places {
		switch {
		case out.Err == nil, out.Permanent: // the latter ends the wait
			// Every place notes it, so that any waiter at any of the keys can say how Redis does.
			p.Gate.Heard()
		case ByContext(out.Err):
			p.Gate.StopsAsking(a.env.Now())
		default:
			p.Gate.FailsToAsk(a.env.Now(), out.Err)
		}
	}
	if out.Err == nil && g.Holder != "" {
		// A hold of this client knows its lease better than the answer does.
		here := a.env.Holder(a.target, g.Key, g.Holder)
		a.places[g.Key].Gate.Sees(Sighting{At: a.env.Now(), Holder: g.Holder, Hold: here, Claims: g.Claimed, Lease: g.TTL})
	}
}

// Outage is the error of a TryLock that does not ask, because another waiter of this process is
// before it: nil if Redis answers that one, or may be about to.
// A TryLock behind a waiter of this process answers without a round trip. That must not hide an outage: "the lock is
// taken" would be a guess while Redis is silent.
func (a *Attempt) Outage(places []Place) error {
	now := a.env.Now()
	paced := a.paced(redisexec.CallOptions{}).ConfirmedBy(a.replicas)
	patience := max(paced.Patience, paced.MaxPatience)
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
