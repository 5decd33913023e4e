package tests

import (
	"context"
	"fmt"
	"sync"
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

// On a machine that stalls a waiter polls now and then, which is a script more. What costs more at
// every hand-off does so every time.
func TestFair_ContendedHandOverCostsTwoScripts(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	for _, waiters := range []int{2, 32, 500} {
		t.Run(fmt.Sprint(waiters), func(t *testing.T) {
			redistest.Eventually(t, "two scripts for a hand-off", func() bool {
				perHandOff := scriptsPerHandOff(t, waiters)
				t.Logf("%d waiters: %.3f scripts per hand-off", waiters, perHandOff)
				return perHandOff <= 2.2
			})
		})
	}
}

// scriptsPerHandOff has waiters, of 8 processes at most, hand a lock to each other.
func scriptsPerHandOff(t *testing.T, waiters int) float64 {
	t.Helper()
	relay, _ := locktest.RelayedTo(t, redistest.Redis(t))
	key := redistest.Key(t)
	var clients []*relock.Client
	for range min(waiters, 8) {
		rdb := redis.NewClient(redistest.Options(relay.Addr))
		t.Cleanup(func() { _ = rdb.Close() })
		clients = append(clients, locksOn(t, rdb))
	}
	rounds := max(4, 600/waiters)
	var all sync.WaitGroup
	for i := range waiters {
		m := clients[i%len(clients)].FairMutex(key)
		all.Go(func() {
			for range rounds {
				if err := m.Lock(context.Background()); err != nil {
					t.Error(err)
					return
				}
				if err := m.Unlock(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	scripts := relay.Count(redistest.Named("EVALSHA", "EVAL"))
	return float64(scripts) / float64(rounds*waiters)
}

func TestFair_TryLockDoesNotOvertake(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key, waiter := b.Client(t), redistest.Key(t), locktest.NewActor(t)
		c, other := locksOn(t, b.Client(t)), locksOn(t, b.Client(t))
		locktest.HeldByAnother(t, rdb, key, time.Minute)
		require.False(t, locktest.NewActor(t).Tries(t, other.FairMutex(key)))
		require.Empty(t, locktest.FairQueueOf(t, rdb, key), "TryLock waits")
		waiting := waiter.Lock(t.Context(), c.FairMutex(key))
		locktest.AwaitFairQueue(t, rdb, key, 1)
		require.NoError(t, rdb.Del(t.Context(), key).Err()) // nobody is notified
		require.False(t, locktest.NewActor(t).Tries(t, other.FairMutex(key)), "the lock is free, but another owner waits")
		require.NoError(t, locktest.OutcomeOf(t, waiting), "served by whoever came")
		waiter.Unlocks(t, c.FairMutex(key))
		require.True(t, waiter.Tries(t, other.FairMutex(key)))
		waiter.Unlocks(t, other.FairMutex(key))
		locktest.RequireFairFree(t, rdb, key)
	})
}

func TestFair_NewcomerDoesNotOvertakeAfterAnUnnoticedRelease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key, waiter, newcomer := b.Client(t), redistest.Key(t), locktest.NewActor(t), locktest.NewActor(t)
		c, other := locksOn(t, b.Client(t)), locksOn(t, b.Client(t))
		locktest.HeldByAnother(t, rdb, key, time.Minute)
		waiting := waiter.Lock(t.Context(), c.FairMutex(key))
		locktest.AwaitFairQueue(t, rdb, key, 1)
		require.NoError(t, rdb.Del(t.Context(), key).Err())
		second := newcomer.Lock(t.Context(), other.FairMutex(key))
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		locktest.GoesOn(t, second)
		waiter.Unlocks(t, c.FairMutex(key))
		require.NoError(t, locktest.OutcomeOf(t, second))
		newcomer.Unlocks(t, other.FairMutex(key))
		locktest.RequireFairFree(t, rdb, key)
	})
}

// Nobody here polls in time: what wakes them is a message.
func TestFair_ExcludesAndWakesPlainLocksOfItsName(t *testing.T) {
	redistest.InTime(t)
	t.Parallel()
	fair := func(c *relock.Client, key string) *relock.Mutex { return c.FairMutex(key) }
	plain := func(c *relock.Client, key string) *relock.Mutex { return c.Mutex(key) }
	for name, pair := range map[string][2]func(*relock.Client, string) *relock.Mutex{
		"fair waits for plain": {plain, fair}, "plain waits for fair": {fair, plain},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				rdb, key, holder, waiter := b.Client(t), redistest.Key(t), locktest.NewActor(t), locktest.NewActor(t)
				here, there := locksOn(t, b.Client(t)), locksOn(t, b.Client(t))
				for _, c := range []*relock.Client{here, there} { // in one process, and in two
					held, wanted := pair[0](here, key), pair[1](c, key)
					holder.Locks(t, held)
					require.False(t, waiter.Tries(t, wanted))
					waiting := waiter.Lock(t.Context(), wanted)
					locktest.GoesOn(t, waiting)
					holder.Unlocks(t, held)
					began := time.Now()
					require.NoError(t, locktest.OutcomeOf(t, waiting))
					require.Less(t, time.Since(began), time.Second, "no message has woken it")
					waiter.Unlocks(t, wanted)
					locktest.RequireFairFree(t, rdb, key)
				}
			})
		})
	}
}

