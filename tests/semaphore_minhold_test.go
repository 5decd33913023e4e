package tests

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// At most so many begin in each min hold, however short each of them is.
func TestSemaphore_MinHoldLimitsTheRate(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		const limit, period = 3, time.Minute
		rdb := b.Client(t)
		var mu sync.Mutex
		var starts []time.Time
		var all sync.WaitGroup
		for range 2 {
			s := locksOn(t, b.Client(t)).Semaphore("s", limit, relock.WithMinHold(period))
			for range 3 {
				all.Go(func() {
					for range 3 {
						if err := s.Do(context.Background(), func(context.Context) error {
							mu.Lock()
							defer mu.Unlock()
							starts = append(starts, time.Now())
							return nil
						}); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		all.Wait()
		require.Len(t, starts, 18)
		for i := range len(starts) - limit {
			require.GreaterOrEqual(t, starts[i+limit].Sub(starts[i]), period-time.Millisecond)
		}
		require.Less(t, starts[17].Sub(starts[0]), 5*period+100*time.Millisecond, "none is wasted")
		require.NotEmpty(t, rdb.ZRange(t.Context(), "s", 0, -1).Val())
		time.Sleep(period)
		requireNoKeys(t, rdb, "s")
	})
}

// A release with a min hold frees no share, and its end is no script: without a word, the waiters of other processes would
// find it free at their next poll only.
func TestSemaphore_MinHoldDelaysNoWaiterBeyondItsEnd(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		const limit, reserved = 4, 20 * time.Millisecond
		rdb := b.Client(t)
		one, other := locksOn(t, rdb).Semaphore("s", limit, relock.WithMinHold(reserved)), locksOn(t, b.Client(t)).Semaphore("s", limit)
		for _, weight := range []int{1, 3} {
			began := time.Now()
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() { useUp(t, one, limit) })
			}
			for i := range 12 {
				all.Go(func() { useUp(t, other, 1+i%weight) })
			}
			all.Wait()
			require.Less(t, time.Since(began), 5*reserved)
			time.Sleep(time.Second)
		}
	})
}

// The permit's own lease must not keep its key, when the reservation that replaced it is over.
func TestSemaphore_KeyGoesWithTheMinHold(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		rdb := b.Client(t)
		s := locksOn(t, rdb).Semaphore("s", 4, relock.WithMinHold(20*time.Millisecond))
		useUp(t, s, 3)
		require.LessOrEqual(t, rdb.PTTL(t.Context(), "s").Val(), 20*time.Millisecond)
	})
}

// useUp acquires a permit and releases it.
func useUp(t *testing.T, s *relock.Semaphore, n int) {
	p, err := s.AcquireN(context.Background(), n)
	if err != nil {
		t.Error(err)
		return
	}
	if err := p.Release(); err != nil {
		t.Error(err)
	}
}
