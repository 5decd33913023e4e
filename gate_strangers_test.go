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
	require.False(t, g.strangersDue(start))
	require.False(t, g.strangersDue(start.After(strangersFirst-1)))
	require.True(t, g.strangersDue(start.After(strangersFirst)))
	require.True(t, g.strangersDue(start.After(time.Minute)), "it stays due until they have it")
}

func TestForeignWaiters_TurnEndsOnceSettled(t *testing.T) {
	g, start := newGate()
	_, theirs := g.strangersUntil()
	require.False(t, theirs)
	g.leaveToStrangers(start)
	_, theirs = g.strangersUntil()
	require.False(t, theirs, "it is not due")
	now := start.After(strangersFirst)
	for _, taken := range []bool{true, false} {
		g.leaveToStrangers(now)
		until, theirs := g.strangersUntil()
		require.True(t, theirs)
		require.Equal(t, now.After(strangersWindow), until)
		g.strangersTook(taken, now)
		_, theirs = g.strangersUntil()
		require.False(t, theirs)
	}
}

// Each that is in vain doubles the time to the next, up to a second; one that was taken is followed by
// the next as soon as this process has had its own.
func TestForeignWaiters_TimeBetweenTurnsDoublesUntilOneIsTaken(t *testing.T) {
	g, now := newGate()
	require.False(t, g.strangersDue(now))
	for range 2 {
		now = now.After(strangersFirst)
		for _, ms := range []time.Duration{200, 400, 800, 1000, 1000} {
			interval := ms * time.Millisecond
			g.leaveToStrangers(now)
			g.strangersTook(false, now)
			require.False(t, g.strangersDue(now.After(interval-1)), "%v", interval)
			now = now.After(interval)
			require.True(t, g.strangersDue(now), "%v", interval)
		}
		g.leaveToStrangers(now)
		g.strangersTook(true, now)
		require.True(t, g.strangersDue(now))
	}
}

func TestGate_ProcessKeepsAKeyThatNoOneElseWaitsFor(t *testing.T) {
	g, start := newGate()
	require.False(t, g.forUs(start), "that was not told yet")
	g.setAlone(true)
	require.True(t, g.forUs(start))
	require.False(t, g.forUs(start.After(strangersFirst)), "it is the turn of strangers")
	g.setAlone(false)
	require.False(t, g.forUs(start), "others stand in the line")
}
