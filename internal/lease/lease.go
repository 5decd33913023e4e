// Package lease computes until when a lease is proven, and when it is to be renewed.
package lease

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
)

// Lease is the proven lease of a hold. It is a value without a clock and without Redis: callers pass all times.
//
// It is the only writer of the deadline of a hold. Invariants: the deadline is no later than
// the end of the lease on Redis, because it counts from before an answered request was sent; and within one grant it
// never moves back.
type Lease struct {
	acquired clock.Instant // when the hold began
	renewed  clock.Instant // when the last answered request that asked for the whole lease was sent

	// deadline is when the hold is lost unless it is renewed.
	deadline clock.Instant

	// longest is the longest lease that was ever requested: the key may live on Redis for so long.
	longest time.Duration

	// found is the rest of the lease on Redis when a request, sent at foundAt, found it shorter than this hold had set
	// it. Java's watchdog shortens it so, every third of its own lease.
	found   time.Duration
	foundAt clock.Instant

	// raiseAt is when a lease that is shorter than requested is to be extended; zero: it is not.
	raiseAt clock.Instant
}

// MinRenewInterval is the shortest time between two renewals.
const MinRenewInterval = 10 * time.Millisecond

// New returns the lease of a hold that will be requested for the duration lasts.
func New(lasts time.Duration) Lease { return Lease{longest: lasts} }

// Begin records that the hold has begun.
func (l *Lease) Begin(now clock.Instant) { l.acquired = now }

// Acquired returns when the hold began.
func (l *Lease) Acquired() clock.Instant { return l.acquired }

// Deadline returns when the hold is lost unless it is renewed.
func (l *Lease) Deadline() clock.Instant { return l.deadline }

// Longest returns the longest lease that was ever requested: the key may live on Redis for so long.
func (l *Lease) Longest() time.Duration { return l.longest }

// Grant begins the lease of a grant, which was requested at sent.
func (l *Lease) Grant(sent clock.Instant, lasts time.Duration) {
	l.renewed, l.deadline = sent, clock.Deadline(sent, lasts)
}

// Follow begins the lease of a hold that takes over the lease of another one on Redis.
func (l *Lease) Follow(before Lease) {
	longest := max(l.longest, before.longest)
	*l = before
	l.longest = longest
}

// Prove records an answered request that set or extended the lease. A request for less than wanted, as in a re-entry by
// a handle with a shorter TTL, does not count as a renewal.
func (l *Lease) Prove(sent clock.Instant, lasts, wanted time.Duration) {
	if lasts >= wanted {
		l.renewed, l.raiseAt = sent, clock.Instant{}
	}
	// Both clocks are of one request. Mixed with an older request they would hide a
	// suspension of the machine if the wall clock was set back in between.
	if end := clock.Deadline(sent, lasts); end.Mono > l.deadline.Mono {
		l.deadline = end
	}
}

// Left returns for how long the hold is still proven.
func (l *Lease) Left(now clock.Instant) time.Duration { return now.Until(l.deadline) }

// Lengthen records that a lease of the duration lasts was requested. Whether it was granted or not, Redis may keep the
// key for so long.
func (l *Lease) Lengthen(lasts time.Duration) { l.longest = max(l.longest, lasts) }

// raiseWithin is the part of a short lease after which it is extended to the full one. To extend it
// at once would cost one more request for each of the many holds that end sooner.
const raiseWithin = 16

// RaiseSoon schedules the extension of a lease that is shorter than requested.
func (l *Lease) RaiseSoon(now clock.Instant) { l.raiseAt = now.After(l.Left(now) / raiseWithin) }

// Note records the rest of the lease on Redis that an answered request found; 0: as this hold had set it.
func (l *Lease) Note(found time.Duration, sent clock.Instant) {
	if found > 0 {
		l.found, l.foundAt = found, sent
	}
}

// pressed returns interval, or less while another program shortens the lease: that program may die at
// any time, and the lock would end with its lease. A lease that was found once lasts at most half as long again;
// if it was not found again for longer than that, the other program has ended.
func (l *Lease) pressed(interval time.Duration, now clock.Instant) time.Duration {
	if l.found == 0 || l.found >= 2*interval || now.Since(l.foundAt) > 2*l.found {
		return interval
	}
	return max(l.found/3, MinRenewInterval)
}

// Next returns how long there is nothing to do for a hold that is renewed every interval (0: never), and whether a
// renewal is due then. If not, the lease has ended then.
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

// duePoints is the number of points in an interval at which renewals are due.
const duePoints = 10 // mutant: renew-many-ignores-loss/2

// RenewalDue returns when a hold whose last renewal was sent at renewed is due again. All holds of the process with this
// interval share the same points in time. RenewalDue returns the point that is at most a tenth of the interval before
// the end of the whole interval, so that renewals are due together and can be sent together. The points are those of
// the monotonic clock, which begins at another time in each process: many processes do not renew at the same moment.
func RenewalDue(renewed clock.Instant, interval time.Duration) clock.Instant {
	due, step := renewed.After(interval), interval/duePoints
	return due.After(-((due.Mono%step + step) % step)) // also for times before the origin of the clock
}
