package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// usage is the weight that permits have in use, as their holders see it.
type usage struct{ now, most atomic.Int64 }

func (u *usage) begin(weight int) {
	n := u.now.Add(int64(weight))
	for most := u.most.Load(); n > most && !u.most.CompareAndSwap(most, n); most = u.most.Load() {
	}
}

func (u *usage) end(weight int) { u.now.Add(-int64(weight)) }

// requirePermits requires that so much is in use, and that so many wait.
func requirePermits(t *testing.T, s *relock.Semaphore, inUse, waiting int) {
	t.Helper()
	state, err := s.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, inUse, state.InUse, "in use: %v", state.Permits)
	require.Equal(t, waiting, state.Waiting, "waiting")
}

// awaitWaiting waits until so many wait for permits.
func awaitWaiting(t *testing.T, s *relock.Semaphore, n int) {
	t.Helper()
	redistest.Eventually(t, fmt.Sprint(n, " wait"), func() bool {
		state, err := s.State(t.Context())
		return err == nil && state.Waiting == n
	})
}

// requireNoKeys requires that nothing of the semaphore is on Redis.
func requireNoKeys(t *testing.T, rdb redis.UniversalClient, key string) {
	t.Helper()
	var of keys.Set
	require.NoError(t, of.Init("", []string{key}))
	of.Semaphore()
	redistest.Eventually(t, "nothing is left", func() bool {
		return rdb.Exists(t.Context(), key, of.Line[2].(string), of.Line[3].(string)).Val() == 0
	})
}

func acquired(t *testing.T, s *relock.Semaphore, weight int) *relock.Permit {
	t.Helper()
	p, err := s.AcquireN(t.Context(), weight)
	require.NoError(t, err)
	return p
}

// granted is the result of an AcquireN in the background.
type granted struct {
	permit *relock.Permit
	err    error
}

func acquiring(ctx context.Context, s *relock.Semaphore, weight int) <-chan granted {
	done := make(chan granted, 1)
	go func() {
		p, err := s.AcquireN(ctx, weight)
		done <- granted{p, err}
	}()
	return done
}

// P-S1 without faults: never more than the limit is in use, and all are served.
func TestSemaphore_NeverMoreThanTheLimitIsInUse(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		var u usage
		var all sync.WaitGroup
		for process := range 4 {
			s := locksOn(t, b.Client(t)).Semaphore(key, 5)
			for worker := range 6 {
				all.Go(func() {
					for i := range 12 {
						weight := 1 + (process+worker+i)%3
						p, err := s.AcquireN(context.Background(), weight)
						if err != nil {
							t.Error(err)
							return
						}
						u.begin(weight)
						time.Sleep(200 * time.Microsecond) // the work
						u.end(weight)
						if err := p.Release(); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		all.Wait()
		require.LessOrEqual(t, u.most.Load(), int64(5))
		require.GreaterOrEqual(t, u.most.Load(), int64(4), "the room is used")
		requireNoKeys(t, rdb, key)
	})
}

func TestSemaphore_PermitIsReleasedOnceByAnyGoroutine(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		s := c.Semaphore(key, 3)
		require.Equal(t, key, s.Name())
		require.Equal(t, 3, s.Limit())
		p, q := acquired(t, s, 2), acquired(t, s, 1)
		require.Equal(t, 2, p.Weight())
		require.NotEqual(t, p.ID(), q.ID())
		until, held := p.Deadline()
		require.True(t, held)
		require.WithinDuration(t, time.Now().Add(30*time.Second), until, 5*time.Second)
		ctx, other := p.Context(t.Context()), q.Context(t.Context())
		requirePermits(t, s, 3, 0)

		errs := make(chan error, 8)
		for range cap(errs) {
			go func() { errs <- p.Release() }()
		}
		succeeded := 0
		for range cap(errs) {
			if err := redistest.Receive(t, errs); err == nil {
				succeeded++
			} else {
				require.ErrorIs(t, err, relock.ErrNotHeld)
				require.ErrorContains(t, err, key)
			}
		}
		require.Equal(t, 1, succeeded)
		require.ErrorIs(t, p.Release(), relock.ErrNotHeld)
		require.ErrorIs(t, context.Cause(ctx), relock.ErrReleased)
		require.ErrorIs(t, context.Cause(p.Context(t.Context())), relock.ErrNotHeld)
		_, held = p.Deadline()
		require.False(t, held)
		require.NoError(t, other.Err(), "another permit of the same goroutine goes on")
		requirePermits(t, s, 1, 0)
		require.NoError(t, q.Release())
		requireNoKeys(t, rdb, key)
	})
}

func TestSemaphore_TryAcquireNeverWaits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		s := locksOn(t, rdb).Semaphore(key, 2)
		p, ok, err := s.TryAcquire(t.Context())
		require.NoError(t, err)
		require.True(t, ok)
		large := acquiring(t.Context(), locksOn(t, b.Client(t)).Semaphore(key, 2), 2)
		awaitWaiting(t, s, 1)
		none, ok, err := s.TryAcquire(t.Context())
		require.NoError(t, err)
		require.False(t, ok, "one is free, but a large request waits")
		require.Nil(t, none)
		requirePermits(t, s, 1, 1)
		require.NoError(t, p.Release())
		g := redistest.Receive(t, large)
		require.NoError(t, g.err)
		require.NoError(t, g.permit.Release())
		requireNoKeys(t, rdb, key)
	})
}

