// The race detector makes frames larger, and Windows keeps a part of each stack for itself.
//go:build !race && !windows

package tests

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// A stack that is full is copied into one of twice the size, and a program may have thousands of goroutines that lock. The
// Lock of a free name and its Unlock, through the pipeline, fit into 8 KB. The test measures the whole process, so no other
// test may run beside it.
func TestStack_OfALockIsAtMost8KB(t *testing.T) {
	redistest.NeedsPipelining(t)
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection would shrink the stacks
	l := locktest.Closed[*relock.Client](t)(relock.New(redistest.Mini(t).Client(t)))
	ctx, end := context.WithTimeout(t.Context(), redistest.SoonEnough)
	defer end()
	for _, together := range []bool{true, false} { // a command that is alone takes another path; the first ones meet a NOSCRIPT
		t.Run(fmt.Sprintf("together=%v", together), func(t *testing.T) {
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
			require.Less(t, each, 12<<10, "a stack has 8 or 16 KB; the rest is for goroutines of the fixtures")
		})
	}
}

// stacks returns the bytes of all stacks.
func stacks() int {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.StackInuse)
}
