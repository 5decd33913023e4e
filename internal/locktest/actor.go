package locktest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/goroutine"
)

// A Mutex is a handle of a lock: a *relock.Mutex.
type Mutex interface {
	Lock(ctx context.Context) error
	TryLock(ctx context.Context) (bool, error)
	Unlock() error
	Context(ctx context.Context) context.Context
	FencingToken() int64
}

// An Actor is a goroutine that runs functions one after another: an owner of its own.
type Actor struct{ jobs chan func() }

// NewActor returns an actor that ends with the test.
func NewActor(t *testing.T) *Actor {
	t.Helper()
	a := &Actor{jobs: make(chan func())}
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

// Begin makes the actor call f, and returns a channel for the result.
func (a *Actor) Begin(f func() error) <-chan error {
	result := make(chan error, 1)
	a.jobs <- func() { result <- f() }
	return result
}

// Call makes the actor call f, and waits for the result.
func (a *Actor) Call(f func() error) error { return <-a.Begin(f) }

// Lock makes the actor lock m, and returns a channel for the result.
func (a *Actor) Lock(ctx context.Context, m Mutex) <-chan error {
	return a.Begin(func() error { return m.Lock(ctx) })
}

// Locks requires that the actor locks m.
func (a *Actor) Locks(t *testing.T, m Mutex) {
	t.Helper()
	require.NoError(t, OutcomeOf(t, a.Lock(t.Context(), m)))
}

// Unlocks requires that the actor unlocks m.
func (a *Actor) Unlocks(t *testing.T, m Mutex) {
	t.Helper()
	require.NoError(t, OutcomeOf(t, a.Begin(m.Unlock)))
}

// Tries returns the result of TryLock on the actor's goroutine.
func (a *Actor) Tries(t *testing.T, m Mutex) (held bool) {
	t.Helper()
	require.NoError(t, a.Call(func() (err error) {
		held, err = m.TryLock(t.Context())
		return err
	}))
	return held
}

// ID returns the number of the actor's goroutine.
func (a *Actor) ID() (id int64) {
	_ = a.Call(func() error {
		id = goroutine.ID()
		return nil
	})
	return id
}

// ContextOf returns the context of the actor's hold on m.
func (a *Actor) ContextOf(m Mutex) (ctx context.Context) {
	_ = a.Call(func() error {
		ctx = m.Context(context.Background())
		return nil
	})
	return ctx
}

// TokenOf returns the fencing token of the actor's hold on m.
func (a *Actor) TokenOf(m Mutex) (token int64) {
	_ = a.Call(func() error {
		token = m.FencingToken()
		return nil
	})
	return token
}

// OutcomeOf waits for the result of an actor's call.
func OutcomeOf(t *testing.T, result <-chan error) error {
	t.Helper()
	select {
	case err := <-result:
		return err
	case <-time.After(SoonEnough):
		require.Fail(t, "nothing came of it in time")
		return nil
	}
}

// GoesOn requires that no result arrives for a while.
func GoesOn(t *testing.T, result <-chan error) {
	t.Helper()
	select {
	case err := <-result:
		require.Fail(t, "it is over", "%v", err)
	case <-time.After(AWhile):
	}
}

// RequireLocked requires that the calling goroutine locks m.
func RequireLocked(t *testing.T, m Mutex) {
	t.Helper()
	require.NoError(t, m.Lock(t.Context()))
}

// RequireUnlocked requires that the calling goroutine unlocks m.
func RequireUnlocked(t *testing.T, m Mutex) {
	t.Helper()
	require.NoError(t, m.Unlock())
}

// ErrorsOf calls every method of m that can fail, and returns the errors.
func ErrorsOf[S any](ctx context.Context, m interface {
	Mutex
	State(ctx context.Context) (S, error)
	ForceUnlock(ctx context.Context) (bool, error)
	Do(ctx context.Context, fn func(ctx context.Context) error) error
},
) map[string]error {
	errs := map[string]error{"Lock": m.Lock(ctx)}
	_, errs["TryLock"] = m.TryLock(ctx)
	_, errs["State"] = m.State(ctx)
	_, errs["ForceUnlock"] = m.ForceUnlock(ctx)
	errs["Do"] = m.Do(ctx, func(context.Context) error { panic("the body ran unheld") })
	return errs
}

// FieldOf is the name that the calling goroutine acquires by.
func FieldOf(c interface{ ID() string }) string { return fmt.Sprintf("%s:%d", c.ID(), goroutine.ID()) }

// A Doer runs functions under a lock: a *relock.Mutex.
type Doer interface {
	Do(ctx context.Context, fn func(ctx context.Context) error) error
}

// KeepBusy has an owner lock, work for a moment, and unlock each of locks until ctx ends, and counts the holds.
func KeepBusy[M Doer](ctx context.Context, t *testing.T, all *sync.WaitGroup, locks ...M) []*atomic.Int64 {
	t.Helper()
	counts := make([]*atomic.Int64, len(locks))
	for i, m := range locks {
		holds := new(atomic.Int64)
		counts[i] = holds
		all.Go(func() {
			for ctx.Err() == nil {
				err := m.Do(ctx, func(context.Context) error {
					holds.Add(1)
					time.Sleep(5 * time.Millisecond) // the work
					return nil
				})
				if err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	return counts
}
