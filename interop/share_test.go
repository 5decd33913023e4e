package interop

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

const (
	shareTime = 3 * time.Second
	shareHold = time.Millisecond
)

// Redisson has no place in the line of this library: it waits for the lock to be free. Its threads have
// turns by the clock, whether others stand in the line or one process goes on alone. What they get is
// to be half of what one place in the line gets; the bound is looser, for a machine that is busy.
func TestShare_JavaThreadsGetTheirsBesideBusyProcesses(t *testing.T) {
	for _, tc := range []struct {
		processes, goroutines, threads int
	}{
		{4, 1, 1},
		{4, 1, 4},
		{1, 8, 1},
		{1, 8, 4},
	} {
		t.Run(fmt.Sprintf("%d processes with %d goroutines, %d threads", tc.processes, tc.goroutines, tc.threads), func(t *testing.T) {
			d := single(t)
			java, name := d.redisson(t), redistest.Key(t)
			clients := make([]*relock.Client, tc.processes)
			for i := range clients {
				clients[i] = d.locks(t)
			}
			thread, lock := java.thread(), java.lock("plain", name)
			thread.locks(t, lock) // its first use of a lock takes long
			thread.unlocks(t, lock)

			contending := thread.begin("contend", lock, func(c *command) {
				c.Threads, c.Duration, c.Hold = tc.threads, shareTime.Milliseconds(), shareHold.Milliseconds()
			})
			inGo := holdByTurns(t, clients, name, tc.goroutines)
			inJava := valueOf[report](t, java.peer.receive(t, contending, shareTime+soonEnough))
			require.Empty(t, inJava.Errors)
			inJava.log(t, "Java")
			t.Logf("Go: %v holds of each process", inGo)

			all := 0
			for _, n := range inGo {
				all += n
			}
			place := all / len(inGo) / tc.goroutines
			t.Logf("Java: %.2f of what one waiter of Go gets", float64(inJava.total())/float64(place))
			require.Positive(t, slices.Min(inGo), "a process starved")
			require.Greater(t, inJava.total(), place/8, "Java threads have less than their share")
			d.requireFree(t, name)
		})
	}
}

// holdByTurns has goroutines of each client lock name again and again, and returns how often those of each
// had it.
func holdByTurns(t *testing.T, clients []*relock.Client, name string, goroutines int) []int {
	t.Helper()
	end := time.Now().Add(shareTime)
	var (
		all    sync.WaitGroup
		mu     sync.Mutex
		holds  = make([]int, len(clients))
		failed error
	)
	hold := func(m *relock.Mutex) error {
		if err := m.Lock(t.Context()); err != nil {
			return err
		}
		time.Sleep(shareHold)
		return m.Unlock()
	}
	for i, c := range clients {
		for range goroutines {
			all.Go(func() {
				for m := c.Mutex(name); time.Now().Before(end); {
					err := hold(m)
					mu.Lock()
					if err == nil {
						holds[i]++
					} else if failed == nil {
						failed = err
					}
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	require.NoError(t, failed)
	return holds
}
