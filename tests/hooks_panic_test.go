package tests

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/inside"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// endings are the ways in which a hook may end other than by returning.
var endings = map[string]func(){
	"a panic": func() { panic("in a hook") },
	"an exit": runtime.Goexit,
}

// survive runs f on a goroutine that a hook may end, and returns what f panicked with.
func survive(t *testing.T, f func()) (panicked any) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		f()
	}()
	redistest.Receive(t, done)
	return panicked
}

// eachEnding runs test with clients of which the hook Released counts its calls in told, and ends
// each otherwise than by returning. A client that is closed is spared.
func eachEnding(t *testing.T, test func(t *testing.T, b *redistest.Backend, c *relock.Client, told *atomic.Int64)) {
	t.Helper()
	for what, end := range endings {
		t.Run(what, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				var c *relock.Client
				var told atomic.Int64
				c = locksOn(t, b.Client(t), relock.WithHooks(relock.Hooks{Released: func(relock.Event) {
					if !inside.ClientOf(c).Closed() {
						told.Add(1)
						end()
					}
				}}))
				test(t, b, c, &told)
			})
		})
	}
}

// The MultiMutex has its two names by two holds: the first of them was there before.
func TestAHookThatPanicsInUnlockLeavesNoPartLocked(t *testing.T) {
	t.Parallel()
	eachEnding(t, func(t *testing.T, b *redistest.Backend, c *relock.Client, told *atomic.Int64) {
		rdb, names := b.Client(t), locktest.NamesFrom(redistest.Key(t), 2)
		one, both := c.Mutex(names[0]), c.MultiMutex(names)
		locked := make(chan error, 3)
		panicked := survive(t, func() {
			locked <- one.Lock(t.Context())
			locked <- both.Lock(t.Context())
			locked <- one.Unlock()
			_ = both.Unlock()
		})
		for range cap(locked) {
			require.NoError(t, <-locked)
		}
		require.EqualValues(t, 2, told.Load())
		require.Equal(t, strings.Contains(t.Name(), "panic/"), panicked != nil, "it goes on")
		locktest.RequireFree(t, rdb, names...)
		require.Zero(t, locktest.NamesOf(c))
	})
}

// What Lock has entered already is unlocked by its owner meanwhile: to take the level back is to
// release it.
func TestAHookThatPanicsWhereALockGivesUpLeavesNoPartLocked(t *testing.T) {
	t.Parallel()
	eachEnding(t, func(t *testing.T, b *redistest.Backend, c *relock.Client, told *atomic.Int64) {
		rdb, names := b.Client(t), locktest.NamesFrom(redistest.Key(t), 3)
		locktest.HeldByStranger(t, rdb, names[2], time.Minute)
		one, two := c.Mutex(names[0], relock.WithOwner("job")), c.Mutex(names[1], relock.WithOwner("job"))
		locktest.RequireLocked(t, one)
		locktest.RequireLocked(t, two)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		gaveUp := make(chan struct{})
		go func() {
			defer close(gaveUp)
			defer func() { _ = recover() }()
			_ = c.MultiMutex(names, relock.WithOwner("job")).Lock(ctx)
		}()
		locktest.AwaitWaiters(t, c, names[2], 1)
		locktest.RequireUnlocked(t, one)
		locktest.RequireUnlocked(t, two)
		cancel()
		redistest.Receive(t, gaveUp)
		require.EqualValues(t, 2, told.Load())
		locktest.RequireFree(t, rdb, names[:2]...)
		require.Zero(t, locktest.NamesOf(c))
	})
}

func TestAHookThatPanicsInTheUnlockThatFindsALossTakesTheLevelAllTheSame(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		key := redistest.Key(t)
		var ahead atomic.Int64 // both clocks: nothing but the call itself finds out
		c := inside.NewClient(b.Client(t), []relock.ClientOption(nil), func() clock.Instant { return clock.System().After(time.Duration(ahead.Load())) }).(*relock.Client)
		t.Cleanup(func() { _ = c.Close() })
		m := c.Mutex(key, relock.WithOwner("job"), relock.WithHooks(relock.Hooks{Lost: func(relock.Event) { panic("in a hook") }}))
		locktest.RequireLocked(t, m)
		ahead.Store(int64(2 * defaultTTL))
		require.Equal(t, "in a hook", survive(t, func() { _ = m.Unlock() }))
		require.ErrorIs(t, m.Unlock(), relock.ErrNotHeld)
		require.Zero(t, locktest.NamesOf(c))
	})
}
