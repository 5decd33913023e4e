package relock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// holdOf returns the hold that m's owner has on m's first key.
func holdOf(m *Mutex) *hold {
	return m.session.registry.find(gateID{m.target.Keys[0], m.target.Side}, m.owner())
}

// testClock is the system's, with a wall clock that can be set.
type testClock struct{ step atomic.Int64 }

func (c *testClock) now() clock.Instant {
	now := clock.System()
	now.Wall += time.Duration(c.step.Load())
	return now
}

func (c *testClock) set(d time.Duration) { c.step.Add(int64(d)) }

// A release or undo of a lost hold is sent to its name at any time: nobody may be able to
// acquire under that name again by the time the loss can be seen.
func TestHold_LostNameIsRetiredBeforeTheLossShows(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	c := LocksOn(t, redistest.Mini(t).Client(t))
	for range 200 {
		m := c.Mutex(redistest.Key(t), WithOwner("job"))
		require.NoError(t, m.Lock(t.Context()))
		h := holdOf(m)
		h.mu.Lock()
		changed := h.changes()
		h.mu.Unlock()
		go h.lose(errForced)
		<-changed
		h.mu.Lock()
		same := h.name.Identity == c.session.identities.Current()
		h.mu.Unlock()
		require.False(t, same)
		require.ErrorIs(t, m.Unlock(), ErrLost)
	}
}

// A waiter that was offered the lock under a name, and has left in doubt about it, may be
// the next in the queue again.
func TestHold_HandOverUsesAnIdentityNoOlderThanTheEntry(t *testing.T) {
	c := LocksOn(t, redistest.Mini(t).Client(t))
	key := redistest.Key(t)
	m := c.Mutex(key, WithOwner("first"), WithoutRenewal())
	require.NoError(t, m.Lock(t.Context()))
	h := holdOf(m)

	stale := c.session.identities.Current()
	c.session.identities.Retire(stale)
	waiter := newHold(c.session, m.kind, keys.Owner{Fixed: "second"}, m.target, &m.settings, true)
	require.True(t, waiter.register())
	require.False(t, waiter.queueEntries[0].ticket.Join())
	next, _ := h.successor(16, true)
	require.Same(t, waiter, next.Value)
	require.Same(t, c.session.identities.Current(), next.Value.offered.identity)
	waiter.leave()
	waiter.unregister()
	require.NoError(t, m.Unlock())
}

func TestHold_WallClockSetBackHidesNoSuspension(t *testing.T) {
	clock := &testClock{}
	s := defaultSettings()
	s.settings = resolved(s.settings, nil)
	c := newClient(redistest.Mini(t).Client(t), s, clock.now)
	defer c.Close()
	m := c.Mutex(redistest.Key(t), WithTTL(time.Minute), WithRenewInterval(10*time.Millisecond))
	require.NoError(t, m.Lock(t.Context()))
	clock.set(-time.Hour)
	h := holdOf(m)
	renewed := c.session.now()
	require.Eventually(t, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return sentAt(h.lease.Deadline(), time.Minute).Mono > renewed.Mono
	}, 10*time.Second, time.Millisecond)
	clock.set(30 * time.Minute) // the machine sleeps: only the wall clock goes on
	require.Zero(t, m.HoldCount())
	require.ErrorIs(t, m.Unlock(), ErrLost)
}

func TestHold_EveryContextChecksTheClocks(t *testing.T) {
	for name, use := range map[string]func(outer, inner *Mutex, look func(context.Context)){
		"Do": func(outer, _ *Mutex, look func(context.Context)) {
			_ = outer.Do(context.Background(), func(ctx context.Context) error { look(ctx); return nil })
		},
		"Do inside Do": func(outer, inner *Mutex, look func(context.Context)) {
			_ = outer.Do(context.Background(), func(ctx context.Context) error {
				return inner.Do(ctx, func(ctx context.Context) error { look(ctx); return nil })
			})
		},
		"Context of Context": func(outer, inner *Mutex, look func(context.Context)) {
			_, _ = outer.Lock(context.Background()), inner.Lock(context.Background())
			look(inner.Context(outer.Context(context.Background())))
			_, _ = inner.Unlock(), outer.Unlock()
		},
	} {
		t.Run(name, func(t *testing.T) {
			clock := &testClock{}
			s := defaultSettings()
			s.settings = resolved(s.settings, nil)
			c := newClient(redistest.Mini(t).Client(t), s, clock.now)
			defer c.Close()
			outer := c.Mutex(redistest.Key(t), WithTTL(time.Minute))
			inner := c.Mutex(redistest.Key(t)+"2", WithTTL(time.Hour))
			use(outer, inner, func(ctx context.Context) {
				require.NoError(t, ctx.Err())
				clock.set(10 * time.Minute)
				require.Error(t, ctx.Err())
				require.ErrorIs(t, context.Cause(ctx), ErrLost)
			})
		})
	}
}

