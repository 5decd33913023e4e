package relock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

const (
	// faultTTL is the lease in most fault tests: long enough for a loaded machine to renew
	// it in time, short enough to wait for its end. A copy of a command is waited for for a
	// quarter of it.
	faultTTL = 4 * time.Second

	// faultPatience bounds waits for what should come soon.
	faultPatience = 15 * time.Second

	faultPoll = 2 * time.Millisecond
)

// faultBench is a lock client whose traffic goes through a relay, a rival client beside it,
// and a way to look at the server. The lock clients use go-redis clients with default options.
type faultBench struct {
	t      *testing.T
	ctx    context.Context
	relay  *redistest.Relay
	server *redis.Client // past the relay
	key    string
	kind   lockKind

	locks  *relock.Client // through the relay
	m      *relock.Mutex  // of locks
	rival  *relock.Mutex  // of another client, past the relay
	rivals *relock.Client // that client

	me    *faultOwner // the owner in most steps
	other *faultOwner // another goroutine of the same process

	renewed, contended, lost chan relock.Event // of m

	hooks relock.Hooks // of m

	rule    *redistest.Rule // the fault of a faultStep
	waiting <-chan error    // of a Lock that a step has begun
	giveUp  func()          // ends its context
}

func newFaultBench(t *testing.T, addr string, opts ...relock.ClientOption) *faultBench {
	t.Helper()
	return newFaultBenchOf(t, kindNamed("plain"), addr, opts...)
}

// newFaultBenchOf is newFaultBench for a lock of that kind.
func newFaultBenchOf(t *testing.T, kind lockKind, addr string, opts ...relock.ClientOption) *faultBench {
	t.Helper()
	redistest.Slow(t)
	b := &faultBench{
		t: t, ctx: t.Context(), key: redistest.Key(t), kind: kind,
		relay:   locktest.Relay(t, addr),
		me:      newFaultOwner(t),
		other:   newFaultOwner(t),
		renewed: make(chan relock.Event, 1024), contended: make(chan relock.Event, 1024), lost: make(chan relock.Event, 1024),
	}
	b.server = redistest.NewClient(t, addr)
	b.locks = faultLocks(t, b.relay.Addr, opts...)
	b.hooks = relock.Hooks{
		Renewed:   func(e relock.Event) { b.renewed <- e },
		Contended: func(e relock.Event) { b.contended <- e },
		Lost:      func(e relock.Event) { b.lost <- e },
	}
	b.m = b.mutex()
	t.Cleanup(b.relay.Cut) // Close would wait for a connection that is silent
	b.rivals = faultLocks(t, addr)
	b.rival = kind.rival(b.rivals, b.key, relock.WithTTL(faultTTL))
	return b
}

// asksRedisFirst has the client report each hand-over to Redis before the next waiter enters, as it does where
// that wants a token.
func (b *faultBench) asksRedisFirst() { b.locks.TellFirst() }

// hasty makes the client wait less for an answer than suits the leases.
var hasty = relock.WithTTL(time.Second)

// mutex returns a handle of the lock that the bench observes.
func (b *faultBench) mutex(opts ...relock.MutexOption) *relock.Mutex {
	return b.kind.mutex(b.locks, b.key, append([]relock.MutexOption{relock.WithTTL(faultTTL), relock.WithHooks(b.hooks)}, opts...)...)
}

// faultLocks returns a lock client with short leases on a go-redis client of its own.
func faultLocks(t *testing.T, addr string, opts ...relock.ClientOption) *relock.Client {
	t.Helper()
	return relock.LocksOn(t, redistest.NewClient(t, addr), append([]relock.ClientOption{relock.WithTTL(faultTTL)}, opts...)...)
}

// runs chooses the runs of s on the bench's lock.
func (b *faultBench) runs(s *redisexec.Script) redistest.Match {
	return b.kind.runs(s).And(redistest.With(b.key))
}

// keys returns all that the lock has on the server.
func (b *faultBench) keys() []string {
	b.t.Helper()
	keys, err := b.server.Keys(b.ctx, "*"+b.key+"*").Result()
	require.NoError(b.t, err)
	return keys
}

// fields returns the holds in the lock's hash.
func (b *faultBench) fields() map[string]string {
	b.t.Helper()
	fields, err := b.server.HGetAll(b.ctx, b.key).Result()
	require.NoError(b.t, err)
	delete(fields, "mode")
	return fields
}

// name returns what doubt about the next command puts in doubt: the first part of the field
// of the hold, or else the client's identity.
func (b *faultBench) name() string {
	b.t.Helper()
	for field := range b.fields() {
		name, _, _ := strings.Cut(field, ":")
		return name
	}
	return b.locks.ID()
}

