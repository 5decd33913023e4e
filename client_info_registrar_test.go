package relock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// A Lock may start a second goroutine as soon as the first has found the client not in use. If the first one went on to remove
// the registration, both would use the same map.
func TestRegistrar_GoroutineOfAnIdleClientEndsDespiteClose(t *testing.T) {
	t.Parallel()
	s, _ := alone(t)
	h := wanted(t, s, kind{}, answered, "owner", "key").holds("name:owner")
	exec := redisexec.New(redistest.Mini(t).Client(t), clock.System, time.Minute)
	defer exec.Close(t.Context())
	r := newRegistrar(s, exec)
	calls := 0
	s.now = func() clock.Instant {
		switch calls++; calls {
		case 1: // it registers
			h.unregister()
		case 2: // it has found no hold, and looks whether it is due
			go s.close() // which waits for this goroutine
			<-s.closing
		}
		return clock.System().After(time.Duration(calls) * registrationInterval)
	}
	r.start()
	s.goroutines.Wait(t.Context())
	require.Equal(t, 2, calls, "it sends nothing more")
	require.False(t, r.running, "a Close starts another one for that")
}
