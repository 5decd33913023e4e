package tests

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// BenchmarkWakeUp is how long a waiter of another process sleeps on after the Unlock has
// begun: the median.
func BenchmarkWakeUp(b *testing.B) {
	for name, mutex := range map[string]func(*relock.Client, string) *relock.Mutex{
		"plain": func(c *relock.Client, key string) *relock.Mutex { return c.Mutex(key) },
		"fair":  func(c *relock.Client, key string) *relock.Mutex { return c.FairMutex(key) },
	} {
		b.Run(name, func(b *testing.B) {
			backend := redistest.Redis(b)
			key := redistest.Key(b)
			var clients [2]*relock.Client
			for i := range clients {
				c, err := relock.New(backend.Client(b))
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = c.Close() })
				clients[i] = c
			}
			holder, waiter := mutex(clients[0], key), mutex(clients[1], key)
			woken, turn := make(chan time.Time), make(chan struct{})
			go func() {
				for range turn {
					if err := waiter.Lock(context.Background()); err != nil {
						b.Error(err)
					}
					now := time.Now()
					if err := waiter.Unlock(); err != nil {
						b.Error(err)
					}
					woken <- now
				}
			}()
			defer close(turn)
			var all []time.Duration
			for b.Loop() {
				if err := holder.Lock(context.Background()); err != nil {
					b.Fatal(err)
				}
				turn <- struct{}{}
				time.Sleep(3 * time.Millisecond) // it sleeps by then
				began := time.Now()
				if err := holder.Unlock(); err != nil {
					b.Fatal(err)
				}
				all = append(all, (<-woken).Sub(began))
			}
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "µs/wake-up")
			b.ReportMetric(float64(all[len(all)-1].Microseconds()), "µs/longest")
		})
	}
}

// BenchmarkFairContended is one fair lock that many goroutines of several processes want.
func BenchmarkFairContended(b *testing.B) {
	for _, processes := range []int{1, 4} {
		b.Run(fmt.Sprint(processes), func(b *testing.B) {
			backend, key := redistest.Redis(b), redistest.Key(b)
			next := make(chan *relock.Client, processes)
			for range processes {
				c, err := relock.New(backend.Client(b))
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = c.Close() })
				next <- c
			}
			b.ReportAllocs()
			b.SetParallelism(16)
			b.RunParallel(func(pb *testing.PB) {
				c := <-next
				next <- c
				m := c.FairMutex(key)
				for pb.Next() {
					lockAndUnlock(b, m)
				}
			})
		})
	}
}
