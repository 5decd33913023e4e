package locktest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// How long tests wait, and how often they check.
const (
	SoonEnough = redistest.SoonEnough
	LookEvery  = redistest.LookEvery
	AWhile     = 100 * time.Millisecond // for what must not happen
)

// UndoGrace is for how long a Lock that fails waits for its undo.
const UndoGrace = 50 * time.Millisecond

// Throughout requires that cond returns true at every check, for as long as d.
func Throughout(t *testing.T, d time.Duration, cond func() bool, what string) {
	t.Helper()
	ticker := time.NewTicker(max(d/50, LookEvery))
	defer ticker.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-ticker.C {
		require.True(t, cond(), what)
	}
}

// Took returns how long f takes.
func Took(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}
