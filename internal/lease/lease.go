// Package lease knows how long a hold is proven, and when it is to be renewed.
package lease

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
)

// Lease is how long a hold is proven, and when it is to be renewed. It is a value without a
// clock and without Redis: all times are given to it.
//
// It is the only writer of the deadline of a hold. Invariants: the deadline is no later than
// the end of the lease on Redis, because it counts from before a request was sent that was
// answered since; and within one grant it never moves back.
type Lease struct {
	acquired clock.Instant // when the hold began
	renewed  clock.Instant // when the last answered request that asked for the whole lease was sent

	// deadline is when the hold is lost unless it is renewed.
	deadline clock.Instant

	// longest is the longest lease that was ever asked for: so long the key may live on Redis.
	longest time.Duration

	// found is what the lease had left on Redis when it was last found to be shorter than this hold
	// had made it, by a request sent at foundAt. Java's watchdog makes it so, every third of its own
	// lease.
	found   time.Duration
	foundAt clock.Instant

	// raiseAt is when a lease shorter than was asked for is to be raised; zero: it is not.
	raiseAt clock.Instant
}

// MinRenewInterval is the shortest time between two renewals.
const MinRenewInterval = 10 * time.Millisecond

// New returns the lease of a hold that is to be asked for, for so long at first.
func New(lasts time.Duration) Lease { return Lease{longest: lasts} }

// Begin says that the hold has begun.
func (l *Lease) Begin(now clock.Instant) { l.acquired = now }

// Acquired is when the hold began.
func (l *Lease) Acquired() clock.Instant { return l.acquired }

// Renewed is when the last answered request was sent that asked for the whole lease.
func (l *Lease) Renewed() clock.Instant { return l.renewed }

// Deadline is when the hold is lost unless it is renewed.
func (l *Lease) Deadline() clock.Instant { return l.deadline }

// Longest is the longest lease that was ever asked for: so long the key may live on Redis.
func (l *Lease) Longest() time.Duration { return l.longest }

// Shorten has the lease end then, if it would end later. It is for tests.
func (l *Lease) Shorten(end clock.Instant) {
	if end.Mono < l.deadline.Mono {
		l.deadline = end
	}
}

// Grant begins the lease of a grant: of one that was asked for by a request sent then.
func (l *Lease) Grant(sent clock.Instant, lasts time.Duration) {
	l.renewed, l.deadline = sent, clock.Deadline(sent, lasts)
}

// Follow begins the lease of a hold that takes another's place under the lease that one has on Redis.
func (l *Lease) Follow(before Lease) {
	longest := max(l.longest, before.longest)
	*l = before
	l.longest = longest
}

// Prove records an answered request that set or lengthened the lease. One for less than is
// wanted, as the re-entry by a handle with a shorter TTL, does not stand in for a renewal.
func (l *Lease) Prove(sent clock.Instant, lasts, wanted time.Duration) {
	if lasts >= wanted {
		l.renewed, l.raiseAt = sent, clock.Instant{}
	}
	// Both clocks of one request: mixed with those of an older one they would hide a
	// suspension of the machine, if the wall clock was set back in between.
	if end := clock.Deadline(sent, lasts); end.Mono > l.deadline.Mono {
		l.deadline = end
	}
}

// Left is how long the hold is proven yet.
func (l *Lease) Left(now clock.Instant) time.Duration { return now.Until(l.deadline) }

// Lengthen says that a lease was asked for: whether it was granted or not, Redis may keep the
// key for so long.
func (l *Lease) Lengthen(lasts time.Duration) { l.longest = max(l.longest, lasts) }

// raiseWithin is the part of a short lease after which it is raised to the full one: at
// once would be a request more for each of the many holds that end sooner.
const raiseWithin = 16

// RaiseSoon has a lease that is shorter than was asked for raised.
func (l *Lease) RaiseSoon(now clock.Instant) { l.raiseAt = now.After(l.Left(now) / raiseWithin) }

// Note records what an answered request found of the lease on Redis; 0: it was as this hold made it.
func (l *Lease) Note(found time.Duration, sent clock.Instant) {
	if found > 0 {
		l.found, l.foundAt = found, sent
	}
}

// pressed returns interval, or less while another program shortens the lease: that program may die at
// any time, and the lock would with it. A lease that was found once is at most half as long again;
// one that has not been found for longer than that is over.
func (l *Lease) pressed(interval time.Duration, now clock.Instant) time.Duration {
	if l.found == 0 || l.found >= 2*interval || now.Since(l.foundAt) > 2*l.found {
		return interval
	}
	return max(l.found/3, MinRenewInterval)
}

// Next is how long there is nothing to do for a hold that is renewed every interval, 0 for
// never, and whether it is to be renewed then: else its lease is over.
func (l *Lease) Next(now clock.Instant, interval time.Duration) (wait time.Duration, renew bool) {
	left := l.Left(now)
	switch {
	case left <= 0:
		return 0, false
	case l.raiseAt != (clock.Instant{}):
		return min(left, now.Until(l.raiseAt)), true
	case interval == 0:
		return left, false
	default:
		return min(left, now.Until(RenewalDue(l.renewed, l.pressed(interval, now)))), true
	}
}

// duePoints is how many points of time in an interval there are at which renewals are due.
const duePoints = 10 // mutant: renew-many-deaf/2

// RenewalDue is when a hold that was renewed at `renewed` is to be renewed again: up to a tenth of the interval sooner
// than after the whole, at the nearest of the points that all holds of the process with this interval share. So
// renewals are due together, and can go as one command. The points are those of the monotonic clock, which each
// process counts from a time of its own: many processes do not renew at the same moment.
func RenewalDue(renewed clock.Instant, interval time.Duration) clock.Instant {
	due, step := renewed.After(interval), interval/duePoints
	past := due.Mono % step
	if past < 0 { // in tests
		past += step
	}
	return due.After(-past)
}
