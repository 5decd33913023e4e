package redistest

import (
	"os"
	"strings"
	"sync"
	"testing"
)

// There are three sets of tests, each within the next:
//
//	go test -short ./...                    about 10 seconds, on miniredis alone: no faults
//	go test ./...                           passes on any machine, however busy: in virtual time on miniredis (Each,
//	                                        InBubble), and on a real Redis where the outcome does not depend on speed
//	RELOCK_REQUIRE_REDIS=1 go test ./...    all: real servers, relays to them, leases and faults in real time (Timed)

// Slow leaves a test out with -short. Its half on a real server is [Timed].
func Slow(tb testing.TB) {
	tb.Helper()
	InTime(tb)
	if testing.Short() {
		tb.Skip("redistest: it takes long, or is about faults: left out with -short")
	}
}

// Timed leaves a test out unless RELOCK_REQUIRE_REDIS=1. The test runs in real time, and passes only on a machine that has
// time for it. Beside these tests the gate runs only calculations, with the lowest priority.
func Timed(tb testing.TB) {
	tb.Helper()
	Slow(tb)
	if os.Getenv("RELOCK_REQUIRE_REDIS") != "1" {
		tb.Skip("redistest: it needs a machine that has time for it: left out without RELOCK_REQUIRE_REDIS=1")
	}
}

// InTime makes the half of a test on a real server [Timed], because the test is about leases or pauses.
func InTime(tb testing.TB) { inTime.Store(tb.Name(), true) }

// inTime has the names of the tests that called InTime.
var inTime sync.Map

// isInTime reports whether the test, or one that it is a part of, called InTime.
func isInTime(tb testing.TB) bool {
	for name := tb.Name(); ; {
		if _, is := inTime.Load(name); is {
			return true
		}
		end := strings.LastIndexByte(name, '/')
		if end < 0 {
			return false
		}
		name = name[:end]
	}
}
