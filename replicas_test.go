package relock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// A server without replicas confirms nothing.
func TestReplicas_RefusedLockKeepsNoName(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	c := relock.LocksOn(t, redistest.Redis(t).Client(t))
	m := c.Mutex(redistest.Key(t), relock.WithReplicas(1, 100*time.Millisecond))
	require.ErrorIs(t, m.Lock(t.Context()), relock.ErrNotReplicated)
	redistest.Eventually(t, "nothing kept", func() bool { return relock.Idle(c) })
}
