package relock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// at is the instant so long after the beginning of a test, on both clocks.
func at(d time.Duration) clock.Instant { return clock.Instant{}.After(d) }

// asks returns the settings of a handle that is renewed a third of its TTL apart.
func asks(ttl time.Duration, change func(*settings)) *settings {
	s := &settings{Terms: protocol.Terms{TTL: ttl, Renewed: true}, renewInterval: ttl / 3}
	if change != nil {
		change(s)
	}
	return s
}

// setOf is what a handle with these names locks.
func setOf(t *testing.T, names ...string) *keys.Set {
	t.Helper()
	s := new(keys.Set)
	require.NoError(t, s.Init("", names))
	return s
}

// wantedLocks are the locks of a hold that was wanted for 30 s.
func wantedLocks() *openLocks {
	l := new(openLocks)
	l.wish = asks(30*time.Second, nil)
	return l
}

func TestOpenLocks_LeaseOfThePendingOneCountsUntilOneIsOpen(t *testing.T) {
	l, a := wantedLocks(), setOf(t, "a")
	require.Equal(t, 30*time.Second, l.ttl())

	l.open = append(l.open, openLock{target: a, settings: asks(time.Minute, func(s *settings) { s.Renewed = false })}.from(at(0)))
	require.Equal(t, time.Minute, l.ttl())
	require.Zero(t, l.renewInterval(at(0)), "no open level asks for it")
	require.False(t, l.renewed())
}

func TestOpenLocks_LongestLeaseShortestIntervalAndMostReplicasCount(t *testing.T) {
	l, a := wantedLocks(), setOf(t, "a")
	two := redisexec.Replicas{N: 2, Timeout: time.Second}
	l.open = append(l.open, openLock{target: a, settings: asks(time.Minute, nil)}.from(at(0)))
	l.open = append(l.open, openLock{target: a, settings: asks(3*time.Second, func(s *settings) { s.replicas = two })}.from(at(0)))
	require.Equal(t, time.Minute, l.ttl())
	require.Equal(t, time.Second, l.renewInterval(at(0)))
	require.Equal(t, two, l.replicas())
	l.open = append(l.open, openLock{target: a, settings: asks(time.Minute, nil)}.from(at(0)))
	require.Equal(t, time.Second, l.renewInterval(at(0)), "a longer one does not count")
	l.pop(a)

	_, popped := l.pop(a)
	require.True(t, popped)
	require.Equal(t, 20*time.Second, l.renewInterval(at(0)), "the newest has gone")
	require.Zero(t, l.replicas().N)
}

func TestOpenLocks_AreRenewedForTheirMaxHold(t *testing.T) {
	bounded := asks(3*time.Second, func(s *settings) { s.maxHold = 10 * time.Second })
	l, a := wantedLocks(), setOf(t, "a")
	l.open = append(l.open, openLock{target: a, settings: bounded}.from(at(5*time.Second)))
	require.NotZero(t, l.renewInterval(at(15*time.Second-1)))
	require.Zero(t, l.renewInterval(at(15*time.Second)))
	require.True(t, l.renewed(), "it asked for that")
}

func TestOpenLocks_AreCountedPerKey(t *testing.T) {
	l, both, one := wantedLocks(), setOf(t, "a", "b"), setOf(t, "b")
	l.open = append(l.open, openLock{target: both, settings: asks(time.Second, nil)}.from(at(0)))
	l.open = append(l.open, openLock{target: one, settings: asks(time.Second, nil)}.from(at(0)))
	require.Equal(t, []int{1, 2}, l.counts(both.Keys))
	require.Equal(t, 2, len(l.open))

	_, popped := l.pop(both)
	require.True(t, popped, "the newest of that target, under one of another")
	require.Equal(t, []int{0, 1}, l.counts(both.Keys))
	_, popped = l.pop(both)
	require.False(t, popped)
	require.Equal(t, 1, len(l.open))
}

func TestOpenLocks_LatestMinHoldCounts(t *testing.T) {
	minHold := func(d time.Duration) *settings { return asks(time.Second, func(s *settings) { s.minHold = d }) }
	l, a := wantedLocks(), setOf(t, "a")
	l.open = append(l.open, openLock{target: a, settings: minHold(10 * time.Second)}.from(at(0)))
	l.open = append(l.open, openLock{target: a, settings: minHold(5 * time.Second)}.from(at(2*time.Second)))
	l.open = append(l.open, openLock{target: a, settings: asks(time.Second, nil)}.from(at(3*time.Second)))
	require.Zero(t, l.placeholderUntil, "none has ended")
	var ended []openLock
	for _, until := range []time.Duration{0, 7 * time.Second, 10 * time.Second} {
		lock, _ := l.pop(a)
		l.recordMinHold(lock)
		ended = append(ended, lock)
		want := clock.Instant{}
		if until > 0 {
			want = at(until)
		}
		require.Equal(t, want, l.placeholderUntil)
	}
	for _, lock := range ended {
		l.recordMinHold(lock)
		require.Equal(t, at(10*time.Second), l.placeholderUntil, "an earlier time does not count, nor does none")
	}
}

// Another Lock of the hold may ask for more replicas, without a min hold.
func TestOpenLocks_ReplicasOfTheLocksWithAMinHoldConfirmIt(t *testing.T) {
	two, three := redisexec.Replicas{N: 2, Timeout: time.Second}, redisexec.Replicas{N: 3, Timeout: time.Second}
	l, a := wantedLocks(), setOf(t, "a")
	for _, s := range []*settings{
		asks(time.Second, func(s *settings) { s.minHold, s.replicas = time.Minute, two }),
		asks(time.Second, func(s *settings) { s.replicas = three }),
	} {
		l.recordMinHold(openLock{target: a, settings: s}.from(at(0)))
	}
	require.Equal(t, two, l.placeholderReplicas)
}

func TestOpenLocks_CloseKeepsTheMinHoldButAFailedLockDoesNot(t *testing.T) {
	minHold := asks(time.Second, func(s *settings) { s.minHold = time.Minute })
	l, a := wantedLocks(), setOf(t, "a")
	l.open = append(l.open, openLock{target: a, settings: minHold}.from(at(0)))
	l.revoke(a)
	l.recordMinHold(l.open...)
	require.Zero(t, l.placeholderUntil, "its Lock has failed")

	l.open = append(l.open, openLock{target: a, settings: minHold}.from(at(time.Second)))
	l.recordMinHold(l.open...)
	require.Equal(t, at(61*time.Second), l.placeholderUntil)
	require.Equal(t, 2, len(l.open), "they stay open")
}