func TestContext_OfAnOwnerThatOnlyWaitsIsNotHeld(t *testing.T) {
	c := LocksOn(t, redistest.Mini(t).Client(t))
	key := redistest.Key(t)
	other := c.Mutex(key, WithOwner("other"))
	require.NoError(t, other.Lock(t.Context()))
	m := c.Mutex(key, WithOwner("job"))
	done := make(chan error)
	go func() { done <- m.Lock(context.Background()) }()
	require.Eventually(t, func() bool { return holdOf(m) != nil }, 10*time.Second, time.Millisecond)
	ctx := m.Context(t.Context())
	require.Error(t, ctx.Err())
	require.ErrorIs(t, context.Cause(ctx), ErrNotHeld)
	require.NoError(t, other.Unlock())
	require.NoError(t, <-done)
	require.NoError(t, m.Unlock())
}

// A waiter that leaves while the lock is being handed to it never had it.
func TestHold_GrantForAWaiterThatLeftIsNoHold(t *testing.T) {
	b := redistest.Mini(t)
	relay := redistest.NewRelay(t, b.Addr)
	released := make(chan Event, 8)
	c := LocksOn(t, redistest.NewClient(t, relay.Addr), WithHooks(Hooks{
		Released: func(e Event) { released <- e },
	}))
	key := redistest.Key(t)
	m, second, third := c.Mutex(key, WithOwner("a")), c.Mutex(key, WithOwner("b"), WithFencing()), c.Mutex(key, WithOwner("c"))
	require.NoError(t, m.Lock(t.Context()))
	first := holdOf(m)

	handoff := relay.Block(redistest.Script(protocol.RenameScript.Source()))
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() { left <- second.Lock(ctx) }()
	require.Eventually(t, func() bool {
		_, waiting := first.queueEntries[0].queue.Handoffs()
		return waiting
	}, 10*time.Second, time.Millisecond)
	unlocked := make(chan error)
	go func() { unlocked <- m.Unlock() }()
	handoff.Wait(t)
	leave()
	require.ErrorIs(t, <-left, context.Canceled)
	require.Eventually(t, func() bool { return holdOf(second) == nil }, 10*time.Second, time.Millisecond)
	handoff.Release()
	require.NoError(t, <-unlocked)
	require.Less(t, (<-released).Elapsed, time.Hour)

	require.NoError(t, third.Lock(t.Context()))
	require.NoError(t, third.Unlock())
	e := <-released
	require.Contains(t, e.Owner, ":c")
	require.Less(t, e.Elapsed, time.Hour)
}

func TestOwner_ALockBehindAnotherThatWasGivenUpDoesNotReenter(t *testing.T) {
	c := LocksOn(t, redistest.Mini(t).Client(t))
	key := redistest.Key(t)
	other := c.Mutex(key, WithOwner("other"))
	require.NoError(t, other.Lock(t.Context()))
	m := c.Mutex(key, WithOwner("job"), WithoutReentrancy())

	ctx, leave := context.WithCancel(t.Context())
	first, second := make(chan error), make(chan error)
	go func() { first <- m.Lock(ctx) }()
	redistest.Eventually(t, "the first waits", func() bool { return holdOf(m) != nil })
	go func() { second <- m.Lock(context.Background()) }()
	redistest.Eventually(t, "the second is behind it", func() bool {
		h := holdOf(m)
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.changed != nil
	})
	leave()
	require.ErrorIs(t, <-first, context.Canceled)
	require.NoError(t, other.Unlock())
	require.NoError(t, <-second)
	require.ErrorIs(t, m.Lock(t.Context()), ErrReentrant)
	require.NoError(t, m.Unlock())
}

