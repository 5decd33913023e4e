package redistest

import (
	"testing"
	"time"
)

const (
	// SoonEnough bounds the wait for what must happen, even on a busy machine.
	SoonEnough = 15 * time.Second
	// LookEvery is the pause between two checks.
	LookEvery = 2 * time.Millisecond
	// lookAtLeastEvery is the pause when a wait takes long. In a bubble a wait takes no time, but each check does.
	lookAtLeastEvery = 20 * time.Millisecond
)

// Receive returns the next value of ch, which has to arrive within SoonEnough.
func Receive[T any](tb testing.TB, ch <-chan T) (v T) {
	tb.Helper()
	select {
	case v = <-ch:
	case <-time.After(SoonEnough):
		tb.Fatal("nothing came in time")
	}
	return v
}

// Eventually waits until cond returns true. It calls cond on the calling goroutine, which matters if cond depends on the
// owner.
func Eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	for began := time.Now(); !cond(); {
		waited := time.Since(began)
		if waited > SoonEnough {
			tb.Fatalf("still not: %s", what)
		}
		time.Sleep(min(max(waited/8, LookEvery), lookAtLeastEvery))
	}
}
