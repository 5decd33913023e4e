package locktest

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/inside"
	"github.com/relock-go/relock/internal/redistest"
)

// Main is redistest.Main for tests of locks: RELOCK_WITHOUT_PIPELINING=1 has all clients send each command
// by itself.
func Main(m *testing.M) {
	inside.Pipelining(!redistest.WithoutPipelining())
	redistest.Main(m)
}

// Closed returns a function that passes a client on, which is closed when the test ends.
func Closed[C io.Closer](tb testing.TB) func(c C, err error) C {
	tb.Helper()
	return func(c C, err error) C {
		tb.Helper()
		require.NoError(tb, err)
		tb.Cleanup(func() { _ = c.Close() })
		return c
	}
}