func TestUndo_IsTriedForTheLongestLease(t *testing.T) {
	t.Parallel()
	b := redistest.Mini(t)
	relay := redistest.NewRelay(t, b.Addr)
	c := LocksOn(t, redistest.NewClient(t, relay.Addr))
	key := redistest.Key(t)
	short, long := c.Mutex(key, WithTTL(2*time.Second)), c.Mutex(key, WithTTL(time.Minute))
	hasty := c.Mutex(key, WithTTL(2*time.Second), WithUnlockTimeout(200*time.Millisecond))
	require.NoError(t, short.Lock(t.Context()))
	require.NoError(t, long.Lock(t.Context()))
	require.NoError(t, short.Unlock())
	require.NoError(t, relay.Refuse(true))
	relay.Cut()
	require.Error(t, hasty.Unlock()) // the last open Lock
	pending := c.session.undos[0].Pending()
	require.Len(t, pending, 1)
	require.Greater(t, c.session.now().Until(pending[0].Until), 30*time.Second)
	require.NoError(t, relay.Refuse(false))
	rdb := b.Client(t)
	require.Eventually(t, func() bool {
		return rdb.Exists(t.Context(), key).Val() == 0
	}, 10*time.Second, time.Millisecond)
}

// The client's TTL is 30 s: what suits that is too patient for a handle with a short one.
func TestHold_LostReplyCostsAShortLeaseNothing(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay := redistest.NewRelay(t, b.Addr)
		c := LocksOn(t, redistest.NewClient(t, relay.Addr))
		for _, s := range []*redisexec.Script{protocol.ReenterScript, protocol.ReleaseScript, protocol.LineReleaseScript} {
			require.NoError(t, b.Client(t).ScriptLoad(t.Context(), s.Source()).Err())
		}
		var err error
		for range 3 { // on a machine that stalls such a lease is lost rightly
			if err = loseReplies(t, relay, c.Mutex(redistest.Key(t), WithTTL(800*time.Millisecond))); err == nil {
				return
			}
		}
		require.NoError(t, err)
	})
}

// loseReplies re-enters m and unlocks it, while each first reply is lost, and returns what failed.
func loseReplies(t *testing.T, relay *redistest.Relay, m *Mutex) error {
	if err := m.Lock(t.Context()); err != nil {
		return err
	}
	ctx := m.Context(t.Context())
	for _, step := range []struct {
		script *redisexec.Script
		run    func() error
	}{
		{protocol.ReenterScript, func() error { return m.Lock(t.Context()) }},
		{protocol.ReleaseScript, m.Unlock},
		{protocol.ReleaseScript, m.Unlock},
	} {
		lost := relay.LoseReply(locktest.RunsOf(step.script))
		if err := errors.Join(context.Cause(ctx), step.run()); err != nil {
			lost.Remove()
			return err
		}
		lost.Wait(t)
	}
	require.ErrorIs(t, context.Cause(ctx), ErrReleased)
	return nil
}

// BenchmarkRegistry is the way to a gate and back, by many goroutines with a name each,
// while many other names are in use.
func BenchmarkRegistry(b *testing.B) {
	for _, names := range []int{1, 10_000} {
		b.Run(fmt.Sprint(names), func(b *testing.B) {
			r := newRegistry(nil, clock.System)
			for i := range names {
				r.enter(gateID{key: fmt.Sprintf("other-%d", i)}, "channel", new(hold))
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				key, h := fmt.Sprintf("key-%p", pb), new(hold)
				for pb.Next() {
					r.exit(r.enter(gateID{key: key}, "channel", h), h)
				}
			})
		})
	}
}

func TestDo_DoesNotRunOnALostHold(t *testing.T) {
	c, clocks := LocksWithClock(t, redistest.Mini(t).Client(t))
	m := c.Mutex(redistest.Key(t), WithHooks(Hooks{Acquired: func(Event) { clocks.Set(time.Hour) }}))
	ran := false
	require.ErrorIs(t, m.Do(t.Context(), func(context.Context) error { ran = true; return nil }), ErrLost)
	require.False(t, ran)
}

func TestDo_DoesNotRunOnAHoldEndedByClose(t *testing.T) {
	c := LocksOn(t, redistest.Mini(t).Client(t))
	var m *Mutex
	m = c.Mutex(redistest.Key(t), WithHooks(Hooks{Acquired: func(Event) {
		go c.Close()
		redistest.Eventually(t, "the end of the hold", func() bool { return m.HoldCount() == 0 })
	}}))
	ran := false
	require.ErrorIs(t, m.Do(t.Context(), func(context.Context) error { ran = true; return nil }), ErrClosed)
	require.False(t, ran)
}

// severalErrors cannot be compared.
type severalErrors []error

func (s severalErrors) Error() string { return errors.Join(s...).Error() }

