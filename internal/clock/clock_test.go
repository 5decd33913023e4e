package clock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A clock that is set forward costs a false loss, never a hold that outlives its lease.
func TestClock_LaterOfTwoCounts(t *testing.T) {
	for name, c := range map[string]struct {
		mono, wall            time.Duration // since the start
		since, until2h, moved time.Duration
	}{
		"both agree":             {time.Hour, time.Hour, time.Hour, time.Hour, 0},
		"the machine was asleep": {time.Minute, time.Hour, time.Hour, time.Hour, 59 * time.Minute},
		"the wall was set back":  {time.Hour, -time.Hour, time.Hour, time.Hour, 2 * time.Hour},
		"the wall was set on":    {time.Hour, 3 * time.Hour, 3 * time.Hour, -time.Hour, 2 * time.Hour},
	} {
		start := Instant{Mono: time.Second, Wall: time.Minute}
		now := Instant{Mono: start.Mono + c.mono, Wall: start.Wall + c.wall}
		require.Equal(t, c.since, now.Since(start), name)
		require.Equal(t, c.until2h, now.Until(start.After(2*time.Hour)), name)
		require.Equal(t, c.moved, now.drift(start), name)
		require.Equal(t, c.moved, start.drift(now), name)
	}
}

func TestClock_LatestIsPerClock(t *testing.T) {
	a, b := Instant{Mono: 1, Wall: 4}, Instant{Mono: 2, Wall: 3}
	require.Equal(t, Instant{Mono: 2, Wall: 4}, Latest(a, b))
	require.Equal(t, Instant{Mono: 2, Wall: 4}, Latest(b, a))
}

// The margin is a hundredth, and 5 ms at least.
func TestClock_DeadlineIsEarlierThanTheLeaseOnRedis(t *testing.T) {
	var sent Instant
	require.Equal(t, sent.After(9900*time.Millisecond), Deadline(sent, 10*time.Second))
	require.Equal(t, sent.After(95*time.Millisecond), Deadline(sent, 100*time.Millisecond))
}

func TestBackoff_DoublesFrom16To512Milliseconds(t *testing.T) {
	for n, most := range map[int]time.Duration{1: 16, 2: 32, 3: 64, 4: 128, 5: 256, 6: 512, 7: 512, 1000: 512} {
		most *= time.Millisecond
		shortest, longest := time.Hour, time.Duration(0)
		for range 2000 {
			d := Backoff(n)
			shortest, longest = min(shortest, d), max(longest, d)
		}
		require.GreaterOrEqual(t, shortest, most/2, n)
		require.LessOrEqual(t, longest, most, n)
		require.Less(t, shortest, most*6/10, "it is random")
		require.Greater(t, longest, most*9/10, "it is random")
	}
}

func TestPause_EndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		Pause(t.Context(), time.Second)
		require.Equal(t, time.Second, time.Since(began))
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		Pause(ctx, time.Hour)
		require.Equal(t, time.Minute+time.Second, time.Since(began))
	})
}
