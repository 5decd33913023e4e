package redistest

import (
	"os"
	"testing"
)

// WithoutPipelining reports whether the tests are to run with clients that do without the pipeline:
// RELOCK_WITHOUT_PIPELINING=1 says so.
func WithoutPipelining() bool { return os.Getenv("RELOCK_WITHOUT_PIPELINING") == "1" }

// NeedsPipelining skips a test that is about the pipeline where there is none.
func NeedsPipelining(tb testing.TB) {
	tb.Helper()
	if WithoutPipelining() {
		tb.Skip("redistest: it is about the pipeline: left out with RELOCK_WITHOUT_PIPELINING=1")
	}
}