type oddContext struct{ context.Context }

func (oddContext) Err() error { return severalErrors{context.Canceled} }

func TestContext_MayEndWithAnIncomparableError(t *testing.T) {
	c := LocksOn(t, redistest.Mini(t).Client(t))
	require.ErrorContains(t, c.Mutex(redistest.Key(t)).Lock(oddContext{t.Context()}), "context canceled")
}

// That is what an errgroup makes of the first error.
func TestLost_CauseIsNotAnotherLocksError(t *testing.T) {
	b := redistest.Mini(t)
	c, key := LocksOn(t, b.Client(t)), redistest.Key(t)
	locktest.HeldByAnother(t, b.Client(t), key+"-held", time.Minute)
	ended, end := context.WithCancel(t.Context())
	end()
	for name, first := range map[string]error{
		"cancelled": c.Mutex(key).Lock(ended),
		"timed out": c.Mutex(key+"-held", WithWaitTimeout(20*time.Millisecond)).Lock(t.Context()),
	} {
		t.Run(name, func(t *testing.T) {
			group, cancel := context.WithCancelCause(t.Context())
			m := c.Mutex(key + "-held")
			waiting := locktest.NewActor(t).Lock(group, m)
			AwaitWaiters(t, c, m.Name(), 1)
			cancel(first)
			for _, err := range []error{locktest.OutcomeOf(t, waiting), c.Mutex(key).Lock(group)} {
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, err, first)
			}
		})
	}
}

func TestUnlock_OfAnOwnerThatOnlyWaitsIsNotHeld(t *testing.T) {
	b := redistest.Mini(t)
	rdb, key := b.Client(t), redistest.Key(t)
	locktest.HeldByAnother(t, rdb, key, time.Minute)
	c := LocksOn(t, rdb)
	m := c.Mutex(key, WithOwner("job"))
	ctx, cancel := context.WithCancel(t.Context())
	waiting := locktest.NewActor(t).Lock(ctx, m)
	AwaitWaiters(t, c, key, 1)
	err := m.Unlock()
	require.ErrorIs(t, err, ErrNotHeld)
	require.NotContains(t, err.Error(), "other names")
	cancel()
	require.ErrorIs(t, locktest.OutcomeOf(t, waiting), context.Canceled)
}

func TestHold_UnboundedDurationsAreUnderstood(t *testing.T) {
	c, clocks := LocksWithClock(t, redistest.Mini(t).Client(t))
	require.Equal(t, 5*time.Second, c.FairMutex("orders", WithSafetyPoll(math.MaxInt64)).settings.EntryLease())
	m := c.Mutex(redistest.Key(t), WithMaxHold(math.MaxInt64))
	locktest.RequireLocked(t, m)
	clocks.Set(-time.Second)
	h := holdsOn(c.session, m.Name())[0]
	require.NotZero(t, h.locks.renewInterval(c.session.now()))
	locktest.RequireUnlocked(t, m)
}

func TestHold_QuorumLeaseIsShorterByClockDrift(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	for _, ttl := range []time.Duration{protocol.MinTTL, time.Second, 30 * time.Second, time.Hour} {
		s, now := defaultSettings(), clock.System()
		WithTTL(ttl).applyToClient(&s)
		c := newQuorumClient(locktest.ClientsOf(t, redistest.Mini(t).Nodes(t, 3)), s, func() clock.Instant { return now })
		t.Cleanup(func() { _ = c.Close() })
		m := c.Mutex(redistest.Key(t))
		// A busy machine may not get, or not keep, the shortest lease: its end is what this is about.
		redistest.Eventually(t, "a grant", func() bool { return m.Lock(t.Context()) == nil })
		h := holdsOn(c.session, m.Name())[0]
		h.mu.Lock()
		valid := h.lease.Deadline().Since(now)
		h.mu.Unlock()
		require.LessOrEqual(t, valid, ttl-ttl/100-2*time.Millisecond)
		require.Greater(t, valid, ttl-ttl/50-10*time.Millisecond)
		_ = m.Unlock()
	}
}

// Programs have tens of thousands of holds. Go allocates in classes of size, and adds a header of 8 bytes to an object of
// more than 512 bytes that has pointers. Three words more would cost each hold 128 bytes, and two words each attempt 32.
func TestHold_FitsItsSizeClass(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(hold{})+8, uintptr(768))
	require.LessOrEqual(t, unsafe.Sizeof(attempt{}), uintptr(256))
}
