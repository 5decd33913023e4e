package locktest

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/redistest"
)

// TwoClocks is a clock whose wall clock can be set.
type TwoClocks struct {
	mu   sync.Mutex
	wall time.Duration // what the wall clock is ahead
}

// Now is what both clocks show.
func (c *TwoClocks) Now() clock.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := clock.System()
	now.Wall += c.wall
	return now
}

// Set moves the wall clock by d.
func (c *TwoClocks) Set(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += d
}

// InBubble runs test in a synctest bubble, in which time passes at once when nothing else
// is to be done, with a miniredis that lives in memory alone.
func InBubble(t *testing.T, test func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	InBubbleOf(t, 1, func(t *testing.T, rdbs []redis.UniversalClient) { test(t, rdbs[0].(*redis.Client)) })
}

// InBubbleOf is InBubble with n independent servers.
func InBubbleOf(t *testing.T, n int, test func(t *testing.T, rdbs []redis.UniversalClient)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var rdbs []redis.UniversalClient
		for range n {
			m := miniredis.NewMiniRedis()
			m.ClockTTL(true)
			rdb := redis.NewClient(redistest.MiniDialer(m))
			t.Cleanup(func() {
				_ = rdb.Close()
				m.Close()
			})
			rdbs = append(rdbs, rdb)
		}
		test(t, rdbs)
	})
}

// OnEveryClock runs test on both backends: on miniredis in a bubble, on real Redis with
// real time, next to other tests. ttl is one that suits.
func OnEveryClock(t *testing.T, test func(t *testing.T, rdb *redis.Client, ttl time.Duration)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) {
		InBubble(t, func(t *testing.T, rdb *redis.Client) { test(t, rdb, 6*time.Second) })
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		redistest.Slow(t)
		test(t, redistest.Redis(t).Client(t), 2*time.Second)
	})
}
