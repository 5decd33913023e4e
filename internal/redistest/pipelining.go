package redistest

import (
	"os"
	"testing"
)

// WithoutPipelining reports whether the clients of tests do not use the pipeline, by RELOCK_WITHOUT_PIPELINING=1.
func WithoutPipelining() bool { return os.Getenv("RELOCK_WITHOUT_PIPELINING") == "1" }

// NeedsPipelining skips a test of the pipeline if there is none.
func NeedsPipelining(tb testing.TB) {
	tb.Helper()
	if WithoutPipelining() {
		tb.Skip("redistest: it is about the pipeline: left out with RELOCK_WITHOUT_PIPELINING=1")
	}
}
