package relock

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
)

// Foreign waiters, such as those of Redisson, have no entry in the line of a key: they wait for it to be free. A
// process that goes on because the line is empty gives them a turn by the clock, as releases do if the line has
// entries (lua/line_prelude.lua): its next waiter does not ask for a moment. If the lock is then taken, the next
// turn of foreign waiters comes after one turn of this process, otherwise after twice the time.
const (
	strangersWindow = 5 * time.Millisecond
	strangersFirst  = 100 * time.Millisecond
	strangersMost   = time.Second
)

// strangers is the schedule of turns of foreign waiters. The zero strangers has no time set; the first call of
// strangersDue sets it.
type strangers struct {
	interval time.Duration // from the last turn to the next; it doubles while no foreign waiter takes the lock
	due      clock.Instant // time of their next turn
	until    clock.Instant // end of their turn; zero: it is not their turn
}

// strangersDue reports whether a turn of foreign waiters is due. mu is held.
func (g *gate) strangersDue(now clock.Instant) bool {
	s := &g.strangers
	if s.interval == 0 {
		s.interval, s.due = strangersFirst, now.After(strangersFirst)
	}
	return now.Until(s.due) <= 0
}

// leaveToStrangers begins a turn of foreign waiters if it is due. The lock was released to all. The turn ends by the
// clock alone, because foreign waiters send this process nothing.
func (g *gate) leaveToStrangers(now clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.strangersDue(now) {
		g.strangers.until = now.After(strangersWindow)
	}
}

// forUs reports whether this process may hold the key beyond WithLocalHandoffs: the line has no other entry, and no
// turn of foreign waiters is due.
func (g *gate) forUs(now clock.Instant) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.alone && !g.strangersDue(now)
}

// strangersUntil returns the end of their turn; false: it is not their turn.
func (g *gate) strangersUntil() (clock.Instant, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.strangers.until, g.strangers.until != (clock.Instant{})
}

// strangersTook ends their turn, and records whether they took the lock.
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
