package tests

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/redistest"
)

// BenchmarkReadersInParallel is one name that many goroutines read: compare it with
// BenchmarkUncontendedNamesInParallel, where each has a lock of its own.
func BenchmarkReadersInParallel(b *testing.B) {
	benchmarkEach(b, func(b *testing.B, c *relock.Client) { benchmarkReadWrite(b, c, 0) })
}

func BenchmarkReadMostly(b *testing.B) {
	benchmarkEach(b, func(b *testing.B, c *relock.Client) { benchmarkReadWrite(b, c, 5) })
}

func BenchmarkWriteMostly(b *testing.B) {
	benchmarkEach(b, func(b *testing.B, c *relock.Client) { benchmarkReadWrite(b, c, 80) })
}

// BenchmarkWriterAmongReaders is how long a writer takes in a stream of readers, of two
// clients, that never ends by itself: 32 at a time, for a millisecond each.
func BenchmarkWriterAmongReaders(b *testing.B) {
	rdb := redistest.Redis(b).Client(b)
	other, err := relock.New(rdb)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = other.Close() })
	benchmarkOn(b, rdb, func(b *testing.B, c *relock.Client) {
		key := redistest.Key(b)
		ctx, stop := context.WithCancel(b.Context())
		var readers sync.WaitGroup
		for i := range 32 {
			m := []*relock.RWMutex{c.RWMutex(key), other.RWMutex(key)}[i%2]
			readers.Go(func() {
				for ctx.Err() == nil {
					err := m.RDo(context.WithoutCancel(ctx), func(ctx context.Context) error {
						clock.Pause(ctx, time.Millisecond)
						return nil
					})
					if err != nil {
						b.Error(err)
					}
				}
			})
		}
		m := c.RWMutex(key)
		var longest time.Duration
		for b.Loop() {
			began := time.Now()
			if err := m.Do(context.Background(), func(context.Context) error { return nil }); err != nil {
				b.Fatal(err)
			}
			longest = max(longest, time.Since(began))
		}
		b.ReportMetric(float64(longest.Nanoseconds()), "longest-ns")
		stop()
		readers.Wait()
	})
}

// benchmarkReadWrite has goroutines write in so many of a hundred turns, and read in the others.
func benchmarkReadWrite(b *testing.B, c *relock.Client, writes int64) {
	m := c.RWMutex(redistest.Key(b))
	var turns atomic.Int64
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			do := m.RDo
			if turns.Add(1)*37%100 < writes {
				do = m.Do
			}
			if err := do(context.Background(), func(context.Context) error { return nil }); err != nil {
				b.Error(err)
			}
		}
	})
}
