package relock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
)

func newGate() (*gate, clock.Instant) {
	return new(gate), clock.Instant{Mono: time.Hour, Wall: time.Hour}
}

func TestForeignWaiters_FirstTurnComesAWhileAfterTheFirstRequest(t *testing.T) {
	g, start := newGate()
	require.False(t, g.foreignTurnDue(start))
	require.False(t, g.foreignTurnDue(start.After(foreignIntervalMin-1)))
	require.True(t, g.foreignTurnDue(start.After(foreignIntervalMin)))
	require.True(t, g.foreignTurnDue(start.After(time.Minute)), "it stays due until they have it")
}

func TestForeignWaiters_TurnEndsOnceSettled(t *testing.T) {
	g, start := newGate()
	_, theirs := g.foreignTurnEnd()
	require.False(t, theirs)
	g.beginForeignTurn(start)
	_, theirs = g.foreignTurnEnd()
	require.False(t, theirs, "it is not due")
	now := start.After(foreignIntervalMin)
	for _, taken := range []bool{true, false} {
		g.beginForeignTurn(now)
		until, theirs := g.foreignTurnEnd()
		require.True(t, theirs)
		require.Equal(t, now.After(foreignWindow), until)
		g.endForeignTurn(taken, now)
		_, theirs = g.foreignTurnEnd()
		require.False(t, theirs)
	}
}

// Each turn that no foreign waiter takes doubles the time to the next, up to a second. A turn that was taken is
// followed by the next as soon as this process has had its own.
func TestForeignWaiters_TimeBetweenTurnsDoublesUntilOneIsTaken(t *testing.T) {
	g, now := newGate()
	require.False(t, g.foreignTurnDue(now))
	for range 2 {
		now = now.After(foreignIntervalMin)
		for _, ms := range []time.Duration{200, 400, 800, 1000, 1000} {
			interval := ms * time.Millisecond
			g.beginForeignTurn(now)
			g.endForeignTurn(false, now)
			require.False(t, g.foreignTurnDue(now.After(interval-1)), "%v", interval)
			now = now.After(interval)
			require.True(t, g.foreignTurnDue(now), "%v", interval)
		}
		g.beginForeignTurn(now)
		g.endForeignTurn(true, now)
		require.True(t, g.foreignTurnDue(now))
	}
}

func TestGate_ProcessKeepsAKeyThatNoOneElseWaitsFor(t *testing.T) {
	g, start := newGate()
	require.False(t, g.forUs(start), "that was not reported yet")
	g.seesLine(lineEmpty, start)
	require.True(t, g.forUs(start))
	require.False(t, g.forUs(start.After(foreignIntervalMin)), "it is the turn of foreign waiters")
	g.seesLine(lineTaken, start)
	require.False(t, g.forUs(start), "others stand in the line")
}
