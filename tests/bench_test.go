package tests

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redistest"
)

// benchmarkEach runs a benchmark on both backends.
func benchmarkEach(b *testing.B, bench func(b *testing.B, c *relock.Client)) {
	b.Run("miniredis", func(b *testing.B) { benchmarkOn(b, redistest.Mini(b).Client(b), bench) })
	b.Run("redis", func(b *testing.B) { benchmarkOn(b, redistest.Redis(b).Client(b), bench) })
}

func benchmarkOn(b *testing.B, rdb *redis.Client, bench func(b *testing.B, c *relock.Client)) {
	c, err := relock.New(rdb)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	b.ReportAllocs()
	bench(b, c)
}

func lockAndUnlock(b *testing.B, m *relock.Mutex) {
	b.Helper()
	if err := m.Lock(context.Background()); err != nil {
		b.Error(err)
		return
	}
	if err := m.Unlock(); err != nil {
		b.Error(err)
	}
}

func BenchmarkUncontended(b *testing.B) {
	benchmarkEach(b, func(b *testing.B, c *relock.Client) {
		m := c.Mutex(redistest.Key(b))
		for b.Loop() {
			lockAndUnlock(b, m)
		}
	})
}

func BenchmarkUncontendedNamesInParallel(b *testing.B) {
	benchmarkEach(b, func(b *testing.B, c *relock.Client) {
		key := redistest.Key(b)
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			m := c.Mutex(fmt.Sprintf("%s-%p", key, pb))
			for pb.Next() {
				lockAndUnlock(b, m)
			}
		})
	})
}

func BenchmarkNested(b *testing.B) {
	benchmarkEach(b, func(b *testing.B, c *relock.Client) {
		m := c.Mutex(redistest.Key(b))
		if err := m.Lock(context.Background()); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			lockAndUnlock(b, m)
		}
		if err := m.Unlock(); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkContended is one lock that many goroutines of one process want: mostly
// hand-overs.
func BenchmarkContended(b *testing.B) {
	benchmarkEach(b, func(b *testing.B, c *relock.Client) {
		m := c.Mutex(redistest.Key(b))
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				lockAndUnlock(b, m)
			}
		})
	})
}

func BenchmarkOwnerLookup(b *testing.B) {
	benchmarkOn(b, redistest.Mini(b).Client(b), func(b *testing.B, c *relock.Client) {
		m := c.Mutex(redistest.Key(b))
		if err := m.Lock(context.Background()); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if m.HoldCount() != 1 {
				b.Fatal("not held")
			}
		}
		if err := m.Unlock(); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkQueueHandOver(b *testing.B) {
	for _, waiters := range []int{1, 1000} {
		b.Run(fmt.Sprint(waiters), func(b *testing.B) {
			var q queue.Queue[int]
			alarm := new(queue.Alarm)
			turn := q.Ticket(0, alarm)
			turn.Join()
			for i := range waiters {
				q.Ticket(i+1, alarm).Join()
			}
			b.ReportAllocs()
			for b.Loop() {
				next := turn.Reserve(func(int) bool { return true })
				turn.Grant(next)
				turn = next
				q.Ticket(0, alarm).Join()
			}
		})
	}
}