func TestFair_HandleReentersAPlainLockOfItsName(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		locktest.RequireLocked(t, c.Mutex(key))
		locktest.RequireLocked(t, c.FairMutex(key))
		locktest.RequireLocked(t, c.MultiMutex([]string{key, key + "-too"}))
		locktest.RequireOnRedis(t, rdb, key, locktest.FieldOf(c), 3)
		locktest.RequireUnlocked(t, c.MultiMutex([]string{key, key + "-too"}))
		locktest.RequireUnlocked(t, c.FairMutex(key))
		locktest.RequireOnRedis(t, rdb, key, locktest.FieldOf(c), 1)
		locktest.RequireUnlocked(t, c.FairMutex(key))
		locktest.RequireFairFree(t, rdb, key)
	})
}

// waitedFor has a waiter get the lock from a holder, and returns it.
func waitedFor(t *testing.T, rdb *redis.Client, key string, m *relock.Mutex) *locktest.Actor {
	t.Helper()
	holder, waiter := locktest.NewActor(t), locktest.NewActor(t)
	holder.Locks(t, m)
	waiting := waiter.Lock(t.Context(), m)
	locktest.AwaitFairQueue(t, rdb, key, 1)
	holder.Unlocks(t, m)
	require.NoError(t, locktest.OutcomeOf(t, waiting))
	return waiter
}

func TestFair_LeaseIsSoonTheFullOneAfterAWait(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	for name, opts := range map[string][]relock.MutexOption{
		"renewed": {relock.WithTTL(time.Hour)},
		"fixed":   {relock.WithTTL(time.Hour), relock.WithoutRenewal()},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				rdb, key := b.Client(t), redistest.Key(t)
				c := locksOn(t, rdb)
				waiter := waitedFor(t, rdb, key, c.FairMutex(key, opts...))
				require.LessOrEqual(t, locktest.TTLOf(rdb, key), time.Hour)
				redistest.Eventually(t, "the full lease", func() bool { return locktest.TTLOf(rdb, key) > 59*time.Minute })
				waiter.Unlocks(t, c.FairMutex(key))
			})
		})
	}
}

func TestFair_FixedLeaseIsRaisedOnceAfterAWaitAndRunsOut(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		var r chronicle
		c := locksOn(t, rdb, relock.WithHooks(r.Hooks()))
		m := c.FairMutex(key, relock.WithTTL(900*time.Millisecond), relock.WithoutRenewal())
		waiter := waitedFor(t, rdb, key, m)
		redistest.Eventually(t, "the end", func() bool { return len(r.Of("lost")) == 1 })
		require.Len(t, r.Of("renewed"), 1)
		require.ErrorIs(t, waiter.Call(m.Unlock), relock.ErrLost)
	})
}

func TestFair_TokensRiseInTheOrderOfWaiters(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		clients := []*relock.Client{locksOn(t, b.Client(t), relock.WithFencing()), locksOn(t, b.Client(t), relock.WithFencing())}
		holder, tokens := locktest.NewActor(t), make(chan int64, 8)
		holder.Locks(t, clients[0].FairMutex(key))
		var all sync.WaitGroup
		for i := range 8 {
			m := clients[i%2].FairMutex(key)
			all.Go(func() {
				if err := m.Lock(context.Background()); err != nil {
					t.Error(err)
				}
				tokens <- m.FencingToken()
				if err := m.Unlock(); err != nil {
					t.Error(err)
				}
			})
			locktest.AwaitFairQueue(t, rdb, key, i+1)
		}
		holder.Unlocks(t, clients[0].FairMutex(key))
		all.Wait()
		close(tokens)
		last := int64(0)
		for token := range tokens {
			require.Greater(t, token, last)
			last = token
		}
		locktest.RequireFairFree(t, rdb, key)
	})
}

