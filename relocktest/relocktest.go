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
	"github.com/relock-go/relock/internal/protocol"
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

// Lose ends the hold on name, of any kind of lock; of a semaphore it ends each permit that is in use.
// When Lose returns, the context of a holder in c has ended with the cause [relock.ErrLost], and Unlock
// or Release will return that error. The lock is free, and goes to the next waiter. A holder in another
// client notices at its next renewal, as when a key is deleted.
//
// Lose blocks for a few round trips, and one more for each permit. If the name is not held, Redis does
// not answer, or c was not made by [New], the test fails at once.
func Lose(tb testing.TB, c *relock.Client, name string) {
	tb.Helper()
	serverOf(tb, c)
	ctx := context.WithoutCancel(tb.Context()) // a cleanup may call it
	lost, err := c.Mutex(name).ForceUnlock(ctx)
	// A read-write lock and a semaphore have names of their own.
	for _, lose := range []func(context.Context) (bool, error){c.RWMutex(name).ForceUnlock, permitsOf(c, name)} {
		if !errors.Is(err, relock.ErrInvalidName) {
			break
		}
		var invalid error
		if lost, invalid = lose(ctx); !errors.Is(invalid, relock.ErrInvalidName) {
			err = invalid
		}
	}
	switch {
	case err != nil:
		tb.Fatalf("relocktest: lose %q: %v", name, err)
	case !lost:
		tb.Fatalf("relocktest: lose %q: no one holds it", name)
	}
}

// permitsOf returns a function that ends each permit of a semaphore that is in use. It returns whether there was one.
func permitsOf(c *relock.Client, name string) func(context.Context) (bool, error) {
	s := c.Semaphore(name, 1) // any limit will do: only a request for a permit has one
	return func(ctx context.Context) (lost bool, err error) {
		state, err := s.State(ctx)
		for _, p := range state.Permits {
			forced, failed := s.ForceRelease(ctx, p.ID)
			lost, err = lost || forced, errors.Join(err, failed)
		}
		return lost, err
	}
}

// forEver is the longest TTL that there is.
const forEver = 100 * 365 * 24 * time.Hour

// HoldElsewhere makes another process hold name until release is called, or until the test ends. That
// process is a client with the options of c, except hooks. It holds a Mutex whose lease survives any
// outage. For permits of a semaphore, see [HoldPermitsElsewhere]. To hold a read-write lock, make a
// client of your own: see [Redis].
//
// HoldElsewhere does not wait for the lock. The test fails at once if name is already held or waited
// for, if the name is invalid, if Redis does not answer, or if c was not made by [New]. One round trip.
//
// release releases the lock, which wakes the waiters, and blocks until Redis has answered; during
// an [Outage], until after it. If c has relock.WithMinHold, that counts. Any goroutine may call
// release. A second call does nothing, and neither does a call after [Lose]. If the release fails
// for another reason, the test fails but continues.
func HoldElsewhere(tb testing.TB, c *relock.Client, name string) (release func()) {
	tb.Helper()
	p := elsewhere(tb, c, name)
	m := p.Mutex(name, append(lasting, relock.WithOwner("elsewhere"))...)
	switch held, err := m.TryLock(context.WithoutCancel(tb.Context())); {
	case err != nil:
		tb.Fatalf("relocktest: hold %q elsewhere: %v", name, err)
	case !held:
		tb.Fatalf("relocktest: hold %q elsewhere: it is held or waited for already", name)
	}
	return p.releaseOnce(tb, m.Unlock)
}

// HoldPermitsElsewhere makes another process use n permits of the semaphore name, each of weight 1,
// until release is called, or until the test ends. It does so as [HoldElsewhere] holds a lock. The limit
// of that process is the highest one. So n may be more than what is free, as with another version of
// your code that has a higher limit.
//
// HoldPermitsElsewhere does not wait. The test fails at once if others wait for permits, if name is a
// lock or invalid, if n is not positive, if Redis does not answer, or if c was not made by [New]. A
// round trip for each permit.
//
// release does what the release of HoldElsewhere does, with a round trip for each permit.
func HoldPermitsElsewhere(tb testing.TB, c *relock.Client, name string, n int) (release func()) {
	tb.Helper()
	other := elsewhere(tb, c, name)
	s := other.Semaphore(name, protocol.MostPermits, lasting...)
	if n < 1 {
		tb.Fatalf("relocktest: hold %d permits of %q elsewhere: it has to be at least one", n, name)
	}
	var releases []func() error
	for range n {
		p, acquired, err := s.TryAcquire(context.WithoutCancel(tb.Context()))
		switch {
		case err != nil:
			tb.Fatalf("relocktest: hold permits of %q elsewhere: %v", name, err)
		case !acquired:
			tb.Fatalf("relocktest: hold permits of %q elsewhere: others wait for them, or %d are in use", name, protocol.MostPermits)
		}
		releases = append(releases, p.Release)
	}
	return other.releaseOnce(tb, releases...)
}

// lasting are the options of what another process holds.
var lasting = []relock.MutexOption{relock.WithTTL(forEver), relock.WithoutRenewal(), relock.WithUnlockTimeout(forEver)}

// process is another process, which holds name.
type process struct {
	*relock.Client
	name     string
	released chan error // the answer to the last release, also if Unlock did not wait for it (relock.WithAsyncUnlock)
}

// elsewhere returns another process, to hold name, or fails the test.
func elsewhere(tb testing.TB, c *relock.Client, name string) process {
	tb.Helper()
	s, p := serverOf(tb, c), process{name: name, released: make(chan error, 1)}
	hooks := relock.Hooks{Released: func(e relock.Event) {
		select {
		case p.released <- e.Err:
		default: // Close, at the end of the test
		}
	}}
	var err error
	if p.Client, err = relock.New(s.rdb, append(slices.Clone(s.opts), relock.WithHooks(hooks))...); err != nil {
		tb.Fatalf("relocktest: hold %q elsewhere: %v", name, err)
	}
	s.closeLater(p.Client)
	return p
}

// releaseOnce returns a function that releases what p holds. The first call counts.
func (p process) releaseOnce(tb testing.TB, releases ...func() error) func() {
	return sync.OnceFunc(func() {
		tb.Helper()
		for _, release := range releases {
			err := release()
			if err == nil {
				err = <-p.released
			} else if len(p.released) > 0 {
				<-p.released
			}
			if err != nil && !errors.Is(err, relock.ErrLost) {
				tb.Errorf("relocktest: release %q elsewhere: %v", p.name, err)
			}
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
