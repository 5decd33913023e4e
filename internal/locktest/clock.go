package locktest

import (
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/redistest"
)

// TwoClocks is a clock whose wall clock can be set.
type TwoClocks struct {
	mu   sync.Mutex
	wall time.Duration    // how far the wall clock is ahead
	at   map[int64]func() // what a goroutine calls at its next reading
}

// AtNext has the calling goroutine call f when it reads the clock next.
func (c *TwoClocks) AtNext(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = map[int64]func(){goroutine.ID(): f}
}

// Now returns the time of both clocks.
func (c *TwoClocks) Now() clock.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id := goroutine.ID(); c.at[id] != nil {
		f := c.at[id]
		delete(c.at, id)
		c.mu.Unlock()
		f()
		c.mu.Lock()
	}
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

// InBubble is redistest.InBubble for a test that needs a client.
func InBubble(t *testing.T, test func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) { test(t, b.Client(t)) })
}

// InBubbleOf is InBubble with n independent servers.
func InBubbleOf(t *testing.T, n int, test func(t *testing.T, rdbs []redis.UniversalClient)) {
	t.Helper()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) { test(t, ClientsOf(t, b.Nodes(t, n))) })
}

// OnEveryClock runs test on both backends: on miniredis in a bubble, and on a real Redis in real time, next to other
// tests. ttl suits the backend.
func OnEveryClock(t *testing.T, test func(t *testing.T, rdb *redis.Client, ttl time.Duration)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) {
		InBubble(t, func(t *testing.T, rdb *redis.Client) { test(t, rdb, 6*time.Second) })
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		redistest.Timed(t)
		test(t, redistest.Redis(t).Client(t), 2*time.Second)
	})
}
