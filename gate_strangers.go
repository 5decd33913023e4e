package relock

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
)

// Strangers, as waiters of Redisson, have no place in the line of a key: they wait for it to be free. A
// process that goes on because no one stands in the line gives them a turn by the clock, as releases do where
// others stand there (lua/line_prelude.lua): its next waiter does not ask for a moment. If that finds the lock
// taken then, they have their next turn after one of this process; else after twice the time.
const (
	strangersWindow = 5 * time.Millisecond
	strangersFirst  = 100 * time.Millisecond
	strangersMost   = time.Second
)

// strangers is when they have their turn. The zero strangers: no time has been set. The first question whether
// one is due sets it.
type strangers struct {
	interval time.Duration // from the last turn to the next; it doubles while no stranger takes the lock
	due      clock.Instant // for their next turn
	until    clock.Instant // their turn ends; zero: they have none
}

// strangersDue reports whether it is time for a turn of strangers. mu is held.
func (g *gate) strangersDue(now clock.Instant) bool {
	s := &g.strangers
	if s.interval == 0 {
		s.interval, s.due = strangersFirst, now.After(strangersFirst)
	}
	return now.Until(s.due) <= 0
}

// leaveToStrangers begins a turn of theirs if it is time for one: the lock was given back to all. It ends by the clock
// alone, because strangers tell this process nothing.
func (g *gate) leaveToStrangers(now clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.strangersDue(now) {
		g.strangers.until = now.After(strangersWindow)
	}
}

// forUs reports whether this process can keep the key beyond the limit of its turn: no one else waits for it in the
// line, and it is not the turn of strangers.
func (g *gate) forUs(now clock.Instant) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.alone && !g.strangersDue(now)
}

// strangersUntil is when their turn ends; false: they have none.
func (g *gate) strangersUntil() (clock.Instant, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.strangers.until, g.strangers.until != (clock.Instant{})
}

// strangersTook ends their turn, in which they took the lock or did not.
func (g *gate) strangersTook(taken bool, now clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := &g.strangers
	s.until = clock.Instant{}
	if taken {
		s.interval, s.due = strangersFirst, now
	} else {
		s.interval = min(2*s.interval, strangersMost)
		s.due = now.After(s.interval)
	}
}
