package relock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// A Lock may start a second goroutine as soon as the first has found the client not in use. If that one went on to say
// that the client has gone, both would use the same map.
func TestRegistrar_GoroutineOfAnIdleClientEndsDespiteClose(t *testing.T) {
	t.Parallel()
	closing := make(chan struct{})
	looks, asked := 0, 0
	var running goroutine.Group
	exec := redisexec.New(redistest.Mini(t).Client(t), clock.System, time.Minute)
	defer exec.Close(t.Context())
	over, cancel := context.WithCancel(context.Background())
	cancel() // nothing is sent
	used := func() []string {
		if looks++; looks == 1 {
			return []string{"name"}
		}
		return nil
	}
	r := newRegistrar(goroutine.Life{
		Now: func() clock.Instant {
			if looks == 2 { // between its look and what it does about that
				if asked++; asked == 1 {
					close(closing)
				}
			}
			return clock.System().After(time.Duration(looks) * registrationInterval)
		},
		Go: running.Go, Ctx: over, Closing: closing,
	}, used, exec)
	r.start()
	running.Wait(t.Context())
	require.True(t, goroutine.Closed(closing))
	require.Equal(t, 1, asked, "it says nothing more")
	require.False(t, r.running, "a Close starts another one for that")
}