func TestFair_UnavailableTokenIsReportedToTheWaiter(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, holder, waiter := locksOn(t, rdb), locktest.NewActor(t), locktest.NewActor(t)
		holder.Locks(t, c.FairMutex(key))
		waiting := waiter.Lock(t.Context(), c.FairMutex(key, relock.WithFencing()))
		locktest.AwaitFairQueue(t, rdb, key, 1)
		require.NoError(t, rdb.Set(t.Context(), locktest.CounterOf(key), "nonsense", 0).Err())
		holder.Unlocks(t, c.FairMutex(key))
		require.ErrorIs(t, locktest.OutcomeOf(t, waiting), relock.ErrInvalidName)
		redistest.Eventually(t, "released", func() bool { return rdb.Exists(t.Context(), key).Val() == 0 })
		locktest.RequireFairFree(t, rdb, key)
	})
}

func TestFair_ForeignValueInsteadOfTheLineIsAnErrorAndStays(t *testing.T) {
	for _, part := range []func(keys.LineKeys) string{
		func(k keys.LineKeys) string { return k.Queue },
		func(k keys.LineKeys) string { return k.Entries },
	} {
		t.Run(part(keys.LineOf("")), func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				rdb, key := b.Client(t), redistest.Key(t)
				c, foreign := locksOn(t, rdb), part(keys.LineOf(key))
				holder, waiter := locktest.NewActor(t), locktest.NewActor(t)
				holder.Locks(t, c.FairMutex(key))
				waiting := waiter.Lock(t.Context(), c.FairMutex(key, relock.WithSafetyPoll(50*time.Millisecond)))
				locktest.AwaitFairQueue(t, rdb, key, 1)
				require.NoError(t, rdb.Set(t.Context(), foreign, "mine", 0).Err())
				err := locktest.OutcomeOf(t, waiting)
				require.ErrorIs(t, err, relock.ErrInvalidName)
				require.ErrorContains(t, err, foreign)
				require.ErrorIs(t, waiter.Call(func() error { return c.FairMutex(key).Lock(t.Context()) }), relock.ErrInvalidName)
				holder.Unlocks(t, c.FairMutex(key))
				locktest.RequireFree(t, rdb, key)
				require.Equal(t, "mine", rdb.Get(t.Context(), foreign).Val())
			})
		})
	}
}

func TestFair_TwoHundredIdleWaitersPollAsOne(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	relay, rdb := locktest.RelayedTo(t, redistest.Redis(t))
	key, holder := redistest.Key(t), locktest.NewActor(t)
	const poll = 600 * time.Millisecond
	c := locksOn(t, rdb, relock.WithSafetyPoll(poll))
	const interval = 2 * poll / 3 // three polls in the lease of an entry, which is two safety polls
	holder.Locks(t, c.FairMutex(key))
	var r locktest.Roll
	all := locktest.QueueUp(t, rdb, key, 200, &r, c.FairMutex(key))
	relay.ResetLog()
	began := time.Now()
	redistest.Eventually(t, "five polls", func() bool { return relay.Count(locktest.RunsOf(protocol.LinePollScript)) >= 5 })
	// Each sleeps for at least half of the interval.
	require.GreaterOrEqual(t, time.Since(began), 2*interval, "too many")
	require.Zero(t, relay.Count(locktest.RunsOf(protocol.LineAcquireScript)))
	require.Len(t, locktest.FairQueueOf(t, rdb, key), 200)
	holder.Unlocks(t, c.FairMutex(key))
	all.Wait()
	require.Equal(t, locktest.UpTo(200), r.Names)
}

func TestFair_WorksOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	a, b, key := locksOn(t, cluster.Client(t)), locksOn(t, cluster.Client(t)), redistest.Key(t)
	rdb, holder := cluster.Client(t), locktest.NewActor(t)
	holder.Locks(t, a.FairMutex(key))
	var r locktest.Roll
	all := locktest.QueueUp(t, rdb, key, 8, &r, a.FairMutex(key), b.FairMutex(key))
	holder.Unlocks(t, a.FairMutex(key))
	all.Wait()
	require.Equal(t, locktest.UpTo(8), r.Names)
	locktest.RequireFairFree(t, rdb, key)
}
