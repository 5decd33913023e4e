package relock

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/goid"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

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
		relay, rdb := relayedTo(t, backend)
		b := &partly{t: t, rdb: backend.Client(t), relay: relay, c: locksOn(t, rdb, opts...)}
		key := redistest.Key(t)
		b.names = []string{key + "-1", key + "-2"}
		b.rival = locksOn(t, b.rdb)
		b.both = func(opts ...MutexOption) *Mutex { return b.c.MultiMutex(b.names, opts...) }
		b.one = func(opts ...MutexOption) *Mutex { return b.c.Mutex(b.names[0], opts...) }
		b.rivalOfTwo = b.rival.Mutex(b.names[1])
		fn(b)
	})
}

// waitForBoth has an actor hold the first name, and wait for both until ctx ends: a stranger has
// the second one.
func (b *partly) waitForBoth(ctx context.Context) (me *actor, waiting <-chan error) {
	b.t.Helper()
	heldByStranger(b.t, b.rdb, b.names[1], time.Minute)
	me = newActor(b.t)
	me.locks(b.t, b.one())
	waiting = me.lock(ctx, b.both())
	awaitWaiters(b.t, b.c.session, b.names[1], 1)
	return me, waiting
}

// The level on the second name is being given back when the first one is locked again.
func TestAReentryWritesNoCountOfZero(t *testing.T) {
	eachPartly(t, func(b *partly) {
		both, one := b.both(WithOwner("job")), b.one(WithOwner("job"))
		requireLocked(b.t, both)
		requireLocked(b.t, one)
		h := holdsOn(b.c.session, b.names[0])[0]
		require.True(b.t, h.take(b.t.Context())) // as a renewal does
		first, second := newActor(b.t), newActor(b.t)
		id := first.id()
		locked := first.lock(b.t.Context(), one)
		eventually(b.t, "the re-entry waits", func() bool { return isIn(id, "(*hold).take") })
		unlocked := make(chan error, 1)
		go func() { unlocked <- second.call(both.Unlock) }()
		eventually(b.t, "the level is taken away", func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return len(h.levels) == 1
		})
		said := make(chan error, 1)
		b.relay.After(runsOf(protocol.ReenterScript), func(redistest.Command, string) {
			_, err := b.rivalOfTwo.TryLock(context.Background())
			said <- err
		})
		h.free()
		require.NoError(b.t, outcomeOf(b.t, locked))
		require.NoError(b.t, receives(b.t, unlocked))
		require.NoError(b.t, receives(b.t, said), "another process asks for the second name")
		requireUnlocked(b.t, one)
		requireUnlocked(b.t, one)
	})
}

