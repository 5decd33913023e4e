package relock

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/redisexec"
)

// The last known state of a key is recorded at its gate, and shared by all waiters for the key: one of them asks Redis,
// and most of the others never do.

// sighting is the last known holder of a key. The zero sighting: no holder is known.
type sighting struct {
	at     clock.Instant
	holder string        // the holder's field on Redis
	hold   *hold         // its hold, if it is of this client
	claims bool          // it does not hold the key: it is a writer that waits
	lease  time.Duration // the rest of its lease at that time, if it is of another client; negative: without expiry
}

// outage records since when Redis has not answered for a key. The zero outage: Redis answers. An outage that nobody asks
// about any more is over: an attempt may still wait for another key, and keep the gate in use.
type outage struct {
	asked   clock.Instant // when the first unanswered request began
	left    clock.Instant // when the last attempt that asked ended; zero: one goes on
	failed  clock.Instant // when the first of those requests failed; zero: none has
	failure error         // of the last one that failed
}

// sees records the holder of the key.
func (g *gate) sees(s sighting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen = s
}

// asks records that a request begins. If an earlier request is unanswered, its outage continues.
func (g *gate) asks(now clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.outage = g.outage.at(now)
	if g.outage.left = (clock.Instant{}); g.outage.asked == g.outage.left {
		g.outage.asked = now
	}
}

// at returns the outage as it is at now.
func (o outage) at(now clock.Instant) outage {
	// The next attempt may be about to go on.
	if o.left != (clock.Instant{}) && now.Since(o.left) > redisexec.MinCopyPatience {
		return outage{}
	}
	return o
}

// answered records that Redis answered a request. Any answer ends the outage for all waiters for the key, whichever of
// them asked.
func (g *gate) answered() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.outage = outage{}
}

// stopsAsking records that an attempt that asked has ended. If it did not wait for the answer because it had little time,
// that does not indicate a failure of Redis.
func (g *gate) stopsAsking(now clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch o := &g.outage; {
	case o.asked == (clock.Instant{}):
	case o.failure == nil && now.Since(o.asked) < redisexec.MinCopyPatience:
		*o = outage{}
	default:
		o.left = now
	}
}

// failsToAsk records that a request failed. The failure stays until a request is answered, and a caller whose wait
// ends meanwhile reports it. If an answer came too late, the outage counts from now.
func (g *gate) failsToAsk(now clock.Instant, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.outage.failure = err
	if g.outage.asked == (clock.Instant{}) {
		g.outage.asked = now
	}
}

// unanswered records at now that Redis did not answer, and returns since when. The time that a waiter in line rides out an
// outage counts from then.
func (g *gate) unanswered(now clock.Instant) clock.Instant {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.outage.failed == (clock.Instant{}) {
		g.outage.failed = now
	}
	return g.outage.failed
}

// lastKnown returns the last known state of the key and of Redis. Both are copies, of one moment.
func (g *gate) lastKnown(now clock.Instant) (sighting, outage) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen, g.outage.at(now)
}

// since returns for how much of the time since start Redis has not answered. Before start it may have been silent
// only because there was no request.
func (o outage) since(start, now clock.Instant) time.Duration {
	if o.asked == (clock.Instant{}) {
		return 0
	}
	return now.Since(clock.Latest(o.asked, start))
}
