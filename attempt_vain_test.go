package relock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// A vainTrial has a waiter ask at times of its own making.
type vainTrial struct {
	wakes  wakes
	now    clock.Instant
	holder string
}

// A leftAt says what a hold has left at a time.
type leftAt func(now time.Duration) time.Duration

func until(end time.Duration) leftAt {
	return func(now time.Duration) time.Duration { return end - now }
}

func always(ttl time.Duration) leftAt { return func(time.Duration) time.Duration { return ttl } }

// asks has the waiter ask, woken by a message, as soon as it may. Redis answers after a round trip,
// half of which passes before it looks.
func (v *vainTrial) asks(holder string, left leftAt) (waited time.Duration) {
	const way = 100 * time.Microsecond
	if v.wakes.woken() {
		waited = max(0, v.now.Until(v.wakes.due()))
	}
	sent := v.now.After(waited)
	g := protocol.Grant{Holder: holder, TTL: left(sent.Mono + way).Truncate(time.Millisecond)}
	v.now = sent.After(2 * way)
	v.wakes.answered(g, redisexec.Outcome{Sent: sent}, holder != v.holder, v.now)
	v.holder = holder
	return waited
}

const longestGap = leastGap << mostGaps

func TestWakeUpsInVainWaitLongerAndLongerForTheLastRequest(t *testing.T) {
	t.Parallel()
	for name, left := range map[string]leftAt{"with a lease": until(time.Hour), "without": always(-time.Millisecond)} {
		t.Run(name, func(t *testing.T) {
			var v vainTrial
			requests := 0
			for ; v.now.Mono < 2*time.Second; requests++ { // messages come all the time
				require.LessOrEqual(t, v.asks("other", left), longestGap)
			}
			require.Less(t, requests, 100)
			v.now = v.now.After(longestGap)
			require.Zero(t, v.asks("other", left), "one that comes alone")
		})
	}
}

func TestAWakeUpWaitsNoLongerThanTheHoldLasts(t *testing.T) {
	t.Parallel()
	for range 100 { // the gaps are random
		var v vainTrial
		for v.now.Mono < time.Second {
			v.asks("other", until(time.Second))
		}
		require.Less(t, v.now.Mono, time.Second+5*time.Millisecond)
	}
}

func TestWakeUpsOfALockInUseAreNotInVain(t *testing.T) {
	t.Parallel()
	for name, holder := range map[string]func(ask int) string{
		"by many owners":          func(ask int) string { return string(rune('a' + ask%7)) },
		"by one, again and again": func(int) string { return "other" },
	} {
		t.Run(name, func(t *testing.T) {
			var v vainTrial
			for ask := range 1000 {
				require.Zero(t, v.asks(holder(ask), always(30*time.Second)), "request %d", ask)
			}
		})
	}
}

func TestWakeUpsAreHeededAtOnceWhenTheHoldIsAnotherOne(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]string{"of another owner": "next", "of the same": "other"} {
		t.Run(name, func(t *testing.T) {
			var v vainTrial
			for range 100 {
				v.asks("other", until(time.Hour))
			}
			require.Positive(t, v.wakes.n)
			v.asks(next, until(2*time.Hour))
			require.Zero(t, v.wakes.n)
			require.Zero(t, v.asks(next, until(2*time.Hour)))
		})
	}
}