// id is the id of the actor's goroutine.
func (a *actor) id() (id int64) {
	_ = a.call(func() error { id = goid.Get(); return nil })
	return id
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

// The hook of who wanted both has not returned when he goes, and another has claimed one of them.
func TestNamesThatNobodyClaimsAreHeldByNobodyAndGivenBack(t *testing.T) {
	eachPartly(t, func(b *partly) {
		acquired, goOn := make(chan struct{}), make(chan struct{})
		both := b.both(WithOwner("job"), WithHooks(Hooks{Acquired: func(Event) { close(acquired); <-goOn }}))
		one := b.one(WithOwner("job"))
		ctx, cancel := context.WithCancel(b.t.Context())
		result := make(chan error, 1)
		go func() { result <- both.Lock(ctx) }()
		receives(b.t, acquired)
		require.Zero(b.t, both.HoldCount())
		require.ErrorIs(b.t, context.Cause(both.Context(b.t.Context())), ErrNotHeld)
		requireLocked(b.t, one)
		cancel()
		require.ErrorIs(b.t, receives(b.t, result), context.Canceled)
		close(goOn)
		eventually(b.t, "the second name is free", func() bool { return len(onRedis(b.t, b.rdb, b.names[1])) == 0 })
		require.Len(b.t, onRedis(b.t, b.rdb, b.names[0]), 1)
		requireUnlocked(b.t, one)
	})
}

func TestAContextEndsWithTheNamesThatItIsOf(t *testing.T) {
	eachPartly(t, func(b *partly) {
		one, two, both := b.one(), b.c.Mutex(b.names[1]), b.both()
		requireLocked(b.t, both)
		requireLocked(b.t, one)
		ctxs := []context.Context{both.Context(b.t.Context()), two.Context(b.t.Context())}
		ofOne := one.Context(b.t.Context())
		requireUnlocked(b.t, both)
		for _, ctx := range ctxs {
			require.ErrorIs(b.t, context.Cause(ctx), ErrReleased)
		}
		require.ErrorIs(b.t, context.Cause(two.Context(b.t.Context())), ErrNotHeld)
		require.NoError(b.t, ofOne.Err())
		requireUnlocked(b.t, one)
	})
}

func TestATokenIsThatOfAllNamesOrNone(t *testing.T) {
	eachPartly(t, func(b *partly) {
		one, both := b.one(WithFencing()), b.both(WithFencing())
		requireLocked(b.t, one)
		require.NotZero(b.t, one.FencingToken())
		require.Zero(b.t, both.FencingToken())
		requireUnlocked(b.t, one)
	})
}

func TestALockOfNamesThatArePartlyHeldEndsWithItsContext(t *testing.T) {
	redistest.Slow(t)
	eachPartly(t, func(b *partly) {
		ctx, cancel := context.WithCancel(b.t.Context())
		defer cancel()
		me, waiting := b.waitForBoth(ctx)
		b.relay.BlackHole(true)
		began := time.Now()
		cancel()
		require.ErrorIs(b.t, outcomeOf(b.t, waiting), context.Canceled)
		require.Less(b.t, time.Since(began), time.Second)
		b.relay.BlackHole(false)
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.names[1]).Err())
		_ = me.call(b.one().Unlock) // Redis may just have been silent for too long
	})
}

func TestAWaitForTheRestEndsWithTheLossOfWhatWasHeld(t *testing.T) {
	eachPartly(t, func(b *partly) {
		me, waiting := b.waitForBoth(b.t.Context())
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.names[0]).Err())
		require.ErrorIs(b.t, outcomeOf(b.t, waiting), ErrLost)
		require.ErrorIs(b.t, me.call(b.one().Unlock), ErrLost)
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.names[1]).Err())
	}, WithRenewInterval(20*time.Millisecond))
}

func TestDoOfNamesThatArePartlyHeldLeavesNoContexts(t *testing.T) {
	eachPartly(t, func(b *partly) {
		one, both := b.one(), b.both()
		requireLocked(b.t, one)
		for range 10 {
			require.NoError(b.t, both.Do(b.t.Context(), func(context.Context) error { return nil }))
		}
		h := holdsOn(b.c.session, b.names[0])[0]
		eventually(b.t, "no contexts", func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.contexts.Len() == 0
		})
		requireUnlocked(b.t, one)
	})
}

func TestWhoWaitsForTheRestHoldsNotAllOfTheNames(t *testing.T) {
	eachPartly(t, func(b *partly) {
		one, both := b.one(WithFencing(), WithOwner("job")), b.both(WithFencing(), WithOwner("job"))
		requireLocked(b.t, one)
		heldByStranger(b.t, b.rdb, b.names[1], time.Minute)
		waiting := newActor(b.t).lock(b.t.Context(), both)
		awaitWaiters(b.t, b.c.session, b.names[1], 1)
		require.Zero(b.t, both.FencingToken())
		require.Zero(b.t, both.HoldCount())
		for range 10 {
			require.ErrorIs(b.t, context.Cause(both.Context(b.t.Context())), ErrNotHeld)
		}
		h := holdsOn(b.c.session, b.names[0])[0]
		eventually(b.t, "no contexts but that of who waits", func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.contexts.Len() == 1
		})
		require.ErrorIs(b.t, both.Unlock(), ErrNotHeld, "by him who waits")
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.names[1]).Err())
		publishes(b.t, b.rdb, b.names[1])
		require.NoError(b.t, outcomeOf(b.t, waiting))
		requireUnlocked(b.t, one)
		require.False(b.t, newActor(b.t).tries(b.t, b.rival.Mutex(b.names[0])), "both are held")
		requireUnlocked(b.t, both)
	})
}

