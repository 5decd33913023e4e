package relock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// Close ends what the Lock was to add to, and with that the wait.
func TestMultiOverlap_WaitForTheRestEndsOnceWithClose(t *testing.T) {
	eachPartly(t, func(b *partly) {
		var r chronicle
		locktest.HeldByAnother(b.t, b.rdb, b.names[1], time.Minute)
		me := locktest.NewActor(b.t)
		me.Locks(b.t, b.one())
		locked := me.Lock(b.t.Context(), b.both(WithHooks(r.Hooks())))
		redistest.Eventually(b.t, "a wait", func() bool { return len(r.Of("contended")) == 1 })
		require.NoError(b.t, b.c.Close())
		require.ErrorIs(b.t, locktest.OutcomeOf(b.t, locked), ErrClosed)
		require.Len(b.t, r.All(), 2)
		require.True(b.t, r.Of("failed")[0].Waited)
		require.ErrorIs(b.t, r.Of("failed")[0].Err, ErrClosed)
	})
}

// goroutinesOf counts the goroutines that c runs besides the one that watches the clocks.
func goroutinesOf(c *Client) int {
	return c.session.goroutines.Len() - 1
}

// Every set overlaps every other, in a circle, and the names have no agreed order.
func TestMultiOverlap_ManyProcessesDoNotDeadlock(t *testing.T) {
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		const rounds = 12
		rdb, names := b.Client(t), locktest.NamesFrom(redistest.Key(t), 3)
		sets := [][]string{
			{names[0], names[1]}, {names[1], names[0]}, {names[1], names[2]}, {names[2], names[0]},
			{names[2], names[1], names[0]}, {names[1]},
		}
		var inside [3]int // not atomic: who holds the name is alone with it
		index := map[string]int{names[0]: 0, names[1]: 1, names[2]: 2}
		ctx, cancel := context.WithTimeout(t.Context(), 2*locktest.SoonEnough)
		defer cancel()
		var all sync.WaitGroup
		for range 3 {
			c := LocksOn(t, b.Client(t))
			for _, set := range sets {
				all.Go(func() {
					m := c.MultiMutex(set)
					for done := 0; done < rounds && ctx.Err() == nil; {
						if rand.IntN(8) == 0 { // some give up, at any point
							brief, stop := context.WithTimeout(ctx, rand.N(3*time.Millisecond))
							if m.Lock(brief) == nil {
								_ = m.Unlock()
							}
							stop()
							continue
						}
						if err := m.Do(ctx, func(context.Context) error {
							for _, name := range set {
								inside[index[name]]++
							}
							return nil
						}); err != nil {
							t.Errorf("%v: %v", set, err)
							return
						}
						done++
					}
				})
			}
		}
		all.Wait()
		require.NoError(t, ctx.Err(), "they wait for each other")
		require.Equal(t, [3]int{4 * 3 * rounds, 5 * 3 * rounds, 3 * 3 * rounds}, inside)
		redistest.Eventually(t, "free", func() bool { return rdb.Exists(t.Context(), names...).Val() == 0 })
	})
}

// What is acquired in one step is one hold, however many levels its names have.
func TestMultiOverlap_OneWatchdogForAllNames(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		names, events := locktest.NamesFrom(redistest.Key(t), 5), &chronicle{}
		c := LocksOn(t, rdb, WithRenewInterval(30*time.Millisecond), WithHooks(events.Hooks()))
		steps := []struct {
			m     *Mutex
			holds int
		}{
			{c.MultiMutex(names[:3]), 1},
			{c.Mutex(names[0]), 1},
			{c.MultiMutex(names[1:]), 2}, // the two that were not held yet
			{c.MultiMutex(names), 2},
		}
		for _, s := range steps {
			locktest.RequireLocked(t, s.m)
			require.Len(t, c.session.registry.all(), s.holds)
			require.LessOrEqual(t, goroutinesOf(c), s.holds)
		}
		before := len(events.Of("renewed"))
		relay.ResetLog()
		// renewals are the renewals sent since then, by the number of their keys.
		renewals := func() map[string]int {
			keys := map[string]int{}
			for _, e := range relay.Log() {
				if locktest.RunsOf(protocol.RenewScript)(e.Command) {
					keys[e.Command.Arg(2)]++
				}
			}
			return keys
		}
		redistest.Eventually(t, "renewals of both", func() bool {
			keys := renewals()
			return len(events.Of("renewed")) >= before+6 && keys["3"] > 0 && keys["2"] > 0
		})
		require.Len(t, renewals(), 2)
		for _, s := range steps {
			locktest.RequireUnlocked(t, s.m)
		}
		redistest.Eventually(t, "no watchdog", func() bool { return goroutinesOf(c) == 0 })
		locktest.RequireFree(t, b.Client(t), names...)
	})
}

