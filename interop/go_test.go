package interop

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// A goLock is a *relock.Mutex, or a side of a *relock.RWMutex.
type goLock interface {
	Lock(ctx context.Context) error
	TryLock(ctx context.Context) (bool, error)
	Unlock() error
	Context(ctx context.Context) context.Context
}

// A reader is the side of an RWMutex that reads. The RWMutex itself is the side that writes.
type reader struct{ *relock.RWMutex }

func (r reader) Lock(ctx context.Context) error              { return r.RLock(ctx) }
func (r reader) TryLock(ctx context.Context) (bool, error)   { return r.TryRLock(ctx) }
func (r reader) Unlock() error                               { return r.RUnlock() }
func (r reader) Context(ctx context.Context) context.Context { return r.RContext(ctx) }

// An actor is a goroutine that runs functions on request: an owner of its own.
type actor struct{ jobs chan func() }

func newActor(t *testing.T) *actor {
	a := &actor{jobs: make(chan func())}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for job := range a.jobs {
			job()
		}
	}()
	t.Cleanup(func() {
		close(a.jobs)
		<-done
	})
	return a
}

func (a *actor) begin(f func() error) <-chan error {
	result := make(chan error, 1)
	a.jobs <- func() { result <- f() }
	return result
}

func (a *actor) locks(t *testing.T, m goLock) {
	t.Helper()
	require.NoError(t, outcomeOf(t, a.begin(func() error { return m.Lock(t.Context()) })))
}

func (a *actor) unlocks(t *testing.T, m goLock) {
	t.Helper()
	require.NoError(t, outcomeOf(t, a.begin(m.Unlock)))
}

// tries reports what TryLock does on the actor's goroutine.
func (a *actor) tries(t *testing.T, m goLock) (held bool) {
	t.Helper()
	require.NoError(t, outcomeOf(t, a.begin(func() (err error) {
		held, err = m.TryLock(t.Context())
		return err
	})))
	return held
}

// waits has the actor call Lock, and requires that it does not return for a while.
func (a *actor) waits(t *testing.T, m goLock) <-chan error {
	t.Helper()
	result := a.begin(func() error { return m.Lock(t.Context()) })
	select {
	case err := <-result:
		require.Fail(t, "Go did not wait", "%v", err)
	case <-time.After(aWhile):
	}
	return result
}

// context returns the context of the actor's hold.
func (a *actor) context(t *testing.T, m goLock) (ctx context.Context) {
	t.Helper()
	require.NoError(t, outcomeOf(t, a.begin(func() error {
		ctx = m.Context(t.Context())
		return nil
	})))
	return ctx
}

// outcomeOf waits for the result of what an actor does.
func outcomeOf(t *testing.T, result <-chan error) error {
	t.Helper()
	select {
	case err := <-result:
		return err
	case <-time.After(soonEnough):
		require.Fail(t, "nothing came of it in time")
		return nil
	}
}

// ends waits until ctx ends, and returns why.
func ends(t *testing.T, ctx context.Context) error {
	t.Helper()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(soonEnough):
		require.Fail(t, "the hold goes on")
		return nil
	}
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(soonEnough); !cond(); time.Sleep(lookEvery) {
		require.True(t, time.Now().Before(end), "still not: %s", what)
	}
}

// namesOf returns names that no other test uses, one without and one with a {tag}.
func namesOf(t *testing.T) []string {
	key := redistest.Key(t)
	return []string{key, fmt.Sprintf("{%s}:orders", key)}
}

func channelOf(name string) string {
	if strings.Contains(name, "{") {
		return "redisson_lock__channel:" + name
	}
	return "redisson_lock__channel:{" + name + "}"
}

// rwChannelOf is channelOf for a read-write lock.
func rwChannelOf(name string) string {
	return strings.Replace(channelOf(name), "lock__channel", "rwlock", 1)
}

func counterOf(name string) string {
	return strings.Replace(channelOf(name), "lock__channel", "lock_token", 1)
}