// P-S4, over several processes and in one.
func TestSemaphore_ServesInOrderOfArrival(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		var handles []*relock.Semaphore
		for range 3 {
			handles = append(handles, locksOn(t, b.Client(t)).Semaphore(key, 4))
		}
		p := acquired(t, handles[0], 4)
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		weights := []int{3, 4, 3, 3, 4, 4, 3, 3, 3, 4, 4, 3} // no two fit together
		for i, weight := range weights {
			all.Go(func() {
				p, err := handles[i%3].AcquireN(context.Background(), weight)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				if err := p.Release(); err != nil {
					t.Error(err)
				}
			})
			awaitWaiting(t, handles[0], i+1)
		}
		require.NoError(t, p.Release())
		all.Wait()
		require.Equal(t, len(weights), len(order))
		require.True(t, slices.IsSorted(order), "%v", order)
		requireNoKeys(t, rdb, key)
	})
}

func TestSemaphore_ReleaseServesAllWhoFit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		one, two := locksOn(t, b.Client(t)).Semaphore(key, 4), locksOn(t, b.Client(t)).Semaphore(key, 4)
		p := acquired(t, one, 4)
		var waiting []<-chan granted
		for i, s := range []*relock.Semaphore{one, two, one, two} {
			waiting = append(waiting, acquiring(t.Context(), s, 1))
			awaitWaiting(t, one, i+1)
		}
		require.NoError(t, p.Release())
		for _, done := range waiting { // without any release in between
			g := redistest.Receive(t, done)
			require.NoError(t, g.err)
			defer func() { require.NoError(t, g.permit.Release()) }()
		}
		requirePermits(t, one, 4, 0)
		require.NotEmpty(t, rdb.PTTL(t.Context(), key).Val())
	})
}

func TestSemaphore_WaiterThatGivesUpLeavesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		s := c.Semaphore(key, 2)
		p := acquired(t, s, 1)
		ctx, cancel := context.WithCancelCause(t.Context())
		large := acquiring(ctx, s, 2)
		awaitWaiting(t, s, 1)
		small := acquiring(t.Context(), s, 1)
		awaitWaiting(t, s, 2)
		why := errors.New("enough")
		cancel(why)
		g := redistest.Receive(t, large)
		require.ErrorIs(t, g.err, why)
		require.ErrorIs(t, g.err, context.Canceled)
		require.Nil(t, g.permit)
		g = redistest.Receive(t, small)
		require.NoError(t, g.err, "those behind it go on")
		_, err := c.Semaphore(key, 2, relock.WithWaitTimeout(20*time.Millisecond)).Acquire(t.Context())
		require.ErrorIs(t, err, relock.ErrTimeout)
		require.NoError(t, p.Release())
		require.NoError(t, g.permit.Release())
		requireNoKeys(t, rdb, key)
	})
}

