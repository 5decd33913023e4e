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
	"github.com/relock-go/relock/internal/redisexec"
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

func TestSemaphore_InvalidUseIsAnErrorBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		c := locksOn(t, rdb)
		for name, s := range map[string]*relock.Semaphore{
			"limit 0":     c.Semaphore("s", 0),
			"limit -1":    c.Semaphore("s", -1),
			"limit 10001": c.Semaphore("s", 10_001),
			"WithOwner":   c.Semaphore("s", 1, relock.WithOwner("job")),
			"OwnerFrom":   c.Semaphore("s", 1, relock.WithOwnerFrom(relock.NewOwner(t.Context()))),
			"Fencing":     c.Semaphore("s", 1, relock.WithFencing()),
			"shared":      c.Semaphore("s", 1, relock.WithSharedFencing()),
			"reentrancy":  c.Semaphore("s", 1, relock.WithoutReentrancy()),
		} {
			for call, err := range callsOf(t, s) {
				require.ErrorIs(t, err, relock.ErrInvalidOption, "%s: %s", name, call)
			}
		}
		for call, err := range callsOf(t, c.Semaphore("", 1)) {
			require.ErrorIs(t, err, relock.ErrInvalidName, call)
		}
		s := c.Semaphore("s", 3)
		for _, weight := range []int{0, -1, 4} {
			_, err := s.AcquireN(t.Context(), weight)
			require.ErrorIs(t, err, relock.ErrInvalidOption)
			require.ErrorContains(t, err, fmt.Sprint("weight ", weight))
		}
		var none context.Context
		_, err := s.Acquire(none)
		require.ErrorIs(t, err, relock.ErrInvalidOption)
		require.Zero(t, relay.Count(redistest.Scripts))

		quorum, err := relock.NewQuorum([]redis.UniversalClient{b.Client(t)})
		require.NoError(t, err)
		defer quorum.Close()
		for call, err := range callsOf(t, quorum.Semaphore("s", 1)) {
			require.ErrorIs(t, err, relock.ErrUnsupported, call)
		}
	})
}

func TestSemaphore_OptionsOfAClientForItsLocksDoNotApply(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		rdb := b.Client(t)
		c := locksOn(t, rdb, relock.WithSharedFencing(), relock.WithoutReentrancy())
		require.NoError(t, c.Semaphore("s", 2).Do(t.Context(), func(context.Context) error { return nil }))
		require.Empty(t, rdb.Keys(t.Context(), "*").Val())
	})
}

// callsOf are the errors of the calls of s, by their names.
func callsOf(t *testing.T, s *relock.Semaphore) map[string]error {
	errs := make(map[string]error)
	_, errs["Acquire"] = s.Acquire(t.Context())
	_, errs["AcquireN"] = s.AcquireN(t.Context(), 1)
	_, _, errs["TryAcquire"] = s.TryAcquire(t.Context())
	errs["Do"] = s.Do(t.Context(), func(context.Context) error { return nil })
	_, errs["State"] = s.State(t.Context())
	_, errs["ForceRelease"] = s.ForceRelease(t.Context(), "x")
	return errs
}

