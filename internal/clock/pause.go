package clock

import (
	"context"
	"time"
)

// Backoff returns the pause after the nth failure in a row: 8 to 16 ms at first, doubling
// up to 256 to 512 ms.
func Backoff(n int) time.Duration {
	return Jitter(16 * time.Millisecond << min(n-1, 5))
}

// Jitter returns a random duration between half of d and d.
func Jitter(d time.Duration) time.Duration {
	return d/2 + N(d/2+1)
}

// Pause waits for d or the end of ctx.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
