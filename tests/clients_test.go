package tests

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// wrapper is a client of a type that the library does not contain, as applications make them to
// count or to trace what they send.
type wrapper struct {
	redis.UniversalClient
	panics *atomic.Bool // in whatever it is asked to send; nil: never
}

func (w wrapper) Process(ctx context.Context, cmd redis.Cmder) error {
	if w.panics != nil && w.panics.Load() {
		panic("the wrapper has a bug")
	}
	return w.UniversalClient.Process(ctx, cmd)
}

// A Ring panics when it is asked to subscribe to channels that are not known yet.
func TestRing_BehindAWrapperIsPolled(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	redistest.EachInRealTime(t, func(t *testing.T, backend *redistest.Backend) {
		ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": backend.Addr}})
		t.Cleanup(func() { _ = ring.Close() })
		locks := locksOn(t, wrapper{UniversalClient: ring})
		for _, kind := range []func(string, ...relock.MutexOption) *relock.Mutex{locks.Mutex, locks.FairMutex} {
			events, other := &chronicle{}, locktest.NewActor(t)
			m := kind(redistest.Key(t), relock.WithHooks(events.Hooks()))
			locktest.RequireLocked(t, m)
			waiting := other.Lock(t.Context(), m)
			events.Await(t, "contended", 1)
			locktest.RequireUnlocked(t, m)
			require.NoError(t, locktest.OutcomeOf(t, waiting))
			other.Unlocks(t, m)

			locktest.HeldByAnother(t, backend.Client(t), m.Name(), 0) // nobody hands over
			waiting = other.Lock(t.Context(), m)
			locktest.GoesOn(t, waiting)
			require.NoError(t, backend.Client(t).Del(t.Context(), m.Name()).Err())
			require.NoError(t, locktest.OutcomeOf(t, waiting))
			other.Unlocks(t, m)
		}
	})
}

func TestPanic_OfTheRedisClientIsAnErrorOfTheCall(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		events, bug := &chronicle{}, new(atomic.Bool)
		locks := locksOn(t, wrapper{backend.Client(t), bug}, relock.WithTTL(2*time.Second), relock.WithHooks(events.Hooks()))
		m, other := locks.Mutex(redistest.Key(t)), locks.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		ctx := m.Context(t.Context())
		bug.Store(true)
		_, err := other.TryLock(t.Context())
		for _, err := range []error{err, other.Lock(t.Context())} {
			require.ErrorContains(t, err, "the Redis client panicked in github.com/relock-go/relock/tests.wrapper.Process: the wrapper has a bug")
			require.ErrorContains(t, err, other.Name())
		}
		redistest.Receive(t, ctx.Done()) // the watchdog has tried, again and again
		require.ErrorIs(t, context.Cause(ctx), relock.ErrLost)
		require.ErrorContains(t, context.Cause(ctx), "the wrapper has a bug")
		require.ErrorContains(t, events.Of("renew failed")[0].Err, "the wrapper has a bug")
		require.Less(t, len(events.Of("renew failed")), 50, "it pauses between tries, up to the end of the lease")
		require.ErrorIs(t, m.Unlock(), relock.ErrLost)

		bug.Store(false) // what is left is undone in the background, which has survived, too
		redistest.Eventually(t, "free", func() bool {
			return backend.Client(t).Exists(t.Context(), m.Name(), other.Name()).Val() == 0
		})
		locktest.RequireLocked(t, m)
		bug.Store(true)
		require.ErrorContains(t, m.Unlock(), "the wrapper has a bug")
		bug.Store(false)
		redistest.Eventually(t, "undone", func() bool { return backend.Client(t).Exists(t.Context(), m.Name()).Val() == 0 })
	})
}

// limiter is code of the application that go-redis calls on the goroutine of the command.
type limiter struct{ bug *atomic.Bool }

func (l limiter) Allow() error {
	if l.bug.Load() {
		panic("the limiter has a bug")
	}
	return nil
}

func (limiter) ReportResult(error) {}

func TestPanic_OfTheApplicationsCodeIsAnErrorOnEveryGoroutine(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		events, bug := &chronicle{}, new(atomic.Bool)
		rdb := redis.NewClient(redistest.Options(backend.Addr, func(o *redis.Options) { o.Limiter = limiter{bug} }))
		t.Cleanup(func() { _ = rdb.Close() })
		locks := locksOn(t, rdb, relock.WithTTL(2*time.Second), relock.WithHooks(events.Hooks()))
		m := locks.Mutex(redistest.Key(t))
		require.NoError(t, m.Lock(context.Background()))
		ctx := m.Context(t.Context())
		bug.Store(true)
		for _, who := range [][]relock.MutexOption{nil, {relock.WithOwner("job")}} {
			_, err := locks.Mutex(redistest.Key(t), who...).TryLock(context.Background())
			require.ErrorContains(t, err, "the limiter has a bug")
		}
		redistest.Receive(t, ctx.Done())
		require.ErrorContains(t, context.Cause(ctx), "the limiter has a bug")
		require.ErrorIs(t, m.Unlock(), relock.ErrLost)
		bug.Store(false)
		redistest.Eventually(t, "undone", func() bool { return backend.Client(t).Exists(t.Context(), m.Name()).Val() == 0 })
	})
}