func TestSemaphore_LockOfTheSameNameIsRefused(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		s, m := c.Semaphore(key, 2), c.Mutex(key)
		p := acquired(t, s, 1)
		for _, lock := range []locktest.Mutex{m, c.FairMutex(key), c.MultiMutex([]string{key, key + "b"}), c.RWMutex(key)} {
			require.ErrorIs(t, lock.Lock(t.Context()), relock.ErrInvalidName)
		}
		require.ErrorIs(t, c.RWMutex(key).RLock(t.Context()), relock.ErrInvalidName)
		requirePermits(t, s, 1, 0)
		require.NoError(t, p.Release())
		require.NoError(t, m.Lock(t.Context()))
		for call, err := range callsOf(t, s) {
			require.ErrorIs(t, err, relock.ErrInvalidName, call)
		}
		require.NoError(t, m.Unlock())
		require.Zero(t, rdb.Exists(t.Context(), key, key+"b").Val())
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
		blocked := relay.Block(redistest.Script(protocol.PermitReleaseScript.Source)).Always()
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

// The tests below are about leases, and run in the time of a bubble.

func TestSemaphore_PermitsAreRenewedTogether(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		relay.Latency(100 * time.Microsecond) // renewals that take no time may be answered one after the other
		s := locksOn(t, rdb, relock.WithTTL(3*time.Second)).Semaphore("s", 40)
		var permits []*relock.Permit
		for range 40 {
			permits = append(permits, acquired(t, s, 1))
		}
		time.Sleep(5 * time.Second)
		relay.ResetLog()
		time.Sleep(30 * time.Second)
		renewals := relay.Count(redistest.Script(protocol.PermitRenewScript.Source))
		require.Positive(t, renewals)
		require.LessOrEqual(t, renewals, 40*30/8, "one by one they would be 40 in each second")
		requirePermits(t, s, 40, 0)
		for _, p := range permits {
			require.NoError(t, p.Release())
		}
	})
}

// P-S2 and P-S3: of a process that is cut off, the loss is known there before the share is given away, which is within one
// TTL, and the waiters elsewhere poll no faster than others.
func TestSemaphore_ShareOfACutOffProcessComesBackWithinItsTTL(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		dies := locksOn(t, rdb, relock.WithTTL(ttl)).Semaphore("s", 2)
		p := acquired(t, dies, 2)
		ended := make(chan time.Time, 1)
		context.AfterFunc(p.Context(t.Context()), func() { ended <- time.Now() })
		theirs, others := locktest.RelayedTo(t, b)
		s := locksOn(t, others, relock.WithTTL(ttl)).Semaphore("s", 2)
		first, second := acquiring(t.Context(), s, 1), acquiring(t.Context(), s, 1)
		awaitWaiting(t, s, 2)
		theirs.ResetLog()
		cut := time.Now()
		relay.BlackHole(true)
		for _, waiting := range []<-chan granted{first, second} {
			g := redistest.Receive(t, waiting)
			require.NoError(t, g.err)
			require.NoError(t, g.permit.Context(t.Context()).Err())
			defer func() { require.NoError(t, g.permit.Release()) }()
		}
		now := time.Now()
		lost := redistest.Receive(t, ended)
		require.True(t, lost.Before(now), "lost at %v, given away at %v", lost, now)
		require.LessOrEqual(t, now.Sub(cut), ttl+20*time.Millisecond)
		require.LessOrEqual(t, theirs.Count(redistest.Script(protocol.PermitPollScript.Source)), 9)
		relay.BlackHole(false)
		require.ErrorIs(t, p.Release(), relock.ErrLost)
	})
}

func TestSemaphore_WithoutRenewalEndsWithTheLease(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		s := locksOn(t, b.Client(t)).Semaphore("s", 1, relock.WithTTL(time.Second), relock.WithoutRenewal())
		p := acquired(t, s, 1)
		ctx := p.Context(t.Context())
		q := acquired(t, s, 1)
		require.ErrorIs(t, context.Cause(ctx), relock.ErrLost)
		require.NoError(t, q.Context(t.Context()).Err())
		require.ErrorIs(t, p.Release(), relock.ErrLost)
		require.NoError(t, q.Release())
	})
}

// A permit that was granted in line has the short lease of its entry at first.
func TestSemaphore_PermitOfAWaiterGetsItsWholeLease(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts  []relock.MutexOption
		keeps time.Duration
	}{
		"renewed":        {nil, time.Hour},
		"WithoutRenewal": {[]relock.MutexOption{relock.WithoutRenewal()}, 50 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
				s := locksOn(t, b.Client(t), relock.WithTTL(time.Minute)).Semaphore("s", 2, c.opts...)
				p := acquired(t, s, 2)
				waiting := acquiring(t.Context(), s, 2)
				awaitWaiting(t, s, 1)
				require.NoError(t, p.Release())
				g := redistest.Receive(t, waiting)
				require.NoError(t, g.err)
				time.Sleep(10 * time.Second)
				state, err := s.State(t.Context())
				require.NoError(t, err)
				require.Greater(t, state.Permits[0].TTL, 45*time.Second)
				time.Sleep(c.keeps - 10*time.Second)
				require.NoError(t, g.permit.Context(t.Context()).Err())
				require.NoError(t, g.permit.Release())
			})
		})
	}
}