// Hand over hand: of all holds but the last nothing is kept.
func TestAHoldDoesNotKeepThoseBeforeIt(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	for name, opts := range map[string][]MutexOption{"goroutine": nil, "owner": {WithOwner("job")}} {
		t.Run(name, func(t *testing.T) {
			c, key := locksOn(t, redistest.Mini(t).Client(t)), redistest.Key(t)
			link := func(i int) string { return fmt.Sprintf("%s-%d", key, i) }
			requireLocked(t, c.Mutex(link(0), opts...))
			const links = 50
			holds := []weak.Pointer[hold]{weak.Make(holdsOn(c.session, link(0))[0])}
			for i := range links {
				both := c.MultiMutex([]string{link(i), link(i + 1)}, opts...)
				requireLocked(t, both)
				requireLocked(t, c.Mutex(link(i+1), opts...))
				requireUnlocked(t, both)
				requireUnlocked(t, c.Mutex(link(i), opts...))
				holds = append(holds, weak.Make(holdsOn(c.session, link(i+1))[0]))
			}
			eventually(t, "the garbage is collected", func() bool {
				runtime.GC()
				kept := 0
				for _, h := range holds {
					if h.Value() != nil {
						kept++
					}
				}
				return kept <= 3
			})
			requireUnlocked(t, c.Mutex(link(links), opts...))
		})
	}
}

func TestADeadlineIsTheEarliestOfAllNames(t *testing.T) {
	eachPartly(t, func(b *partly) {
		one, two, both := b.one(WithTTL(time.Hour)), b.c.Mutex(b.names[1], WithTTL(time.Minute)), b.both()
		requireLocked(b.t, one)
		_, held := both.Deadline()
		require.False(b.t, held, "one name is not held")
		requireLocked(b.t, two)
		want, _ := two.Deadline()
		at, held := both.Deadline()
		require.True(b.t, held)
		require.WithinDuration(b.t, want, at, time.Second)
		requireUnlocked(b.t, two)
		requireUnlocked(b.t, one)
	}, WithoutRenewal())
}

// The rest has no queue on Redis.
func TestTheRestOfTheNamesIsGotBesideAFairLock(t *testing.T) {
	eachPartly(t, func(b *partly) {
		fair, both := b.c.FairMutex(b.names[0]), b.both()
		requireLocked(b.t, fair)
		requireLocked(b.t, both)
		require.False(b.t, newActor(b.t).tries(b.t, b.rivalOfTwo))
		requireUnlocked(b.t, both)
		held, err := both.TryLock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, held)
		requireUnlocked(b.t, fair)
		requireUnlocked(b.t, both)
		requireFree(b.t, b.rdb, b.names...)
	})
}

// The hand-over finds that one key is gone, and changes nothing. The other one is not to be left to its lease.
func TestAnUnlockThatFindsOneNameGoneGivesTheOtherBackThoughAWaiterWouldFollow(t *testing.T) {
	eachPartly(t, func(b *partly) {
		me, you := newActor(b.t), newActor(b.t)
		me.locks(b.t, b.both())
		followed := you.lock(b.t.Context(), b.both())
		awaitWaiters(b.t, b.c.session, b.names[1], 1)
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.names[0]).Err())
		require.ErrorIs(b.t, me.call(b.both().Unlock), ErrLost)
		require.NoError(b.t, outcomeOf(b.t, followed))
		you.unlocks(b.t, b.both())
		requireLocked(b.t, b.rivalOfTwo)
		requireUnlocked(b.t, b.rivalOfTwo)
	})
}