// requireField asserts that the lock's hash has one field, of the owner's goroutine, with
// count levels, and that it will expire.
func (b *faultBench) requireField(owner *faultOwner, count int) {
	b.t.Helper()
	fields := b.fields()
	require.Len(b.t, fields, 1)
	for field, n := range fields {
		name := strings.TrimSuffix(field, keys.WriteSuffix)
		require.True(b.t, strings.HasSuffix(name, fmt.Sprintf(":%d", owner.id)), "%s is not of goroutine %d", field, owner.id)
		require.Equal(b.t, fmt.Sprint(count), n)
	}
	require.Positive(b.t, b.server.PTTL(b.ctx, b.key).Val())
}

// requireRefused asserts that the rival does not get the lock.
func (b *faultBench) requireRefused() {
	b.t.Helper()
	got, err := b.rival.TryLock(b.ctx)
	require.NoError(b.t, err)
	require.False(b.t, got, "two holders")
}

// requireGone asserts that the key is gone.
func (b *faultBench) requireGone() {
	b.t.Helper()
	require.Empty(b.t, b.fields())
}

// awaitGone waits until the key is gone, for one TTL and what a loaded machine needs.
func (b *faultBench) awaitGone(ttl time.Duration) {
	b.t.Helper()
	began := time.Now()
	redistest.Eventually(b.t, "the key is gone", func() bool { return b.server.Exists(b.ctx, b.key).Val() == 0 })
	require.Less(b.t, time.Since(began), ttl+time.Second, "the key outlived its TTL")
}

// awaitContended waits until another Lock through m has found the lock taken.
func (b *faultBench) awaitContended() {
	b.t.Helper()
	b.await(b.contended)
}

// awaitIdle waits until the client has nothing left of the lock: no hold and no watchdog, no
// waiter, no undo.
func (b *faultBench) awaitIdle() {
	b.t.Helper()
	c := b.locks
	redistest.Eventually(b.t, "nothing is left", func() bool {
		return relock.NamesOf(c) == 0 && len(c.Undoing(0)) == 0 && relock.Settled(c)
	})
}

// stopReply stops the reply to the next run of s, when that has been executed, until
// release is called.
func (b *faultBench) stopReply(s *redisexec.Script) (executed <-chan struct{}, release func()) {
	reached, released := make(chan struct{}), make(chan struct{})
	b.relay.After(b.runs(s), func(redistest.Command, string) {
		close(reached)
		<-released
	})
	release = sync.OnceFunc(func() { close(released) })
	b.t.Cleanup(release) // before the relay is closed
	return reached, release
}

// stopReplies is stopReply for all copies of a command.
func (b *faultBench) stopReplies(s *redisexec.Script) (executed <-chan struct{}, release func()) {
	reached, released := make(chan struct{}, 1), make(chan struct{})
	b.relay.After(b.runs(s), func(redistest.Command, string) {
		select {
		case reached <- struct{}{}:
		default:
		}
		<-released
	}).Always()
	release = sync.OnceFunc(func() { close(released) })
	b.t.Cleanup(release) // before the relay is closed
	return reached, release
}

// awaitStop waits until what is to be stopped has come.
func (b *faultBench) awaitStop(stopped <-chan struct{}) {
	b.t.Helper()
	select {
	case <-stopped:
	case <-time.After(faultPatience):
		require.FailNow(b.t, "nothing came to be stopped")
	}
}

// faultOwner is a goroutine that does what it is asked, one thing after another: an owner.
type faultOwner struct {
	id   int64
	todo chan func()
}

func newFaultOwner(t *testing.T) *faultOwner {
	t.Helper()
	a := &faultOwner{todo: make(chan func())}
	named, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		a.id = goroutine.ID()
		close(named)
		for f := range a.todo {
			f()
		}
	}()
	<-named
	t.Cleanup(func() {
		close(a.todo)
		<-done
	})
	return a
}

// start has f begun, and returns a channel for its error.
func (a *faultOwner) start(f func() error) <-chan error {
	done := make(chan error, 1)
	a.todo <- func() { done <- f() }
	return done
}

// do has f done and returns its error.
func (a *faultOwner) do(f func() error) error { return <-a.start(f) }

func (a *faultOwner) lock(ctx context.Context, m *relock.Mutex) error {
	return a.do(func() error { return m.Lock(ctx) })
}

func (a *faultOwner) unlock(m *relock.Mutex) error { return a.do(m.Unlock) }

// holdOf returns the context of the owner's hold on m.
func (a *faultOwner) holdOf(ctx context.Context, m *relock.Mutex) (hold context.Context) {
	_ = a.do(func() error {
		hold = m.Context(ctx)
		return nil
	})
	return hold
}

// levels returns how many levels of m the owner holds.
func (a *faultOwner) levels(m *relock.Mutex) (n int) {
	_ = a.do(func() error {
		n = m.HoldCount()
		return nil
	})
	return n
}

// faultError waits for an error from a channel.
func faultError(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(faultPatience):
		require.FailNow(t, "no answer")
		return nil
	}
}