func TestSemaphore_DoReleasesWhateverTheFunctionDoes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		s := locksOn(t, rdb).Semaphore(key, 2)
		why := errors.New("mine")
		var inner context.Context
		require.ErrorIs(t, s.Do(t.Context(), func(ctx context.Context) error {
			inner = ctx
			requirePermits(t, s, 1, 0)
			return s.Do(ctx, func(ctx context.Context) error { // a permit is not entered again: this is another one
				requirePermits(t, s, 2, 0)
				return why
			})
		}), why)
		require.ErrorIs(t, context.Cause(inner), relock.ErrReleased)
		require.PanicsWithValue(t, "boom", func() {
			_ = s.Do(t.Context(), func(context.Context) error { panic("boom") })
		})
		require.ErrorIs(t, s.Do(t.Context(), nil), relock.ErrInvalidOption)
		require.NoError(t, s.Do(t.Context(), func(context.Context) error { return nil }))
		requireNoKeys(t, rdb, key)
	})
}

func TestSemaphore_StateAndForceRelease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, other := locksOn(t, rdb), locksOn(t, b.Client(t))
		s, theirs := c.Semaphore(key, 3), other.Semaphore(key, 3)
		var lost chronicle
		mine := acquired(t, c.Semaphore(key, 3, relock.WithHooks(lost.Hooks())), 1)
		their := acquired(t, theirs, 2)
		ctx := mine.Context(t.Context())
		waiting := acquiring(t.Context(), theirs, 3)
		awaitWaiting(t, s, 1)
		state, err := s.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 3, state.InUse)
		require.Len(t, state.Permits, 2)
		for _, got := range state.Permits {
			require.InDelta(t, 30*time.Second, got.TTL, float64(5*time.Second))
			want := relock.PermitState{ID: mine.ID(), Client: c.ID(), Weight: 1, TTL: got.TTL}
			if got.Client == other.ID() {
				want.ID, want.Client, want.Weight = their.ID(), other.ID(), 2
			}
			require.Equal(t, want, got)
		}
		require.NotEqual(t, state.Permits[0], state.Permits[1])

		done, err := s.ForceRelease(t.Context(), "nobody")
		require.NoError(t, err)
		require.False(t, done)
		done, err = s.ForceRelease(t.Context(), mine.ID())
		require.NoError(t, err)
		require.True(t, done)
		require.ErrorIs(t, context.Cause(ctx), relock.ErrLost)
		require.ErrorIs(t, mine.Release(), relock.ErrLost)
		require.ErrorIs(t, mine.Release(), relock.ErrNotHeld)
		lost.Await(t, "lost", 1)
		event := lost.Of("lost")[0]
		require.Equal(t, relock.KindSemaphore, event.Kind)
		require.Equal(t, relock.LossForced, event.Cause)
		require.Equal(t, mine.ID(), event.Owner)

		done, err = s.ForceRelease(t.Context(), their.ID())
		require.NoError(t, err)
		require.True(t, done)
		g := redistest.Receive(t, waiting)
		require.NoError(t, g.err, "it serves the line")
		require.ErrorIs(t, their.Release(), relock.ErrLost, "found by its release")
		require.NoError(t, g.permit.Release())
		requireNoKeys(t, rdb, key)
	})
}

