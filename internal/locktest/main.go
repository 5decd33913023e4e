package locktest

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// Closed returns a function that returns its client, and closes it when the test ends.
func Closed[C io.Closer](tb testing.TB) func(c C, err error) C {
	tb.Helper()
	return func(c C, err error) C {
		tb.Helper()
		require.NoError(tb, err)
		tb.Cleanup(func() { _ = c.Close() })
		return c
	}
}

// Options are opts, after unpipelined with RELOCK_WITHOUT_PIPELINING=1. unpipelined is relock.WithoutPipelining.
func Options[O any](unpipelined O, opts []O) []O {
	if redistest.WithoutPipelining() {
		return append([]O{unpipelined}, opts...)
	}
	return opts
}
