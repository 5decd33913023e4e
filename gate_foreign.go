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
	foreignWindow      = 10 * time.Millisecond // as in lua/line_prelude.lua, which has the reason
	foreignIntervalMin = 100 * time.Millisecond
	foreignIntervalMax = time.Second
)

// foreignTurns is the schedule of turns of foreign waiters. The zero foreignTurns has no time set; the first call of
// foreignTurnDue sets it.
type foreignTurns struct {
	interval time.Duration // from the last turn to the next; it doubles while no foreign waiter takes the lock
	due      clock.Instant // time of their next turn
	until    clock.Instant // end of their turn; zero: it is not their turn
}

// foreignTurnDue reports whether a turn of foreign waiters is due. mu is held.
func (g *gate) foreignTurnDue(now clock.Instant) bool {
	s := &g.foreign
	if s.interval == 0 {
		s.interval, s.due = foreignIntervalMin, now.After(foreignIntervalMin)
	}
	return now.Until(s.due) <= 0
}

// beginForeignTurn begins a turn of foreign waiters if it is due. The lock was released to all. The turn ends by the
// clock alone, because foreign waiters send this process nothing.
func (g *gate) beginForeignTurn(now clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.foreignTurnDue(now) {
		g.foreign.until = now.After(foreignWindow)
	}
}

// forUs reports whether this process may hold the key beyond WithLocalHandoffs: the line has no other entry, and no
// turn of foreign waiters is due.
func (g *gate) forUs(now clock.Instant) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.demand.line == lineEmpty && !g.foreignTurnDue(now)
}

// foreignTurnEnd returns the end of their turn; false: it is not their turn.
func (g *gate) foreignTurnEnd() (clock.Instant, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.foreign.until, g.foreign.until != (clock.Instant{})
}

// endForeignTurn ends their turn, and records whether they took the lock.
func (g *gate) endForeignTurn(taken bool, now clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := &g.foreign
	s.until = clock.Instant{}
	if taken {
		s.interval, s.due = foreignIntervalMin, now
	} else {
		s.interval = min(2*s.interval, foreignIntervalMax)
		s.due = now.After(s.interval)
	}
}