// Nested in different orders they can wait for each other: then a bound on the wait helps,
// and what was held already is kept.
func TestMultiOverlap_NestedOrdersEndWithTheirContext(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, names, me, you := b.Client(t), locktest.NamesFrom(redistest.Key(t), 2), locktest.NewActor(t), locktest.NewActor(t)
		mine, yours := LocksOn(t, rdb), LocksOn(t, rdb)
		me.Locks(t, mine.Mutex(names[0]))
		you.Locks(t, yours.Mutex(names[1]))
		bounded := mine.MultiMutex(names, WithWaitTimeout(locktest.AWhile))
		waiting := you.Lock(t.Context(), yours.MultiMutex(names))
		require.ErrorIs(t, me.Call(func() error { return bounded.Lock(t.Context()) }), ErrTimeout)
		locktest.GoesOn(t, waiting)
		me.Unlocks(t, mine.Mutex(names[0]))
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		require.Equal(t, "2", firstCount(locktest.OnRedis(t, rdb, names[1])))
		require.Equal(t, "1", firstCount(locktest.OnRedis(t, rdb, names[0])))
		you.Unlocks(t, yours.MultiMutex(names))
		you.Unlocks(t, yours.Mutex(names[1]))
		locktest.RequireFree(t, rdb, names...)
	})
}

// firstCount is the count of the only field of a lock's hash.
func firstCount(fields map[string]string) string {
	for _, count := range fields {
		return count
	}
	return ""
}

// partly is for locks of two names, and of the first of them.
type partly struct {
	t          *testing.T
	rdb        redis.UniversalClient
	relay      *redistest.Relay // of c
	c, rival   *Client
	names      []string
	both       func(opts ...MutexOption) *Mutex
	one        func(opts ...MutexOption) *Mutex
	rivalOfTwo *Mutex
}

func eachPartly(t *testing.T, fn func(b *partly), opts ...ClientOption) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, backend)
		b := &partly{t: t, rdb: backend.Client(t), relay: relay, c: LocksOn(t, rdb, opts...)}
		key := redistest.Key(t)
		b.names = []string{key + "-1", key + "-2"}
		b.rival = LocksOn(t, b.rdb)
		b.both = func(opts ...MutexOption) *Mutex { return b.c.MultiMutex(b.names, opts...) }
		b.one = func(opts ...MutexOption) *Mutex { return b.c.Mutex(b.names[0], opts...) }
		b.rivalOfTwo = b.rival.Mutex(b.names[1])
		fn(b)
	})
}

// waitForBoth has an actor hold the first name, and wait for both until ctx ends: another client has
// the second one.
func (b *partly) waitForBoth(ctx context.Context) (me *locktest.Actor, waiting <-chan error) {
	b.t.Helper()
	locktest.HeldByAnother(b.t, b.rdb, b.names[1], time.Minute)
	me = locktest.NewActor(b.t)
	me.Locks(b.t, b.one())
	waiting = me.Lock(ctx, b.both())
	AwaitWaiters(b.t, b.c, b.names[1], 1)
	return me, waiting
}

// The hold of the second name is being released when the first one is locked again.
func TestMultiOverlap_ReentryWritesNoZeroCount(t *testing.T) {
	eachPartly(t, func(b *partly) {
		both, one := b.both(WithOwner("job")), b.one(WithOwner("job"))
		locktest.RequireLocked(b.t, both)
		locktest.RequireLocked(b.t, one)
		h := holdsOn(b.c.session, b.names[0])[0]
		require.True(b.t, h.slot.take(b.t.Context())) // as a renewal does
		first, second := locktest.NewActor(b.t), locktest.NewActor(b.t)
		id := first.ID()
		locked := first.Lock(b.t.Context(), one)
		redistest.Eventually(b.t, "the re-entry waits", func() bool { return isIn(id, "(*slot).take") })
		unlocked := make(chan error, 1)
		go func() { unlocked <- second.Call(both.Unlock) }()
		redistest.Eventually(b.t, "the level is taken away", func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return len(h.locks.open) == 1
		})
		result := make(chan error, 1)
		b.relay.After(locktest.RunsOf(protocol.ReenterScript), func(redistest.Command, string) {
			_, err := b.rivalOfTwo.TryLock(context.Background())
			result <- err
		})
		h.slot.free()
		require.NoError(b.t, locktest.OutcomeOf(b.t, locked))
		require.NoError(b.t, redistest.Receive(b.t, unlocked))
		require.NoError(b.t, redistest.Receive(b.t, result), "another process asks for the second name")
		locktest.RequireUnlocked(b.t, one)
		locktest.RequireUnlocked(b.t, one)
	})
}

