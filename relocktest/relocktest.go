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

// New returns a client of relock on an embedded Redis of its own, which is empty. Both are closed
// when the test is over, whatever is held then.
//
// It does not block. A bad option fails the test. The client is safe for concurrent use, as any
// is. No round trip.
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

// servers are the Redis servers of the clients that New has made: a *relock.Client does not tell its own.
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

// Redis returns a Redis client of the server that c has its locks on: for the data that the code
// under test keeps beside its locks, or for a second process, which is another [relock.New] on it. It is
// closed when the test is over; close what is made on it before.
//
// A c that is not of [New] fails the test. No round trip.
func Redis(tb testing.TB, c *relock.Client) *redis.Client {
	tb.Helper()
	return serverOf(tb, c).rdb
}

// Lose ends the hold on name, of any kind of lock: when it returns, the context of a holder in c has
// ended, with the cause [relock.ErrLost], and Unlock will return that. The lock is free,
// and goes to the next waiter. A holder in another client finds out at its next renewal, as it does
// when a key is deleted.
//
// It blocks for two round trips. If no one holds the name, or Redis does not answer, or c is not of
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

// HoldElsewhere lets another process hold name until release is called, or until the test is over. It is a
// Mutex of a client with the options of c, but for hooks and for how long it lasts: its lease ends
// with no outage. For a read-write lock make a client of your own, see [Redis].
//
// It does not wait for the lock: if name is held or waited for already, the test fails at once, and so it
// does for a bad name, when Redis does not answer, and if c is not of [New]. One round trip.
//
// release gives the lock back, which wakes the waiters, and blocks until Redis has answered: in an
// [Outage] that is after it. Any goroutine may call it. A second call does nothing, nor does one after
// [Lose]. If it fails otherwise, the test fails, but goes on.
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

// Outage cuts Redis off for d, from now on: its connections end, and new ones are refused until
// d is over. Whether it has carried out what was under way is not known. Keys expire
// meanwhile. So a hold that cannot be renewed in time is lost, as in production. A second call can
// make the outage longer, not shorter; the end of the test ends it. After hours of it go-redis may take
// a second more to connect.
//
// It does not block. If d is not positive, or c is not of [New], the test fails at once. No round trip.
func Outage(tb testing.TB, c *relock.Client, d time.Duration) {
	tb.Helper()
	s := serverOf(tb, c)
	if d <= 0 {
		tb.Fatalf("relocktest: an outage of %v: it has to be positive", d)
	}
	s.cut(d)
}
