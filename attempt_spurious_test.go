package relock

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// A spuriousTrial has a waiter ask at times of its own making.
type spuriousTrial struct {
	wakes  wakes
	now    clock.Instant
	holder string

	split   bool  // the answer is a split vote
	failure error // instead of an answer
}

// A leftAt says what a hold has left at a time.
type leftAt func(now time.Duration) time.Duration

func until(end time.Duration) leftAt {
	return func(now time.Duration) time.Duration { return end - now }
}

func always(ttl time.Duration) leftAt { return func(time.Duration) time.Duration { return ttl } }

// asks has the waiter ask, woken by a message, as soon as it may. Redis answers after a round trip.
// Half of that passes before it looks.
func (v *spuriousTrial) asks(holder string, left leftAt) (waited time.Duration) {
	const way = 100 * time.Microsecond
	waited = max(0, v.now.Until(v.wakes.wake()))
	sent := v.now.After(waited)
	g := protocol.Grant{Holder: holder, TTL: left(sent.Mono + way).Truncate(time.Millisecond), Split: v.split}
	v.now = sent.After(2 * way)
	v.wakes.answered(g, redisexec.Outcome{Sent: sent, Err: v.failure}, holder != v.holder, v.now)
	v.holder = holder
	return waited
}

func TestSpurious_WakeUpsCauseTwentyRequestsPerSecond(t *testing.T) {
	t.Parallel()
	for name, left := range map[string]leftAt{"with a lease": until(time.Hour), "without": always(-time.Millisecond)} {
		t.Run(name, func(t *testing.T) {
			var v spuriousTrial
			requests := 0
			for ; v.now.Mono < 2*time.Second; requests++ { // messages come all the time
				require.LessOrEqual(t, v.asks("other", left), spuriousGap)
			}
			require.Less(t, requests, 60) // some of them while the hold is young
			v.now = v.now.After(spuriousGap)
			require.Zero(t, v.asks("other", left), "one that comes alone")
		})
	}
}

func TestSpurious_WakeUpWaitsNoLongerThanTheHoldLasts(t *testing.T) {
	t.Parallel()
	for end := time.Second; end < time.Second+2*spuriousGap; end += time.Millisecond {
		var v spuriousTrial
		for v.now.Mono < end {
			v.asks("other", until(end))
		}
		require.Less(t, v.now.Mono, end+5*time.Millisecond)
	}
}

func TestSpurious_WakeUpsOfALockInUseAreNot(t *testing.T) {
	t.Parallel()
	for name, holder := range map[string]func(ask int) string{
		"by many owners":          func(ask int) string { return string(rune('a' + ask%7)) },
		"by one, again and again": func(int) string { return "other" },
	} {
		t.Run(name, func(t *testing.T) {
			var v spuriousTrial
			for ask := range 1000 {
				require.Zero(t, v.asks(holder(ask), always(30*time.Second)), "request %d", ask)
			}
		})
	}
}

func TestSpurious_WakeUpsOfTheNextHoldAreNot(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]struct {
		holder string
		ends   time.Duration
	}{
		"of another owner":                       {"next", 2 * time.Hour},
		"of another owner, with a shorter lease": {"next", time.Minute},
		"of the same owner":                      {"other", 2 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			var v spuriousTrial
			for range 100 {
				v.asks("other", until(time.Hour))
			}
			require.True(t, v.wakes.spurious)
			v.asks(next.holder, until(next.ends))
			require.False(t, v.wakes.spurious)
			require.Zero(t, v.asks(next.holder, until(next.ends)))
		})
	}
}

// A split vote does not say that anyone has the lock.
func TestSpurious_WakeUpsBetweenSplitVotesAreNot(t *testing.T) {
	t.Parallel()
	var v spuriousTrial
	for range 100 {
		v.split = true
		require.Zero(t, v.asks("", always(-time.Millisecond)))
	}
}

// A Redis that does not answer is not to be asked at each message.
func TestSpurious_WakeUpsOfRequestsThatFailAre(t *testing.T) {
	t.Parallel()
	var v spuriousTrial
	v.failure = errors.New("no answer")
	v.asks("", always(0))
	for range 100 {
		require.Greater(t, v.asks("", always(0)), spuriousGap-time.Millisecond)
	}
}