func TestSemaphore_CloseReleasesPermitsAndEndsWaiters(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, b.Client(t))
		s := c.Semaphore(key, 2)
		p := acquired(t, s, 2)
		ctx := p.Context(t.Context())
		waiting := acquiring(t.Context(), s, 1)
		awaitWaiting(t, locksOn(t, rdb).Semaphore(key, 2), 1)
		require.NoError(t, c.Close())
		require.ErrorIs(t, redistest.Receive(t, waiting).err, relock.ErrClosed)
		require.ErrorIs(t, context.Cause(ctx), relock.ErrClosed)
		require.ErrorIs(t, p.Release(), relock.ErrClosed)
		_, err := s.Acquire(t.Context())
		require.ErrorIs(t, err, relock.ErrClosed)
		requireNoKeys(t, rdb, key)
	})
}

func TestSemaphore_HooksReportPermits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		key := redistest.Key(t)
		var events chronicle
		s := locksOn(t, b.Client(t), relock.WithHooks(events.Hooks())).Semaphore(key, 2)
		p := acquired(t, s, 2)
		waiting := acquiring(t.Context(), s, 2)
		events.Await(t, "contended", 1)
		require.NoError(t, p.Release())
		g := redistest.Receive(t, waiting)
		require.NoError(t, g.err)
		require.NoError(t, g.permit.Release())
		events.Await(t, "released", 2)
		for _, hook := range []string{"acquired", "released"} {
			for _, e := range events.Of(hook) {
				require.Equal(t, relock.KindSemaphore, e.Kind, hook)
				require.Contains(t, []string{p.ID(), g.permit.ID()}, e.Owner)
				require.Equal(t, key, e.Name)
			}
		}
		for _, hook := range []string{"contended", "acquired", "released"} {
			for _, e := range events.Of(hook) {
				require.Equal(t, 2, e.Weight, hook)
			}
		}
	})
}

// A deployment that changes the limit needs no migration.
func TestSemaphore_EachVersionKeepsItsOwnLimit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		key := redistest.Key(t)
		before, after := locksOn(t, b.Client(t)).Semaphore(key, 2), locksOn(t, b.Client(t)).Semaphore(key, 4)
		var permits []*relock.Permit
		for range 2 {
			permits = append(permits, acquired(t, before, 1))
		}
		_, ok, err := before.TryAcquire(t.Context())
		require.NoError(t, err)
		require.False(t, ok)
		for range 2 {
			permits = append(permits, acquired(t, after, 1))
		}
		waiting := acquiring(t.Context(), before, 1)
		awaitWaiting(t, after, 1)
		for i, p := range permits {
			requirePermits(t, after, 4-i, 1)
			require.NoError(t, p.Release())
			if i == 2 {
				break
			}
		}
		g := redistest.Receive(t, waiting)
		require.NoError(t, g.err, "one is left")
		requirePermits(t, after, 2, 0)
		require.NoError(t, g.permit.Release())
		require.NoError(t, permits[3].Release())
	})
}

// WithLinger is for locks: a permit never lingers.
func TestSemaphore_AsyncReleaseReturnsBeforeRedisAndNothingLingers(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		c, name := locksOn(t, rdb), redistest.Key(t)
		sem, other := c.Semaphore(name, 1, relock.WithAsyncUnlock(), relock.WithLinger(time.Second)), locksOn(t, b.Client(t)).Semaphore(name, 1)
		blocked := relay.Block(redistest.Script(protocol.PermitReleaseScript.Source())).Always()
		t.Cleanup(blocked.Release)
		p := acquired(t, sem, 1)
		ctx := p.Context(t.Context())
		require.NoError(t, p.Release())
		require.ErrorIs(t, context.Cause(ctx), relock.ErrReleased)
		require.ErrorIs(t, p.Release(), relock.ErrNotHeld)
		blocked.Wait(t)
		requirePermits(t, other, 1, 0)
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		locktest.GoesOn(t, closed)
		blocked.Release()
		require.NoError(t, redistest.Receive(t, closed), "Close waits for the releases")
		require.NoError(t, acquired(t, other, 1).Release())
		requireNoKeys(t, b.Client(t), name)
	})
}