// At most so many begin in each min hold, however short each of them is.
func TestSemaphore_MinHoldLimitsTheRate(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		const limit, period = 3, time.Minute
		rdb := b.Client(t)
		var mu sync.Mutex
		var starts []time.Time
		var all sync.WaitGroup
		for range 2 {
			s := locksOn(t, b.Client(t)).Semaphore("s", limit, relock.WithMinHold(period))
			for range 3 {
				all.Go(func() {
					for range 3 {
						if err := s.Do(context.Background(), func(context.Context) error {
							mu.Lock()
							defer mu.Unlock()
							starts = append(starts, time.Now())
							return nil
						}); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		all.Wait()
		require.Len(t, starts, 18)
		for i := range len(starts) - limit {
			require.GreaterOrEqual(t, starts[i+limit].Sub(starts[i]), period-time.Millisecond)
		}
		require.Less(t, starts[17].Sub(starts[0]), 5*period+100*time.Millisecond, "none is wasted")
		require.NotEmpty(t, rdb.ZRange(t.Context(), "s", 0, -1).Val())
		time.Sleep(period)
		requireNoKeys(t, rdb, "s")
	})
}

// A release with a min hold frees no share, and its end is no script: without a word, the waiters of other processes would
// find it free at their next poll only.
func TestSemaphore_MinHoldDelaysNoWaiterBeyondItsEnd(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		const limit, reserved = 4, 20 * time.Millisecond
		rdb := b.Client(t)
		one, other := locksOn(t, rdb).Semaphore("s", limit, relock.WithMinHold(reserved)), locksOn(t, b.Client(t)).Semaphore("s", limit)
		for _, weight := range []int{1, 3} {
			began := time.Now()
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() { useUp(t, one, limit) })
			}
			for i := range 12 {
				all.Go(func() { useUp(t, other, 1+i%weight) })
			}
			all.Wait()
			require.Less(t, time.Since(began), 5*reserved)
			time.Sleep(time.Second)
		}
	})
}

// The permit's own lease must not keep its key, when the reservation that replaced it is over.
func TestSemaphore_KeyGoesWithTheMinHold(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		rdb := b.Client(t)
		s := locksOn(t, rdb).Semaphore("s", 4, relock.WithMinHold(20*time.Millisecond))
		useUp(t, s, 3)
		require.LessOrEqual(t, rdb.PTTL(t.Context(), "s").Val(), 20*time.Millisecond)
	})
}

// useUp acquires a permit and releases it.
func useUp(t *testing.T, s *relock.Semaphore, n int) {
	p, err := s.AcquireN(context.Background(), n)
	if err != nil {
		t.Error(err)
		return
	}
	if err := p.Release(); err != nil {
		t.Error(err)
	}
}

// P-S3 for waiters: a process that was killed while its waiter was first in line.
func TestSemaphore_WaiterOfADeadProcessKeepsNoOneWaiting(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		s := locksOn(t, b.Client(t)).Semaphore("s", 2)
		p := acquired(t, s, 2)
		relay, rdb := locktest.RelayedTo(t, b)
		dead := acquiring(t.Context(), locksOn(t, rdb).Semaphore("s", 2), 2)
		awaitWaiting(t, s, 1)
		time.Sleep(10 * time.Second) // it is subscribed, and Redis knows that
		waiting := acquiring(t.Context(), s, 1)
		awaitWaiting(t, s, 2)
		require.NoError(t, relay.Refuse(true))
		relay.Cut()
		time.Sleep(time.Millisecond)
		began := time.Now()
		require.NoError(t, p.Release())
		g := redistest.Receive(t, waiting)
		require.NoError(t, g.err)
		require.Less(t, time.Since(began), 100*time.Millisecond)

		require.NoError(t, relay.Refuse(false))
		time.Sleep(10 * time.Second)
		require.NoError(t, g.permit.Release())
		g = redistest.Receive(t, dead)
		require.NoError(t, g.err, "it comes back in time")
		require.NoError(t, g.permit.Release())
	})
}

