package relock

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
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
	receives(t, done)
	return panicked
}

// eachEnding runs test with clients of which the hook Released counts its calls in told, and ends
// each otherwise than by returning. A client that is closed is spared.
func eachEnding(t *testing.T, test func(t *testing.T, b *redistest.Backend, c *Client, told *atomic.Int64)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		for what, end := range endings {
			t.Run(what, func(t *testing.T) {
				var c *Client
				var told atomic.Int64
				c = locksOn(t, b.Client(t), WithHooks(Hooks{Released: func(Event) {
					if !c.session.isClosed() {
						told.Add(1)
						end()
					}
				}}))
				test(t, b, c, &told)
			})
		}
	})
}

// The MultiMutex has its two names by two holds: the first of them was there before.
func TestAHookThatPanicsInUnlockLeavesNoPartLocked(t *testing.T) {
	t.Parallel()
	eachEnding(t, func(t *testing.T, b *redistest.Backend, c *Client, told *atomic.Int64) {
		rdb, names := b.Client(t), namesFrom(redistest.Key(t), 2)
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
		require.Equal(t, strings.HasSuffix(t.Name(), "panic"), panicked != nil, "it goes on")
		requireFree(t, rdb, names...)
		require.Zero(t, gatesOf(c))
	})
}

// What Lock has entered already is unlocked by its owner meanwhile: to take the level back is to
// release it.
func TestAHookThatPanicsWhereALockGivesUpLeavesNoPartLocked(t *testing.T) {
	t.Parallel()
	eachEnding(t, func(t *testing.T, b *redistest.Backend, c *Client, told *atomic.Int64) {
		rdb, names := b.Client(t), namesFrom(redistest.Key(t), 3)
		heldByStranger(t, rdb, names[2], time.Minute)
		one, two := c.Mutex(names[0], WithOwner("job")), c.Mutex(names[1], WithOwner("job"))
		requireLocked(t, one)
		requireLocked(t, two)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		gaveUp := make(chan struct{})
		go func() {
			defer close(gaveUp)
			defer func() { _ = recover() }()
			_ = c.MultiMutex(names, WithOwner("job")).Lock(ctx)
		}()
		awaitWaiters(t, c.session, names[2], 1)
		requireUnlocked(t, one)
		requireUnlocked(t, two)
		cancel()
		receives(t, gaveUp)
		require.EqualValues(t, 2, told.Load())
		requireFree(t, rdb, names[:2]...)
		require.Zero(t, gatesOf(c))
	})
}

func TestAHookThatPanicsInTheUnlockThatFindsALossTakesTheLevelAllTheSame(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		key := redistest.Key(t)
		s := defaultSettings()
		var ahead atomic.Int64 // both clocks: nothing but the call itself finds out
		c := newClient(b.Client(t), s, func() clock.Instant { return clock.System().After(time.Duration(ahead.Load())) })
		t.Cleanup(func() { _ = c.Close() })
		m := c.Mutex(key, WithOwner("job"), WithHooks(Hooks{Lost: func(Event) { panic("in a hook") }}))
		requireLocked(t, m)
		ahead.Store(int64(2 * defaultTTL))
		require.Equal(t, "in a hook", survive(t, func() { _ = m.Unlock() }))
		require.ErrorIs(t, m.Unlock(), ErrNotHeld)
		require.Zero(t, gatesOf(c))
	})
}
