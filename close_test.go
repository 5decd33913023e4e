package relock

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/redistest"
)

func TestCloseFailsWaitersAndReleasesEveryHold(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		plain, shared := c.Mutex(key), c.Mutex(key+"-owner", WithOwner("job-17"))
		multi := c.MultiMutex([]string{key + "-a", key + "-b"})
		requireLocked(t, plain)
		requireLocked(t, plain)
		requireLocked(t, shared)
		requireLocked(t, multi)
		heldByStranger(t, rdb, key+"-busy", time.Minute)
		waiting := []<-chan error{
			newActor(t).lock(t.Context(), plain),
			newActor(t).lock(t.Context(), plain),
			newActor(t).lock(t.Context(), c.Mutex(key+"-busy")),
			newActor(t).lock(t.Context(), c.Mutex(key+"-busy", WithOwner("job-18"))),
		}
		awaitWaiters(t, c.session, key, 2)
		awaitWaiters(t, c.session, key+"-busy", 2)
		ctx := multi.Context(t.Context())
		require.NoError(t, c.Close())
		for _, w := range waiting {
			require.ErrorIs(t, outcomeOf(t, w), ErrClosed)
		}
		require.ErrorIs(t, context.Cause(ctx), ErrClosed)
		requireFree(t, rdb, key, key+"-owner", key+"-a", key+"-b")
		requireOnRedis(t, rdb, key+"-busy", "stranger:1", 1)

		require.Zero(t, plain.HoldCount())
		require.ErrorIs(t, plain.Unlock(), ErrClosed)
		require.ErrorIs(t, plain.Unlock(), ErrClosed)
		require.ErrorIs(t, plain.Unlock(), ErrNotHeld)
		require.ErrorIs(t, shared.Unlock(), ErrClosed)
		require.ErrorIs(t, multi.Unlock(), ErrClosed)
		require.Zero(t, gatesOf(c))
	})
}

func TestAClosedClientRefusesEverything(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		c := locksOn(t, b.Client(t))
		m := c.Mutex(redistest.Key(t))
		require.NoError(t, c.Close())
		require.ErrorIs(t, m.Lock(t.Context()), ErrClosed)
		_, err := m.TryLock(t.Context())
		require.ErrorIs(t, err, ErrClosed)
		_, err = m.State(t.Context())
		require.ErrorIs(t, err, ErrClosed)
		_, err = m.ForceUnlock(t.Context())
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, m.Do(t.Context(), func(context.Context) error { return nil }), ErrClosed)
		require.ErrorIs(t, m.Unlock(), ErrNotHeld)
		require.ErrorIs(t, c.Mutex("later").Lock(t.Context()), ErrClosed)
	})
}

func TestCloseMayBeCalledAgainAndConcurrently(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		requireLocked(t, c.Mutex(key))
		var closers sync.WaitGroup
		errs := make(chan error, 8)
		for range 8 {
			closers.Go(func() {
				errs <- c.Close()
				if rdb.Exists(context.Background(), key).Val() != 0 {
					errs <- context.Canceled // it returned before the release
				}
			})
		}
		closers.Wait()
		for range 8 {
			require.NoError(t, <-errs)
		}
		require.Empty(t, errs)
		require.NoError(t, c.Close())
	})
}

func TestCloseStopsEveryGoroutine(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		before := goleak.IgnoreCurrent()
		c, err := New(rdb)
		require.NoError(t, err)
		for i, name := range []string{key, key + "-b", key + "-c"} {
			m := c.Mutex(name, WithOwner("job-17"))
			requireLocked(t, m)
			if i == 0 {
				var waiting sync.WaitGroup
				for range 3 {
					waiting.Go(func() { _ = c.Mutex(name).Lock(t.Context()) })
				}
				awaitWaiters(t, c.session, name, 3)
				awaitListening(t, c.session, name)
				defer waiting.Wait()
			}
		}
		require.NoError(t, c.Close())
		require.NoError(t, rdb.Close()) // whose connections have goroutines of their own
		require.NoError(t, redistest.FindLeaks(before))
	})
}

func TestCloseDuringLocksLeavesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		for range 10 {
			c := locksOn(t, rdb)
			var running sync.WaitGroup
			started := make(chan struct{}, 8)
			for range 8 {
				running.Go(func() {
					m := c.Mutex(key)
					for i := 0; m.Lock(t.Context()) == nil; i++ {
						if i == 2 {
							started <- struct{}{}
						}
						_ = m.Unlock()
					}
				})
			}
			receives(t, started)
			require.NoError(t, c.Close())
			running.Wait()
			requireFree(t, rdb, key)
			require.Zero(t, gatesOf(c))
		}
	})
}

func TestWaitersThatHaveGoneLeaveNothing(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		t.Parallel()
		rdb, key := b.Client(t), redistest.Key(t)
		heldByStranger(t, rdb, key, time.Minute)
		c := locksOn(t, rdb)
		ctx, cancel := context.WithCancel(t.Context())
		var waiting []<-chan error
		for range 5 {
			waiting = append(waiting, newActor(t).lock(ctx, c.Mutex(key)))
		}
		awaitWaiters(t, c.session, key, 5)
		awaitListening(t, c.session, key)
		require.Equal(t, 1, listeners(t, rdb, key))
		cancel()
		for _, w := range waiting {
			require.ErrorIs(t, outcomeOf(t, w), context.Canceled)
		}
		require.Zero(t, gatesOf(c))
		channel := channelOf(key)
		eventually(t, "the subscription to go", func() bool {
			return listeners(t, rdb, key) == 0 && len(rdb.PubSubChannels(t.Context(), channel).Val()) == 0
		})
		requireOnRedis(t, rdb, key, "stranger:1", 1)
	})
}
