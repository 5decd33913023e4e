package relock

import (
	"math"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// Which wake-ups of a waiter are spurious, and how long the next request waits because of them.
//
// A wake-up is a hint: any program that may publish can send any number of them. A wake-up is spurious if the
// request for it finds that nothing has changed since the request before. After a spurious wake-up, requests for
// wake-ups are spuriousGap apart. So spurious messages cause 20 requests per second per process at most. No
// wake-up is lost: its request comes later.
//
// Wake-ups of a lock that is in use are not spurious, even if the lock is taken again before the request arrives.
// A request finds another hold if the holder is another one, or if the lease ends later than the lease of the
// hold before can end. If one owner takes the same lock again and again, only the lease shows it, and only when the
// hold is some milliseconds old.
const (
	spuriousGap = 50 * time.Millisecond
	// ageOfHold is the age at which the lease of a hold surely differs from the lease of a later hold of
	// the same owner: more than Redis rounds its times by, at both ends.
	ageOfHold = 3 * time.Millisecond
)

// never is when a hold without a lease ends.
var never = clock.Instant{Mono: math.MaxInt64}

// wakes is the hold in the way of a waiter, as far as the waiter has recorded it, and whether its last wake-up was
// spurious. It belongs to the goroutine of the waiter. The zero value is for a waiter that has not asked.
type wakes struct {
	asked    clock.Instant // when the last request was sent
	spurious bool          // the last request was for a wake-up, and nothing had changed
	woken    bool          // the next request is for a wake-up

	seen clock.Instant // when the hold was first seen
	ends clock.Instant // the earliest end that an answer proves, unless the hold is renewed
}

// wake records a wake-up, and returns when the request for it may be sent: not later than the end of the hold,
// after which the lock may be free without any message.
func (w *wakes) wake() (due clock.Instant) {
	w.woken = true
	if due = w.asked; w.spurious {
		due = due.After(spuriousGap)
	}
	if w.ends.Mono < due.Mono {
		return w.ends
	}
	return due
}

// answered records the result of the last request. changed: another holder is in the way. If the request for a
// wake-up fails, the wake-up counts as spurious: a Redis that does not answer is not asked at each message.
func (w *wakes) answered(g protocol.Grant, out redisexec.Outcome, changed bool, now clock.Instant) {
	woken := w.woken
	w.woken, w.spurious, w.asked = false, false, out.Sent
	if out.Err != nil {
		w.spurious, w.asked, w.ends = woken, now, never
		return
	}
	earliest, latest := never, never // end of the hold
	if g.TTL >= 0 {
		earliest, latest = out.Sent.After(g.TTL), now.After(g.TTL+time.Millisecond)
	}
	// A hold with a later end is another one, or was renewed. The two look the same, so it counts as another one.
	if changed || earliest.Mono > w.ends.Mono {
		w.seen, w.ends = now, latest
		return
	}
	if latest.Mono < w.ends.Mono {
		w.ends = latest
	}
	w.spurious = woken && !g.Split && out.Sent.Since(w.seen) >= ageOfHold
}