// isIn reports whether a goroutine is in a function, or in one that was called from there.
func isIn(id int64, function string) bool {
	all := make([]byte, 8<<20)
	for stack := range strings.SplitSeq(string(all[:runtime.Stack(all, true)]), "\n\n") {
		if strings.HasPrefix(stack, fmt.Sprintf("goroutine %d ", id)) {
			return strings.Contains(stack, function)
		}
	}
	return false
}

func TestMultiOverlap_ContextEndsWithItsNames(t *testing.T) {
	eachPartly(t, func(b *partly) {
		one, two, both := b.one(), b.c.Mutex(b.names[1]), b.both()
		locktest.RequireLocked(b.t, both)
		locktest.RequireLocked(b.t, one)
		ctxs := []context.Context{both.Context(b.t.Context()), two.Context(b.t.Context())}
		ofOne := one.Context(b.t.Context())
		locktest.RequireUnlocked(b.t, both)
		for _, ctx := range ctxs {
			require.ErrorIs(b.t, context.Cause(ctx), ErrReleased)
		}
		require.ErrorIs(b.t, context.Cause(two.Context(b.t.Context())), ErrNotHeld)
		require.NoError(b.t, ofOne.Err())
		locktest.RequireUnlocked(b.t, one)
	})
}

func TestMultiOverlap_TokenIsThatOfAllNamesOrNone(t *testing.T) {
	eachPartly(t, func(b *partly) {
		one, both := b.one(WithFencing()), b.both(WithFencing())
		locktest.RequireLocked(b.t, one)
		require.NotZero(b.t, one.FencingToken())
		require.Zero(b.t, both.FencingToken())
		locktest.RequireUnlocked(b.t, one)
	})
}

func TestMultiOverlap_LockOfPartlyHeldNamesEndsWithItsContext(t *testing.T) {
	redistest.Slow(t)
	eachPartly(t, func(b *partly) {
		ctx, cancel := context.WithCancel(b.t.Context())
		defer cancel()
		me, waiting := b.waitForBoth(ctx)
		b.relay.BlackHole(true)
		began := time.Now()
		cancel()
		require.ErrorIs(b.t, locktest.OutcomeOf(b.t, waiting), context.Canceled)
		require.Less(b.t, time.Since(began), time.Second)
		b.relay.BlackHole(false)
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.names[1]).Err())
		_ = me.Call(b.one().Unlock) // Redis may just have been silent for too long
	})
}

func TestMultiOverlap_WaitForTheRestEndsWithALoss(t *testing.T) {
	eachPartly(t, func(b *partly) {
		me, waiting := b.waitForBoth(b.t.Context())
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.names[0]).Err())
		require.ErrorIs(b.t, locktest.OutcomeOf(b.t, waiting), ErrLost)
		require.ErrorIs(b.t, me.Call(b.one().Unlock), ErrLost)
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.names[1]).Err())
	}, WithRenewInterval(20*time.Millisecond))
}

func TestMultiOverlap_DoOfPartlyHeldNamesLeavesNoContexts(t *testing.T) {
	eachPartly(t, func(b *partly) {
		one, both := b.one(), b.both()
		locktest.RequireLocked(b.t, one)
		for range 10 {
			require.NoError(b.t, both.Do(b.t.Context(), func(context.Context) error { return nil }))
		}
		h := holdsOn(b.c.session, b.names[0])[0]
		redistest.Eventually(b.t, "no contexts", func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.contexts.len() == 0
		})
		locktest.RequireUnlocked(b.t, one)
	})
}

