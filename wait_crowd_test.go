package relock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// waiters are goroutines that wait for one name whose holder is in the same process.
type waiters struct {
	end  context.CancelFunc // ends their contexts, all together
	back sync.WaitGroup
	errs chan error // of those whose Lock did not end as their context did
}

// waitersFor returns n waiters for m, all of them in line.
func waitersFor(tb testing.TB, m *Mutex, n int) *waiters {
	ctx, cancel := context.WithCancel(tb.Context())
	w := &waiters{end: cancel, errs: make(chan error, n)}
	for range n {
		w.back.Go(func() {
			ctx, cancel := context.WithCancel(ctx) // each has its own, as a request of a server has
			defer cancel()
			if err := m.Lock(ctx); !errors.Is(err, context.Canceled) {
				w.errs <- err
			}
		})
	}
	for end := time.Now().Add(2 * time.Minute); waitersOn(m.session, m.target.Keys[0]) < n; time.Sleep(lookEvery) {
		if len(w.errs) > 0 || time.Now().After(end) {
			tb.Fatalf("not all of %d waiters are in line; errors of %d", n, len(w.errs))
		}
	}
	return w
}

// leave ends the contexts, and returns how long it took until all were back, and how many bytes
// were allocated meanwhile.
func (w *waiters) leave() (time.Duration, uint64) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	w.end()
	w.back.Wait()
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	return took, after.TotalAlloc - before.TotalAlloc
}

// A waiter that gives up looks at what concerns itself, however many others there are. Time says too
// little about that on a busy machine, so what is bounded is what it allocates: a look at each of the
// others showed there.
func TestWhatAWaiterThatGivesUpCostsDoesNotDependOnHowManyThereAre(t *testing.T) {
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		m := locksOn(t, backend.Client(t)).Mutex(redistest.Key(t))
		requireLocked(t, m)
		cost := func(n int) float64 {
			w := waitersFor(t, m, n)
			_, bytes := w.leave()
			require.Empty(t, w.errs)
			return float64(bytes) / float64(n)
		}
		few, many := cost(200), cost(4000)
		require.Less(t, many, 2*few, "bytes for each of 4000, and of 200")
		requireUnlocked(t, m)
	})
}

// BenchmarkWaitersThatGiveUpTogether is the time from the end of the contexts of so many waiters
// until all of them are back.
func BenchmarkWaitersThatGiveUpTogether(b *testing.B) {
	for _, n := range []int{1000, 4000, 8000, 20_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			benchmarkOn(b, redistest.Mini(b).Client(b), func(b *testing.B, c *Client) {
				m := c.Mutex(redistest.Key(b))
				if err := m.Lock(b.Context()); err != nil {
					b.Fatal(err)
				}
				var took time.Duration
				var bytes uint64
				for range b.N {
					d, n := waitersFor(b, m, n).leave()
					took, bytes = took+d, bytes+n
				}
				b.ReportMetric(0, "ns/op") // it is mostly the coming
				b.ReportMetric(float64(took.Milliseconds())/float64(b.N), "ms/leaving")
				b.ReportMetric(float64(bytes)/float64(b.N*n), "B/waiter")
				if err := m.Unlock(); err != nil {
					b.Error(err)
				}
			})
		})
	}
}
