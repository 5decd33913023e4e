package relock

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/redisexec"
)

// What a process has learned of a key is kept at its gate. All that wait for the key share it: one of
// them asks, and most of the others stand in line and never do.

// sighting is who had a key when that was last told. The zero sighting: no one was seen.
type sighting struct {
	at     clock.Instant
	holder string        // the holder's field on Redis
	hold   *hold         // its hold, if it is of this client
	claims bool          // it did not hold the key: it waited to write
	lease  time.Duration // what it had left then, if it is of another client; negative: for ever
}

// outage says since when Redis has not answered about a key. The zero outage: it answers.
type outage struct {
	asked   clock.Instant // when the first request began that was not answered
	failed  clock.Instant // when the first of those failed; zero: none has
	failure error         // of the last one that has
}

// sees records who has the key, or was last told to have it.
func (g *gate) sees(s sighting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen = s
}

// setAlone records whether anyone stands in the line.
// It is a hint: a waiter that comes to the line later is seen by the next command.
func (g *gate) setAlone(alone bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.alone = alone
}

// asks records that a request begins. If one before it was not answered, the outage goes on from that one.
func (g *gate) asks(now clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.outage.asked == (clock.Instant{}) {
		g.outage.asked = now
	}
}

// heard records that Redis answered a request.
// Any answer ends an outage for all that wait for the key, whichever of them asked.
func (g *gate) heard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.outage = outage{}
}

// stopsAsking records that the caller did not wait for the answer: if it was given little time,
// that says nothing of Redis.
func (g *gate) stopsAsking(now clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.outage.failure == nil && now.Since(g.outage.asked) < redisexec.MinCopyPatience {
		g.outage = outage{}
	}
}

// failsToAsk records that a request has failed. The failure stays until a request is answered: a caller whose wait
// ends meanwhile is told of it. One whose answer came too late counts from now.
func (g *gate) failsToAsk(now clock.Instant, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.outage.failure = err
	if g.outage.asked == (clock.Instant{}) {
		g.outage.asked = now
	}
}

// unheard records at now that Redis did not answer, and returns since when it does not.
// From then on the patience of those that wait in line runs.
func (g *gate) unheard(now clock.Instant) clock.Instant {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.outage.failed == (clock.Instant{}) {
		g.outage.failed = now
	}
	return g.outage.failed
}

// learned returns what was learned of the key, and of Redis. Both are copies, of one moment.
func (g *gate) learned() (sighting, outage) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen, g.outage
}

// since is how long Redis has not answered by now, of the time from start on. It may have
// been silent before, but then for lack of questions.
func (o outage) since(start, now clock.Instant) time.Duration {
	if o.asked == (clock.Instant{}) {
		return 0
	}
	return now.Since(clock.Latest(o.asked, start))
}