func TestMultiOverlap_WaiterForTheRestDoesNotHoldAllNames(t *testing.T) {
	eachPartly(t, func(b *partly) {
		one, both := b.one(WithFencing(), WithOwner("job")), b.both(WithFencing(), WithOwner("job"))
		locktest.RequireLocked(b.t, one)
		locktest.HeldByAnother(b.t, b.rdb, b.names[1], time.Minute)
		waiting := locktest.NewActor(b.t).Lock(b.t.Context(), both)
		AwaitWaiters(b.t, b.c, b.names[1], 1)
		require.Zero(b.t, both.FencingToken())
		require.Zero(b.t, both.HoldCount())
		for range 10 {
			require.ErrorIs(b.t, context.Cause(both.Context(b.t.Context())), ErrNotHeld)
		}
		h := holdsOn(b.c.session, b.names[0])[0]
		redistest.Eventually(b.t, "no contexts but the waiter's", func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.contexts.len() == 1
		})
		require.ErrorIs(b.t, both.Unlock(), ErrNotHeld, "by the owner that waits")
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.names[1]).Err())
		locktest.Publishes(b.t, b.rdb, b.names[1])
		require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
		locktest.RequireUnlocked(b.t, one)
		require.False(b.t, locktest.NewActor(b.t).Tries(b.t, b.rival.Mutex(b.names[0])), "both are held")
		locktest.RequireUnlocked(b.t, both)
	})
}

// Hand over hand: of all holds but the last nothing is kept.
func TestMultiOverlap_HoldDoesNotKeepEarlierOnes(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	for name, opts := range map[string][]MutexOption{"goroutine": nil, "owner": {WithOwner("job")}} {
		t.Run(name, func(t *testing.T) {
			c, key := LocksOn(t, redistest.Mini(t).Client(t)), redistest.Key(t)
			link := func(i int) string { return fmt.Sprintf("%s-%d", key, i) }
			locktest.RequireLocked(t, c.Mutex(link(0), opts...))
			const links = 20
			holds := []weak.Pointer[hold]{weak.Make(holdsOn(c.session, link(0))[0])}
			for i := range links {
				both := c.MultiMutex([]string{link(i), link(i + 1)}, opts...)
				locktest.RequireLocked(t, both)
				locktest.RequireLocked(t, c.Mutex(link(i+1), opts...))
				locktest.RequireUnlocked(t, both)
				locktest.RequireUnlocked(t, c.Mutex(link(i), opts...))
				holds = append(holds, weak.Make(holdsOn(c.session, link(i+1))[0]))
			}
			redistest.Eventually(t, "the garbage is collected", func() bool {
				runtime.GC()
				kept := 0
				for _, h := range holds {
					if h.Value() != nil {
						kept++
					}
				}
				return kept <= 3
			})
			locktest.RequireUnlocked(t, c.Mutex(link(links), opts...))
		})
	}
}

func TestMultiOverlap_DeadlineIsTheEarliestOfAllNames(t *testing.T) {
	eachPartly(t, func(b *partly) {
		one, two, both := b.one(WithTTL(time.Hour)), b.c.Mutex(b.names[1], WithTTL(time.Minute)), b.both()
		locktest.RequireLocked(b.t, one)
		_, held := both.Deadline()
		require.False(b.t, held, "one name is not held")
		locktest.RequireLocked(b.t, two)
		want, _ := two.Deadline()
		at, held := both.Deadline()
		require.True(b.t, held)
		require.WithinDuration(b.t, want, at, time.Second)
		locktest.RequireUnlocked(b.t, two)
		locktest.RequireUnlocked(b.t, one)
	}, WithoutRenewal())
}

// The rest has no queue on Redis.
func TestMultiOverlap_RestIsAcquiredBesideAFairLock(t *testing.T) {
	eachPartly(t, func(b *partly) {
		fair, both := b.c.FairMutex(b.names[0]), b.both()
		locktest.RequireLocked(b.t, fair)
		locktest.RequireLocked(b.t, both)
		require.False(b.t, locktest.NewActor(b.t).Tries(b.t, b.rivalOfTwo))
		locktest.RequireUnlocked(b.t, both)
		held, err := both.TryLock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, held)
		locktest.RequireUnlocked(b.t, fair)
		locktest.RequireUnlocked(b.t, both)
		locktest.RequireFree(b.t, b.rdb, b.names...)
	})
}

// levelsOf is how many levels an actor holds of m.
func levelsOf(a *locktest.Actor, m *Mutex) (n int) {
	_ = a.Call(func() error { n = m.HoldCount(); return nil })
	return n
}
