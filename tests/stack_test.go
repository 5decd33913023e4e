// The race detector makes frames larger, and Windows keeps a part of each stack for itself.
//go:build !race && !windows

package tests

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// The stack of a goroutine doubles when it is full, and a program may have thousands of goroutines that lock. The Lock of
// a free name and its Unlock fit into 8 KB. Larger frames would also cost processor time: each call writes them, and each
// garbage collection reads them. The test measures the whole process, so no other test may run beside it.
func TestStack_OfALockIsAtMost8KB(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection would shrink the stacks
	l := locktest.Closed[*relock.Client](t)(relock.New(redistest.Mini(t).Client(t)))
	ctx, end := context.WithTimeout(t.Context(), redistest.SoonEnough)
	defer end()
	for name, together := range map[string]bool{"alone": false, "together": true} { // a command that is alone takes another path
		t.Run(name, func(t *testing.T) {
			const goroutines = 512
			runtime.GC() // frees the stacks of goroutines that have ended
			before := stacks()
			var done, all sync.WaitGroup
			leave := make(chan struct{})
			for range goroutines {
				m := l.Mutex(redistest.Key(t))
				done.Add(1)
				all.Go(func() {
					err := m.Lock(ctx)
					if err == nil {
						err = m.Unlock()
					}
					if err != nil {
						t.Error(err)
					}
					done.Done()
					<-leave
				})
				if !together {
					done.Wait()
				}
			}
			done.Wait()
			each := (stacks() - before) / goroutines
			close(leave)
			all.Wait()
			t.Logf("bytes of each stack: %d", each)
			require.Less(t, each, 9<<10, "a stack has 8 or 16 KB; the rest is for goroutines of the fixtures")
		})
	}
}

// stacks returns the bytes of all stacks.
func stacks() int {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.StackInuse)
}
