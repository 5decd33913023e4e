package relock

import (
	"math"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// Which wake-ups of a waiter were in vain, and how long the next request waits because of them.
//
// A wake-up is a hint, and any program that may publish can send any number of them. A wake-up was in vain if
// nothing has changed since the request before. After it the next request has to wait, counted from the one
// that was in vain: twice as long each time, and leastGap<<mostGaps at most. So messages without a meaning
// cost a process some twenty requests in a second, however many come. And none is lost: the request comes
// later.
//
// Wake-ups of a lock that is in use are not in vain, even if the lock is taken again when the request comes. A
// hold is another one if its holder is, or if its lease ends later than that of the hold before could. If one
// owner takes the same lock again and again, only the lease tells. It does so when the hold is some
// milliseconds old.
const (
	leastGap = 2 * time.Millisecond
	mostGaps = 5
	// ageOfHold is the age at which a hold is surely known from one by the same owner: more than
	// what Redis rounds its times by, at both ends.
	ageOfHold = 3 * time.Millisecond
)

// never is when a hold without a lease ends.
var never = clock.Instant{Mono: math.MaxInt64}

// wakes is what a waiter knows of the hold in its way, and how often it asked in vain. It belongs to the
// goroutine of the waiter. The zero value is that of a waiter that has not asked.
type wakes struct {
	asked clock.Instant // when the last request was sent
	again bool          // the one to come is for a wake-up
	n     int           // requests in a row that were, and found that nothing has changed

	seen clock.Instant // when the hold was first seen
	ends clock.Instant // the hold ends by then, unless it is renewed: the earliest that an answer has told
}

// woken takes note of a wake-up, and reports whether the request for it has to wait until it is due.
func (v *wakes) woken() bool {
	v.again = true
	return v.n > 0
}

// answered takes note of how the last request has ended. changed: another holder is in the way. A request that
// failed after a wake-up counts as in vain: a Redis that does not answer is not to be asked at each message.
func (v *wakes) answered(g protocol.Grant, out redisexec.Outcome, changed bool, now clock.Instant) {
	woken := v.again
	v.again = false
	if out.Err != nil {
		v.asked = now
		if woken {
			v.n++
		}
		return
	}
	v.asked = out.Sent
	earliest, latest := never, never // end of the hold
	if g.TTL >= 0 {
		earliest, latest = out.Sent.After(g.TTL), now.After(g.TTL+time.Millisecond)
	}
	// A hold with a later end is another one, or was renewed. That cannot be told apart, so it starts anew.
	switch {
	case changed, earliest.Mono > v.ends.Mono:
		v.n, v.seen, v.ends = 0, now, latest
		return
	case latest.Mono < v.ends.Mono:
		v.ends = latest
	}
	if woken && !g.Split && out.Sent.Since(v.seen) >= ageOfHold {
		v.n++
	}
}

// due is when the next request may be sent: not later than the end of the hold, after which it may be free
// without any message.
func (v *wakes) due() clock.Instant {
	due := v.asked.After(clock.Jitter(leastGap << min(v.n, mostGaps)))
	if v.ends.Mono < due.Mono {
		return v.ends
	}
	return due
}
