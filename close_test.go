package relock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

func TestClose_FailsWaitersAndReleasesEveryHold(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := relock.LocksOn(t, rdb)
		plain, shared := c.Mutex(key), c.Mutex(key+"-owner", relock.WithOwner("job-17"))
		multi := c.MultiMutex([]string{key + "-a", key + "-b"})
		locktest.RequireLocked(t, plain)
		locktest.RequireLocked(t, plain)
		locktest.RequireLocked(t, shared)
		locktest.RequireLocked(t, multi)
		locktest.HeldByAnother(t, rdb, key+"-busy", time.Minute)
		waiting := []<-chan error{
			locktest.NewActor(t).Lock(t.Context(), plain),
			locktest.NewActor(t).Lock(t.Context(), plain),
			locktest.NewActor(t).Lock(t.Context(), c.Mutex(key+"-busy")),
			locktest.NewActor(t).Lock(t.Context(), c.Mutex(key+"-busy", relock.WithOwner("job-18"))),
		}
		relock.AwaitWaiters(t, c, key, 2)
		relock.AwaitWaiters(t, c, key+"-busy", 2)
		ctx := multi.Context(t.Context())
		require.NoError(t, c.Close())
		for _, w := range waiting {
			require.ErrorIs(t, locktest.OutcomeOf(t, w), relock.ErrClosed)
		}
		require.ErrorIs(t, context.Cause(ctx), relock.ErrClosed)
		locktest.RequireFree(t, rdb, key, key+"-owner", key+"-a", key+"-b")
		locktest.RequireOnRedis(t, rdb, key+"-busy", "another:1", 1)

		require.Zero(t, plain.HoldCount())
		require.ErrorIs(t, plain.Unlock(), relock.ErrClosed)
		require.ErrorIs(t, plain.Unlock(), relock.ErrClosed)
		require.ErrorIs(t, plain.Unlock(), relock.ErrNotHeld)
		require.ErrorIs(t, shared.Unlock(), relock.ErrClosed)
		require.ErrorIs(t, multi.Unlock(), relock.ErrClosed)
		require.Zero(t, relock.NamesOf(c))
	})
}

func TestClose_ClosedClientRefusesEverything(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		c := relock.LocksOn(t, b.Client(t))
		m := c.Mutex(redistest.Key(t))
		require.NoError(t, c.Close())
		require.ErrorIs(t, m.Lock(t.Context()), relock.ErrClosed)
		_, err := m.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrClosed)
		_, err = m.State(t.Context())
		require.ErrorIs(t, err, relock.ErrClosed)
		_, err = m.ForceUnlock(t.Context())
		require.ErrorIs(t, err, relock.ErrClosed)
		require.ErrorIs(t, m.Do(t.Context(), func(context.Context) error { return nil }), relock.ErrClosed)
		require.ErrorIs(t, m.Unlock(), relock.ErrNotHeld)
		require.ErrorIs(t, c.Mutex("later").Lock(t.Context()), relock.ErrClosed)
	})
}

func TestClose_MayBeRepeatedAndConcurrent(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := relock.LocksOn(t, rdb)
		locktest.RequireLocked(t, c.Mutex(key))
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

func TestClose_StopsEveryGoroutine(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		before := goleak.IgnoreCurrent()
		c, err := relock.New(rdb)
		require.NoError(t, err)
		for i, name := range []string{key, key + "-b", key + "-c"} {
			m := c.Mutex(name, relock.WithOwner("job-17"))
			locktest.RequireLocked(t, m)
			if i == 0 {
				var waiting sync.WaitGroup
				for range 3 {
					waiting.Go(func() { _ = c.Mutex(name).Lock(t.Context()) })
				}
				relock.AwaitWaiters(t, c, name, 3)
				relock.AwaitListening(t, c, name)
				defer waiting.Wait()
			}
		}
		require.NoError(t, c.Close())
		require.NoError(t, rdb.Close()) // whose connections have goroutines of their own
		require.NoError(t, redistest.FindLeaks(before))
	})
}

func TestClose_DuringLocksLeavesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		for range 10 {
			c := relock.LocksOn(t, rdb)
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
			redistest.Receive(t, started)
			require.NoError(t, c.Close())
			running.Wait()
			locktest.RequireFree(t, rdb, key)
			require.Zero(t, relock.NamesOf(c))
		}
	})
}

func TestClose_LeavesNothingOfWaitersThatLeft(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		locktest.HeldByAnother(t, rdb, key, time.Minute)
		c := relock.LocksOn(t, rdb)
		ctx, cancel := context.WithCancel(t.Context())
		var waiting []<-chan error
		for range 5 {
			waiting = append(waiting, locktest.NewActor(t).Lock(ctx, c.Mutex(key)))
		}
		relock.AwaitWaiters(t, c, key, 5)
		relock.AwaitListening(t, c, key)
		require.Equal(t, 1, locktest.Listeners(t, rdb, key))
		cancel()
		for _, w := range waiting {
			require.ErrorIs(t, locktest.OutcomeOf(t, w), context.Canceled)
		}
		require.Zero(t, relock.NamesOf(c))
		channel := locktest.ChannelOf(key)
		redistest.Eventually(t, "the subscription to go", func() bool {
			return locktest.Listeners(t, rdb, key) == 0 && len(rdb.PubSubChannels(t.Context(), channel).Val()) == 0
		})
		locktest.RequireOnRedis(t, rdb, key, "another:1", 1)
	})
}
