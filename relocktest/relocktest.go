package relocktest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

// New returns a client of relock on an embedded Redis of its own, which is empty. When the test ends,
// both are closed, even if locks are held.
//
// New does not block. If an option is invalid, the test fails. The client is safe for concurrent use.
// No round trip.
func New(tb testing.TB, opts ...relock.ClientOption) *relock.Client {
	tb.Helper()
	s := startServer(opts)
	c, err := relock.New(s.rdb, opts...)
	if err != nil {
		s.stop()
		tb.Fatalf("relocktest: new: %v", err)
	}
	servers.Store(c, s)
	tb.Cleanup(func() {
		servers.Delete(c)
		s.endOutage() // or Close would wait for it
		_ = c.Close()
		s.stop()
	})
	return c
}

// servers are the Redis servers of the clients that New has made: a *relock.Client does not return its own.
var servers sync.Map // of *server, by *relock.Client

// serverOf returns the server of a client, or fails the test.
func serverOf(tb testing.TB, c *relock.Client) *server {
	tb.Helper()
	s, ok := servers.Load(c)
	if !ok {
		tb.Fatalf("relocktest: this client was not made by relocktest.New, or its test is over")
	}
	return s.(*server)
}

// Redis returns a Redis client for the server of c: for data that the code under test stores beside its
// locks, or for a second process, which is another [relock.New] with it. It is closed when the test
// ends; first close everything that uses it.
//
// If c was not made by [New], the test fails. No round trip.
func Redis(tb testing.TB, c *relock.Client) *redis.Client {
	tb.Helper()
	return serverOf(tb, c).rdb
}

// Lose ends the hold on name, of any kind of lock. When Lose returns, the context of a holder in c has
// ended with the cause [relock.ErrLost], and Unlock will return that error. The lock is free, and goes
// to the next waiter. A holder in another client notices at its next renewal, as when a key is deleted.
//
// Lose blocks for two round trips. If the name is not held, Redis does not answer, or c was not made by
// [New], the test fails at once.
func Lose(tb testing.TB, c *relock.Client, name string) {
	tb.Helper()
	serverOf(tb, c)
	ctx := context.WithoutCancel(tb.Context()) // a cleanup may call it
	lost, err := c.Mutex(name).ForceUnlock(ctx)
	if errors.Is(err, relock.ErrInvalidName) { // a read-write lock has names of its own
		var invalid error
		if lost, invalid = c.RWMutex(name).ForceUnlock(ctx); invalid == nil {
			err = nil
		}
	}
	switch {
	case err != nil:
		tb.Fatalf("relocktest: lose %q: %v", name, err)
	case !lost:
		tb.Fatalf("relocktest: lose %q: no one holds it", name)
	}
}

// forEver is the longest TTL that there is.
const forEver = 100 * 365 * 24 * time.Hour

// HoldElsewhere makes another process hold name until release is called, or until the test ends. That
// process is a client with the options of c, except hooks. It holds a Mutex whose lease survives any
// outage. To hold a read-write lock, make a client of your own: see [Redis].
//
// HoldElsewhere does not wait for the lock. The test fails at once if name is already held or waited
// for, if the name is invalid, if Redis does not answer, or if c was not made by [New]. One round trip.
//
// release releases the lock, which wakes the waiters, and blocks until Redis has answered; during an
// [Outage], until after it. Any goroutine may call release. A second call does nothing, and neither
// does a call after [Lose]. If the release fails for another reason, the test fails but continues.
func HoldElsewhere(tb testing.TB, c *relock.Client, name string) (release func()) {
	tb.Helper()
	s := serverOf(tb, c)
	other, err := relock.New(s.rdb, append(slices.Clone(s.opts), relock.WithHooks(relock.Hooks{}))...)
	if err != nil {
		tb.Fatalf("relocktest: hold %q elsewhere: %v", name, err)
	}
	s.closeLater(other)
	m := other.Mutex(name, relock.WithOwner("elsewhere"), relock.WithTTL(forEver), relock.WithoutRenewal(), relock.WithUnlockTimeout(forEver))
	switch held, err := m.TryLock(context.WithoutCancel(tb.Context())); {
	case err != nil:
		tb.Fatalf("relocktest: hold %q elsewhere: %v", name, err)
	case !held:
		tb.Fatalf("relocktest: hold %q elsewhere: it is held or waited for already", name)
	}
	return sync.OnceFunc(func() {
		tb.Helper()
		if err := m.Unlock(); err != nil && !errors.Is(err, relock.ErrLost) {
			tb.Errorf("relocktest: release %q elsewhere: %v", name, err)
		}
	})
}

// Outage disconnects Redis for d, beginning now: its connections end, and new ones are refused until d
// is over. A command that is in flight may or may not be executed. Keys expire meanwhile, so a hold
// that cannot be renewed in time is lost, as in production. A second call can extend the outage, but
// not shorten it. The end of the test ends the outage. After an outage of hours, go-redis may take one
// second more to connect.
//
// Outage does not block. If d is not positive, or c was not made by [New], the test fails at once. No
// round trip.
func Outage(tb testing.TB, c *relock.Client, d time.Duration) {
	tb.Helper()
	s := serverOf(tb, c)
	if d <= 0 {
		tb.Fatalf("relocktest: an outage of %v: it has to be positive", d)
	}
	s.cut(d)
}
