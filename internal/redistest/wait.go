package redistest

import (
	"testing"
	"time"
)

const (
	// SoonEnough is for what must happen, on a machine that has much else to do.
	SoonEnough = 15 * time.Second
	// LookEvery is the pause between two looks at what must happen.
	LookEvery = 2 * time.Millisecond
)

// Receive returns what comes from ch, which has to come soon enough.
func Receive[T any](tb testing.TB, ch <-chan T) (v T) {
	tb.Helper()
	select {
	case v = <-ch:
	case <-time.After(SoonEnough):
		tb.Fatal("nothing came in time")
	}
	return v
}

// Eventually waits for cond, which it calls on the calling goroutine: that matters where
// the owner is asked.
func Eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	for end := time.Now().Add(SoonEnough); !cond(); time.Sleep(LookEvery) {
		if time.Now().After(end) {
			tb.Fatalf("still not: %s", what)
		}
	}
}
