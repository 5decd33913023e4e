package clock

import "time"

const (
	checkInterval = 250 * time.Millisecond
	tolerance     = 5 * time.Millisecond
)

// Watch calls moved whenever the wall clock and the monotonic one have moved apart since last, as after a suspension of
// the machine. It returns when closing is closed.
func Watch(closing <-chan struct{}, now Clock, last Instant, moved func()) {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		select {
		case <-closing:
			return
		case <-ticker.C:
		}
		if at := now(); at.drift(last) >= tolerance {
			last = at
			moved()
		}
	}
}