// permitScripts are those whose replies the tests lose.
var permitScripts = map[string]*redisexec.Script{
	"acquire": protocol.PermitAcquireScript, "poll": protocol.PermitPollScript, "release": protocol.PermitReleaseScript, "renew": protocol.PermitRenewScript,
}

// Whatever reply is lost, no more than the limit is in use, all are served, and nothing is left.
func TestSemaphore_LostRepliesOverfillNothing(t *testing.T) {
	redistest.Slow(t)
	for name, script := range permitScripts {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // beside each other only: they keep the processors busy
			redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
				relay, rdb := locktest.RelayedTo(t, b)
				s := locksOn(t, rdb, relock.WithTTL(6*time.Second)).Semaphore("s", 3)
				other := locksOn(t, b.Client(t), relock.WithTTL(6*time.Second)).Semaphore("s", 3)
				n := 0
				relay.LoseReply(func(c redistest.Command) bool {
					if !redistest.Script(script.Source)(c) {
						return false
					}
					n++
					return n%3 == 1
				}).Always()
				var u usage
				var all sync.WaitGroup
				var served atomic.Int64
				for i := range 12 {
					of := s
					if i%2 == 1 {
						of = other
					}
					all.Go(func() {
						for range 4 {
							p, err := of.AcquireN(context.Background(), 1+i%3)
							if err != nil {
								continue // of a request without an answer, which is documented
							}
							served.Add(1)
							ctx := p.Context(context.Background())
							u.begin(p.Weight())
							select {
							case <-time.After(2500 * time.Millisecond):
							case <-ctx.Done():
							}
							u.end(p.Weight())
							_ = p.Release()
						}
					})
				}
				all.Wait()
				require.LessOrEqual(t, u.most.Load(), int64(3))
				require.GreaterOrEqual(t, served.Load(), int64(24))
				time.Sleep(10 * time.Second)
				requireNoKeys(t, b.Client(t), "s")
			})
		})
	}
}

// P-S5. On a machine that stalls, a waiter polls now and then, which is a script more.
func TestSemaphore_FreePermitCostsTwoCommands(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		s := locksOn(t, rdb).Semaphore("s", 4)
		for range 50 {
			p := acquired(t, s, 1)
			require.NoError(t, p.Release())
		}
		require.Equal(t, 100, relay.Count(redistest.Scripts))
	})
}

func TestSemaphore_ContendedPermitCostsTwoCommands(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	for _, waiters := range []int{8, 64, 512} {
		t.Run(fmt.Sprint(waiters), func(t *testing.T) {
			redistest.Eventually(t, "two commands for a permit", func() bool {
				cost := commandsPerPermit(t, waiters)
				t.Logf("%d waiters: %.3f commands per permit", waiters, cost)
				return cost <= 2.05
			})
		})
	}
}

// commandsPerPermit has waiters, of 8 processes, share 4 permits.
func commandsPerPermit(t *testing.T, waiters int) float64 {
	t.Helper()
	relay, _ := locktest.RelayedTo(t, redistest.Redis(t))
	key := redistest.Key(t)
	var handles []*relock.Semaphore
	for range 8 {
		rdb := redis.NewClient(redistest.Options(relay.Addr))
		t.Cleanup(func() { _ = rdb.Close() })
		handles = append(handles, locksOn(t, rdb).Semaphore(key, 4))
	}
	rounds := max(4, 2400/waiters)
	var all sync.WaitGroup
	for i := range waiters {
		all.Go(func() {
			for range rounds {
				p, err := handles[i%8].Acquire(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				if err := p.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	return float64(relay.Count(redistest.Scripts)) / float64(rounds*waiters)
}
