// Package tests has those tests of relock that need no more than its API: what holds for all kinds of locks, and
// what becomes of them under faults. For what the API does not say they look through package inside.
package tests

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/inside"
	"github.com/relock-go/relock/internal/locktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }

// What a client does if no option says otherwise, and for how long it tries.
const (
	defaultTTL        = 30 * time.Second
	defaultSafetyPoll = 5 * time.Second

	closeTimeout = 5 * time.Second       // of Close, behind a Redis that does not answer
	undoGrace    = 50 * time.Millisecond // for which a Lock that fails waits for its undo
)

// locksOn returns a client that is closed before rdb is.
func locksOn(t *testing.T, rdb redis.UniversalClient, opts ...relock.ClientOption) *relock.Client {
	t.Helper()
	return locktest.Closed[*relock.Client](t)(relock.New(rdb, opts...))
}

// locksWithClock is locksOn with a clock to be set.
func locksWithClock(t *testing.T, rdb redis.UniversalClient, opts ...relock.ClientOption) (*relock.Client, *locktest.TwoClocks) {
	t.Helper()
	clocks := &locktest.TwoClocks{}
	c := inside.NewClient(rdb, opts, clocks.Now).(*relock.Client)
	t.Cleanup(func() { _ = c.Close() })
	return c, clocks
}

// toRead is the read side of m as a lock by itself.
func toRead(m *relock.RWMutex) *relock.Mutex {
	_, read := inside.Sides(m)
	return read.(*relock.Mutex)
}

// toWrite is the write side of m as a lock by itself.
func toWrite(m *relock.RWMutex) *relock.Mutex {
	write, _ := inside.Sides(m)
	return write.(*relock.Mutex)
}

// chronicle records what hooks are told.
type chronicle = locktest.Chronicle[relock.Event, relock.Hooks]
