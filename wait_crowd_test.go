package relock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// waiters are goroutines that wait for one name whose holder is in the same process.
type waiters struct {
	end  context.CancelFunc // ends their contexts, all together
	back sync.WaitGroup
	errs chan error // of those whose Lock did not end as their context did
}

// waitersFor returns n waiters for m, all of them in line.
func waitersFor(tb testing.TB, m *relock.Mutex, n int) *waiters {
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
	for end := time.Now().Add(2 * time.Minute); relock.WaitersOn(m, m.Keys().Keys[0]) < n; time.Sleep(locktest.LookEvery) {
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
func TestCrowd_CostOfAWaiterThatGivesUpIsConstant(t *testing.T) {
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		m := relock.LocksOn(t, backend.Client(t)).Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		cost := func(n int) float64 {
			w := waitersFor(t, m, n)
			_, bytes := w.leave()
			require.Empty(t, w.errs)
			return float64(bytes) / float64(n)
		}
		few, many := cost(200), cost(4000)
		require.Less(t, many, 2*few, "bytes for each of 4000, and of 200")
		locktest.RequireUnlocked(t, m)
	})
}

// BenchmarkWaitersThatGiveUpTogether is the time from the end of the contexts of so many waiters
// until all of them are back.
func BenchmarkWaitersThatGiveUpTogether(b *testing.B) {
	for _, n := range []int{1000, 4000, 8000, 20_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m := relock.LocksOn(b, redistest.Mini(b).Client(b)).Mutex(redistest.Key(b))
			if err := m.Lock(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
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
	}
}

// mostAsked bounds the requests in d: those while the hold is young, and then one in each gap.
func mostAsked(d time.Duration) int {
	const gap = 50 * time.Millisecond
	return 10 + int(d/gap)
}

// A read-write lock has two messages, which are the same to a waiter.
func TestSpurious_MessagesCauseTwentyRequestsPerSecond(t *testing.T) {
	redistest.InTime(t)
	t.Parallel()
	eachKind(t, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		b := newKindBench(t, backend, k)
		b.relay()
		holder, m := k.rival(b.others, b.key), b.mutex()
		b.me.Locks(t, holder)
		waiting := b.you.Lock(t.Context(), m)
		relock.AwaitWaiters(t, b.c, b.key, 1)
		asks := redistest.Scripts.And(redistest.With(b.key))
		redistest.Eventually(t, "it listens, and is woken", func() bool {
			for _, rdb := range b.rdbs {
				require.NoError(t, rdb.Publish(t.Context(), m.Keys().Channels[0], "0").Err())
			}
			return locktest.Answered(b.relays[0], asks) > 3
		})
		before, began := locktest.Answered(b.relays[0], asks), time.Now()
		stop := floods(b, m.Keys().Channels[0])
		locktest.Throughout(t, 500*time.Millisecond, func() bool { return true }, "")
		asked, took := locktest.Answered(b.relays[0], asks)-before, time.Since(began)
		t.Logf("%d requests in %v", asked, took)
		require.Less(t, asked, mostAsked(took))

		b.me.Unlocks(t, holder)
		freed := time.Now()
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		require.Less(t, time.Since(freed), 2*time.Second, "a message with a meaning is heeded, too")
		stop()
		b.you.Unlocks(t, m)
		b.free()
	})
}

// floods publishes on channel, on every server, until stop is called.
func floods(b *kindBench, channel string) (stop func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	var flooding sync.WaitGroup
	for _, rdb := range b.rdbs {
		flooding.Go(func() {
			for ctx.Err() == nil {
				_ = rdb.Publish(ctx, channel, "0").Err()
				time.Sleep(500 * time.Microsecond)
			}
		})
	}
	return func() {
		cancel()
		flooding.Wait()
	}
}
