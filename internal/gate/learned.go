package gate

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/redisexec"
)

// What a process has learned of a key is kept at its gate. All that wait for the key share it: one of
// them asks, and most of the others stand in line and never do.

// Sighting is who had a key when that was last told. The zero Sighting: no one was seen.
type Sighting[H Hold] struct {
	At     clock.Instant
	Holder string        // the holder's field on Redis
	Hold   H             // its hold, if it is of this client
	Claims bool          // it did not hold the key: it waited to write
	Lease  time.Duration // what it had left then, if it is of another client; negative: for ever
}

// Outage says since when Redis has not answered about a key. The zero Outage: it answers.
type Outage struct {
	Asked   clock.Instant // when the first request began that was not answered
	Failed  clock.Instant // when the first of those failed; zero: none has
	Failure error         // of the last one that has
}

// Sees records who has the key, or was last told to have it.
func (g *Gate[H]) Sees(s Sighting[H]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen = s
}

// Alone reports whether no one stood in the line of the key when that was last told.
func (g *Gate[H]) Alone() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.alone
}

// SetAlone records whether anyone stands in the line.
// It is a hint: a waiter that comes to the line later is seen by the next command.
func (g *Gate[H]) SetAlone(alone bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.alone = alone
}

// Asks records that a request begins. If one before it was not answered, the outage goes on from that one.
func (g *Gate[H]) Asks(now clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.outage.Asked == (clock.Instant{}) {
		g.outage.Asked = now
	}
}

// Heard records that Redis answered a request.
// Any answer ends an outage for all that wait for the key, whichever of them asked.
func (g *Gate[H]) Heard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.outage = Outage{}
}

// StopsAsking records that the caller did not wait for the answer: if it was given little time,
// that says nothing of Redis.
func (g *Gate[H]) StopsAsking(now clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.outage.Failure == nil && now.Since(g.outage.Asked) < redisexec.MinCopyPatience {
		g.outage = Outage{}
	}
}

// FailsToAsk records that a request has failed. The failure stays until a request is answered: a caller whose wait
// ends meanwhile is told of it. One whose answer came too late counts from now.
func (g *Gate[H]) FailsToAsk(now clock.Instant, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.outage.Failure = err
	if g.outage.Asked == (clock.Instant{}) {
		g.outage.Asked = now
	}
}

// Unheard records at now that Redis did not answer, and returns since when it does not.
// From then on the patience of those that wait in line runs.
func (g *Gate[H]) Unheard(now clock.Instant) clock.Instant {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.outage.Failed == (clock.Instant{}) {
		g.outage.Failed = now
	}
	return g.outage.Failed
}

// Learned returns what was learned of the key, and of Redis. Both are copies, of one moment.
func (g *Gate[H]) Learned() (Sighting[H], Outage) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen, g.outage
}

// Since is how long Redis has not answered by now, of the time from start on. It may have
// been silent before, but then for lack of questions.
func (o *Outage) Since(start, now clock.Instant) time.Duration {
	if o.Asked == (clock.Instant{}) {
		return 0
	}
	return now.Since(clock.Latest(o.Asked, start))
}
