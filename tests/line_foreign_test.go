package tests

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// foreignWaiter waits for a lock as Redisson does: without a place in any line, for the key to be free and a message
// on the public channel. It holds it for a round trip.
type foreignWaiter struct {
	holds atomic.Int64
	done  chan struct{}
}

var (
	foreignTakes = redis.NewScript(`
if redis.call('exists', KEYS[1]) == 1 then return 0 end
redis.call('hset', KEYS[1], ARGV[1], 1)
redis.call('pexpire', KEYS[1], 30000)
return 1`)
	foreignReleases = redis.NewScript(`
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('del', KEYS[1])
redis.call('publish', ARGV[2], '0')
return 1`)
)

// comes has a foreign waiter want the lock of key, again and again, until ctx ends.
func comes(ctx context.Context, t *testing.T, rdb *redis.Client, key string) *foreignWaiter {
	t.Helper()
	s, name := &foreignWaiter{done: make(chan struct{})}, "another:1"
	sub := rdb.Subscribe(ctx, locktest.ChannelOf(key))
	_, err := sub.Receive(ctx)
	require.NoError(t, err)
	background := context.WithoutCancel(ctx) // it takes nothing along
	visit := func() {
		if taken, err := foreignTakes.Run(background, rdb, []string{key}, name).Int(); err != nil || taken == 0 {
			return
		}
		s.holds.Add(1)
		time.Sleep(time.Millisecond) // the work
		if given, err := foreignReleases.Run(background, rdb, []string{key}, name, locktest.ChannelOf(key)).Int(); err != nil || given == 0 {
			t.Errorf("the foreign waiter lost the lock: %v", err)
		}
		time.Sleep(time.Millisecond) // the message is its own, too: the others come first
	}
	go func() {
		defer close(s.done)
		defer sub.Close()
		for messages := sub.Channel(); ; {
			select {
			case <-messages:
				visit()
			case <-ctx.Done():
				return
			}
		}
	}()
	return s
}

func TestForeignWaiters_GetABusyLock(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	const processes, goroutines, visits = 3, 4, 5
	for name, locks := range map[string]func(t *testing.T, b *redistest.Backend, key string) []*relock.Mutex{
		"processes in line": func(t *testing.T, b *redistest.Backend, key string) (locks []*relock.Mutex) {
			for range processes {
				locks = append(locks, locksOn(t, b.Client(t)).Mutex(key))
			}
			return locks
		},
		"waiters of FairMutex": func(t *testing.T, b *redistest.Backend, key string) (locks []*relock.Mutex) {
			c := locksOn(t, b.Client(t))
			for range goroutines {
				locks = append(locks, c.FairMutex(key))
			}
			return locks
		},
		"a process that is alone": func(t *testing.T, b *redistest.Backend, key string) (locks []*relock.Mutex) {
			c := locksOn(t, b.Client(t))
			for range goroutines {
				locks = append(locks, c.Mutex(key))
			}
			return locks
		},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				if b.Real {
					redistest.Timed(t)
				}
				rdb, key := b.Client(t), redistest.Key(t)
				ours := locks(t, b, key)
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				defer all.Wait()
				defer cancel()
				counts := locktest.KeepBusy(ctx, t, &all, ours...)
				for _, holds := range counts {
					redistest.Eventually(t, "all are busy", func() bool { return holds.Load() > 10 })
				}
				s := comes(ctx, t, rdb, key)
				redistest.Eventually(t, "turns of the foreign waiter", func() bool { return s.holds.Load() >= visits })
				for _, holds := range counts {
					before := holds.Load()
					redistest.Eventually(t, "ours go on", func() bool { return holds.Load() > before+2 })
				}
				cancel()
				<-s.done
				all.Wait()
				locktest.RequireFairFree(t, rdb, key)
			})
		})
	}
}

func TestForeignWaiters_LoneProcessAsksLaterInTheirTurn(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		m := locksOn(t, rdb).Mutex("orders", relock.WithLocalHandoffs(0))
		holder, waiter := locktest.NewActor(t), locktest.NewActor(t)
		holder.Locks(t, m)
		var waits []time.Duration
		for range 5 {
			waiting := waiter.Lock(t.Context(), m)
			time.Sleep(time.Second)
			began := time.Now()
			holder.Unlocks(t, m)
			require.NoError(t, locktest.OutcomeOf(t, waiting))
			waits = append(waits, time.Since(began))
			holder, waiter = waiter, holder
		}
		holder.Unlocks(t, m)
		require.Less(t, waits[0], time.Millisecond, "no time was set for foreign waiters yet")
		require.Contains(t, waits, 10*time.Millisecond, "a turn of foreign waiters")
	})
}
