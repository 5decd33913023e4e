package gate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
)

// noHold is what no test of strangers looks at.
type noHold struct{}

func (*noHold) Owner() keys.Owner { return keys.Owner{} }

func newGate() (*Gate[*noHold], clock.Instant) {
	return new(Gate[*noHold]), clock.Instant{Mono: time.Hour, Wall: time.Hour}
}

func TestStrangersHaveTheirFirstTurnAWhileAfterTheFirstQuestion(t *testing.T) {
	g, start := newGate()
	require.False(t, g.StrangersDue(start))
	require.False(t, g.StrangersDue(start.After(strangersFirst-1)))
	require.True(t, g.StrangersDue(start.After(strangersFirst)))
	require.True(t, g.StrangersDue(start.After(time.Minute)), "it stays due until they have it")
}

func TestATurnOfStrangersHasAnEndUntilItIsSettled(t *testing.T) {
	g, start := newGate()
	_, theirs := g.StrangersUntil()
	require.False(t, theirs)
	require.False(t, g.StrangersDue(start))
	g.LeaveToStrangers(start)
	until, theirs := g.StrangersUntil()
	require.True(t, theirs)
	require.Equal(t, start.After(strangersWindow), until)
	for _, taken := range []bool{true, false} {
		g.StrangersTook(taken, start)
		_, theirs = g.StrangersUntil()
		require.False(t, theirs)
		g.LeaveToStrangers(start)
	}
}

// Each that is in vain doubles the time to the next, up to a second; one that was taken is followed by
// the next as soon as this process has had its own.
func TestTheTimeBetweenTurnsOfStrangersDoublesUntilOneIsTaken(t *testing.T) {
	g, now := newGate()
	require.False(t, g.StrangersDue(now))
	for range 2 {
		now = now.After(strangersFirst)
		for _, ms := range []time.Duration{200, 400, 800, 1000, 1000} {
			interval := ms * time.Millisecond
			g.LeaveToStrangers(now)
			g.StrangersTook(false, now)
			require.False(t, g.StrangersDue(now.After(interval-1)), "%v", interval)
			now = now.After(interval)
			require.True(t, g.StrangersDue(now), "%v", interval)
		}
		g.LeaveToStrangers(now)
		g.StrangersTook(true, now)
		require.True(t, g.StrangersDue(now))
	}
}
