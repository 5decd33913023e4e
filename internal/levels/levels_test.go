package levels

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/terms"
)

// at is the instant so long after the beginning of a test, on both clocks.
func at(d time.Duration) clock.Instant { return clock.Instant{}.After(d) }

// terms are those of a handle that is renewed a third of its TTL apart.
func asks(ttl time.Duration, change func(*terms.Terms)) *terms.Terms {
	t := &terms.Terms{Terms: protocol.Terms{TTL: ttl, Renewed: true}, RenewInterval: ttl / 3}
	if change != nil {
		change(t)
	}
	return t
}

// setOf is what a handle with these names locks.
func setOf(t *testing.T, names ...string) *keys.Set {
	t.Helper()
	s := new(keys.Set)
	require.NoError(t, s.Init("", names))
	return s
}

// levelsOf are those of a hold that was wanted for 30 s, by the handle "wish".
func levelsOf() *Levels[string] {
	l := new(Levels[string])
	l.Init("wish", asks(30*time.Second, nil))
	return l
}

func TestALevelThatIsYetToComeDecidesUntilOneIsOpen(t *testing.T) {
	l, a := levelsOf(), setOf(t, "a")
	require.Equal(t, "wish", l.Oldest())
	require.Equal(t, 30*time.Second, l.TTL())
	require.Equal(t, 10*time.Second, l.RenewInterval(at(0), at(0)))
	require.True(t, l.Renewed())

	l.Push(Level[string]{Settings: "fixed", Target: a, Terms: asks(time.Minute, func(t *terms.Terms) { t.Renewed = false })}, at(0))
	require.Equal(t, "fixed", l.Oldest())
	require.Equal(t, time.Minute, l.TTL())
	require.Zero(t, l.RenewInterval(at(0), at(0)), "no open level asks for it")
	require.False(t, l.Renewed())
}

func TestTheLongestLeaseTheShortestIntervalAndTheMostReplicasCount(t *testing.T) {
	l, a := levelsOf(), setOf(t, "a")
	two := redisexec.Replicas{N: 2, Timeout: time.Second}
	l.Push(Level[string]{Settings: "first", Target: a, Terms: asks(time.Minute, nil)}, at(0))
	l.Push(Level[string]{Settings: "second", Target: a, Terms: asks(3*time.Second, func(t *terms.Terms) { t.Replicas = two })}, at(0))
	require.Equal(t, time.Minute, l.TTL())
	require.Equal(t, time.Second, l.RenewInterval(at(0), at(0)))
	require.Equal(t, two, l.Replicas())
	require.Equal(t, "first", l.Oldest())
	l.Push(Level[string]{Target: a, Terms: asks(time.Minute, nil)}, at(0))
	require.Equal(t, time.Second, l.RenewInterval(at(0), at(0)), "a longer one does not count")
	l.Pop(a)

	_, popped := l.Pop(a)
	require.True(t, popped)
	require.Equal(t, 20*time.Second, l.RenewInterval(at(0), at(0)), "the newest has gone")
	require.Zero(t, l.Replicas().N)
}

func TestALevelIsRenewedForAsLongAsItsMaxHold(t *testing.T) {
	bounded := asks(3*time.Second, func(t *terms.Terms) { t.MaxHold = 10 * time.Second })
	l, a := levelsOf(), setOf(t, "a")
	l.Push(Level[string]{Target: a, Terms: bounded}, at(5*time.Second))
	require.NotZero(t, l.RenewInterval(at(15*time.Second-1), at(0)))
	require.Zero(t, l.RenewInterval(at(15*time.Second), at(0)))
	require.True(t, l.Renewed(), "it asked for that")

	var wanted Levels[string]
	wanted.Init("", bounded)
	require.NotZero(t, wanted.RenewInterval(at(12*time.Second-1), at(2*time.Second)))
	require.Zero(t, wanted.RenewInterval(at(12*time.Second), at(2*time.Second)), "from when the hold was acquired")
}

func TestCountsAreThoseOfEachKey(t *testing.T) {
	l, both, one := levelsOf(), setOf(t, "a", "b"), setOf(t, "b")
	l.Push(Level[string]{Target: both, Terms: asks(time.Second, nil)}, at(0))
	l.Push(Level[string]{Target: one, Terms: asks(time.Second, nil)}, at(0))
	require.Equal(t, []int{1, 2}, l.Counts(both.Keys))
	require.Equal(t, 2, l.Len())

	_, popped := l.Pop(both)
	require.True(t, popped, "the newest of that target, under one of another")
	require.Equal(t, []int{0, 1}, l.Counts(both.Keys))
	_, popped = l.Pop(both)
	require.False(t, popped)
	require.Equal(t, 1, l.Len())
}

func TestTheLatestTimeToBeKeptUntilCounts(t *testing.T) {
	minHold := func(d time.Duration) *terms.Terms { return asks(time.Second, func(t *terms.Terms) { t.MinHold = d }) }
	l, a := levelsOf(), setOf(t, "a")
	l.Push(Level[string]{Target: a, Terms: minHold(10 * time.Second)}, at(0))
	l.Push(Level[string]{Target: a, Terms: minHold(5 * time.Second)}, at(2*time.Second))
	l.Push(Level[string]{Target: a, Terms: asks(time.Second, nil)}, at(3*time.Second))
	require.Zero(t, l.KeptUntil(), "none has ended")
	var ended []Level[string]
	for _, until := range []time.Duration{0, 7 * time.Second, 10 * time.Second} {
		lv, _ := l.Pop(a)
		l.Keep(lv)
		ended = append(ended, lv)
		want := clock.Instant{}
		if until > 0 {
			want = at(until)
		}
		require.Equal(t, want, l.KeptUntil())
	}
	for _, lv := range ended {
		l.Keep(lv)
		require.Equal(t, at(10*time.Second), l.KeptUntil(), "an earlier time does not count, nor does none")
	}
	l.KeepNothing()
	require.Zero(t, l.KeptUntil(), "it was lost")
}

func TestWhatCloseEndsIsKeptTooAndAFailedLockIsNot(t *testing.T) {
	minHold := asks(time.Second, func(t *terms.Terms) { t.MinHold = time.Minute })
	l, a := levelsOf(), setOf(t, "a")
	l.Push(Level[string]{Target: a, Terms: minHold}, at(0))
	l.Revoke(a)
	l.KeepAll()
	require.Zero(t, l.KeptUntil(), "its Lock has failed")

	l.Push(Level[string]{Target: a, Terms: minHold}, at(time.Second))
	l.KeepAll()
	require.Equal(t, at(61*time.Second), l.KeptUntil())
	require.Equal(t, 2, l.Len(), "they stay open")
}
