package tests

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// The line of a name on Redis: who has a place there, and in which order those are served.

// anyKind makes a lock of any kind that has a place in the line of key.
type anyKind func(c *relock.Client, key string, opts ...relock.MutexOption) *relock.Mutex

func ofMutex(c *relock.Client, key string, opts ...relock.MutexOption) *relock.Mutex {
	return c.Mutex(key, opts...)
}

func ofFair(c *relock.Client, key string, opts ...relock.MutexOption) *relock.Mutex {
	return c.FairMutex(key, opts...)
}

func ofMulti(c *relock.Client, key string, opts ...relock.MutexOption) *relock.Mutex {
	return c.MultiMutex([]string{key, key + "-too"}, opts...)
}

var kindsInLine = map[string]anyKind{"Mutex": ofMutex, "FairMutex": ofFair, "MultiMutex": ofMulti}

// enqueues chooses the requests for the lock or a place in its line.
var enqueues = redistest.Script(protocol.LineAcquireScript.Source())

// triesOnly chooses the requests for the lock alone.
var triesOnly = redistest.Script(protocol.AcquireScript.Source())

func TestLine_ContendedHoldCostsTwoCommandsAndNoTryBeforeTheEntry(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, one := locktest.RelayedTo(t, b)
		two := redis.NewClient(redistest.Options(relay.Addr))
		t.Cleanup(func() { _ = two.Close() })
		direct, key := b.Client(t), redistest.Key(t)
		owners := []*locktest.Actor{locktest.NewActor(t), locktest.NewActor(t)}
		locks := []*relock.Mutex{locksOn(t, one).Mutex(key), locksOn(t, two).Mutex(key)}
		holder := 0
		owners[holder].Locks(t, locks[holder])
		passOn := func() { // the other gets into the line, and then the lock
			next := 1 - holder
			waiting := owners[next].Lock(t.Context(), locks[next])
			locktest.AwaitFairQueue(t, direct, key, 1)
			owners[holder].Unlocks(t, locks[holder])
			require.NoError(t, locktest.OutcomeOf(t, waiting))
			holder = next
		}
		for range 2 {
			passOn()
		}
		require.Equal(t, 3, relay.Count(triesOnly), "the first, and one of each process that did not listen yet")
		locktest.AwaitStillness(t, relay)
		relay.ResetLog()
		const holds = 20
		for range holds {
			passOn()
		}
		require.Zero(t, relay.Count(triesOnly), "one that listens gets into the line at once")
		require.Equal(t, holds, relay.Count(enqueues))
		require.Equal(t, holds, relay.Count(redistest.Script(protocol.LineReleaseScript.Source())))
		// A poll may come meanwhile, and on a slow machine a hold may last until its lease is raised.
		usual := []*redisexec.Script{
			protocol.LineAcquireScript, protocol.LineReleaseScript, protocol.LinePollScript,
			protocol.RaiseScript, protocol.RenewScript, protocol.RenewManyScript,
		}
		others := redistest.Scripts.And(func(c redistest.Command) bool {
			return !slices.ContainsFunc(usual, func(s *redisexec.Script) bool { return redistest.Script(s.Source())(c) })
		})
		require.Zero(t, relay.Count(others))
		owners[holder].Unlocks(t, locks[holder])
		locktest.RequireFairFree(t, direct, key)
	})
}

// unsubscribedWaiter waits for a Mutex. Its process is subscribed to grants, and cannot poll.
type unsubscribedWaiter struct {
	m       *relock.Mutex
	owner   *locktest.Actor
	waiting <-chan error
	polls   *redistest.Rule
}

// enterUnsubscribed has such a waiter be first in the line of key, which is held.
func enterUnsubscribed(t *testing.T, b *redistest.Backend, key string) *unsubscribedWaiter {
	t.Helper()
	relay, rdb := locktest.RelayedTo(t, b)
	c := locksOn(t, rdb)
	w := &unsubscribedWaiter{m: c.Mutex(key), owner: locktest.NewActor(t)}
	w.waiting = w.owner.Lock(t.Context(), w.m)
	locktest.AwaitFairQueue(t, b.Client(t), key, 1)
	locktest.AwaitSubscribed(t, b.Client(t), key, c)
	locktest.AwaitStillness(t, relay)
	w.polls = relay.Block(redistest.Script(protocol.LinePollScript.Source())).Always()
	t.Cleanup(w.polls.Release)
	return w
}

// served requires that it has the lock, and releases it.
func (w *unsubscribedWaiter) served(t *testing.T) {
	t.Helper()
	require.NoError(t, locktest.OutcomeOf(t, w.waiting))
	w.polls.Release()
	w.owner.Unlocks(t, w.m)
}

func TestLine_NoNewcomerOvertakesAtAFreeLock(t *testing.T) {
	t.Parallel()
	for name, lock := range kindsInLine {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				rdb, key, newcomer := b.Client(t), redistest.Key(t), locktest.NewActor(t)
				m := lock(locksOn(t, rdb), key)
				locktest.HeldByAnother(t, rdb, key, time.Minute)
				first := enterUnsubscribed(t, b, key)
				require.NoError(t, rdb.Del(t.Context(), key).Err()) // nobody is notified
				require.False(t, newcomer.Tries(t, m), "the lock is free, but another waits")
				waiting := newcomer.Lock(t.Context(), m)
				locktest.AwaitFairQueue(t, rdb, key, 1)
				locktest.GoesOn(t, waiting)
				first.served(t)
				require.NoError(t, locktest.OutcomeOf(t, waiting))
				newcomer.Unlocks(t, m)
				for key := range strings.SplitSeq(m.Name(), ",") {
					locktest.RequireFairFree(t, rdb, key)
				}
			})
		})
	}
}

// The second polls, because the first cannot: the first gets the lock, and is notified.
func TestLine_FreeLockIsGrantedToTheFirstWhoeverPolls(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]func(rdb *redis.Client, c *relock.Client, key string) error{
		"unlocked in Java": func(rdb *redis.Client, c *relock.Client, key string) error {
			ctx := context.Background()
			return errors.Join(rdb.Del(ctx, key).Err(), rdb.Publish(ctx, locktest.ChannelOf(key), "0").Err())
		},
		"expired": func(rdb *redis.Client, c *relock.Client, key string) error {
			return rdb.PExpire(context.Background(), key, time.Millisecond).Err()
		},
		"ForceUnlock": func(rdb *redis.Client, c *relock.Client, key string) error {
			_, err := c.Mutex(key).ForceUnlock(context.Background())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				rdb, key, next := b.Client(t), redistest.Key(t), locktest.NewActor(t)
				locktest.HeldByAnother(t, rdb, key, time.Minute)
				first := enterUnsubscribed(t, b, key)
				m := locksOn(t, b.Client(t), relock.WithSafetyPoll(400*time.Millisecond)).Mutex(key)
				waiting := next.Lock(t.Context(), m)
				locktest.AwaitFairQueue(t, rdb, key, 2)
				require.NoError(t, free(rdb, locksOn(t, rdb), key))
				require.NoError(t, locktest.OutcomeOf(t, first.waiting))
				locktest.GoesOn(t, waiting)
				first.polls.Release()
				first.owner.Unlocks(t, first.m)
				require.NoError(t, locktest.OutcomeOf(t, waiting))
				next.Unlocks(t, m)
				locktest.RequireFairFree(t, rdb, key)
			})
		})
	}
}

func TestLine_FairWaitersAndProcessesShareOne(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key, holder := b.Client(t), redistest.Key(t), locktest.NewActor(t)
		holding, here, there := locksOn(t, rdb), locksOn(t, b.Client(t)), locksOn(t, b.Client(t))
		holder.Locks(t, holding.Mutex(key))
		var r locktest.Roll
		var all []<-chan error
		for i, m := range []*relock.Mutex{
			here.FairMutex(key), there.Mutex(key), here.Mutex(key), there.FairMutex(key), here.FairMutex(key),
		} {
			all = append(all, locktest.Visit(t, m, &r, i))
			locktest.AwaitFairQueue(t, rdb, key, i+1)
		}
		holder.Unlocks(t, holding.Mutex(key))
		for _, done := range all {
			require.NoError(t, locktest.OutcomeOf(t, done))
		}
		require.Equal(t, locktest.UpTo(5), r.Names)
		locktest.RequireFairFree(t, rdb, key)
	})
}

// Two other processes stand in the line from before its turn begins. They are served before its rest.
func TestLine_ProcessPassesTheLockOnAfterItsTurnAndRejoinsAtTheEnd(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		const handoffs, waiters = 3, 8
		rdb, key, holder := b.Client(t), redistest.Key(t), locktest.NewActor(t)
		events := &chronicle{}
		holding, crowd := locksOn(t, rdb), locksOn(t, b.Client(t), relock.WithLocalHandoffs(handoffs), relock.WithHooks(events.Hooks()))
		holder.Locks(t, holding.Mutex(key))
		var r locktest.Roll
		var all []<-chan error
		for i := range waiters {
			all = append(all, locktest.Visit(t, crowd.Mutex(key), &r, 0))
			events.Await(t, "contended", i+1)
		}
		locktest.AwaitFairQueue(t, rdb, key, 1)
		for i := range 2 {
			all = append(all, locktest.Visit(t, locksOn(t, b.Client(t)).Mutex(key), &r, i+1))
			locktest.AwaitFairQueue(t, rdb, key, i+2)
		}
		holder.Unlocks(t, holding.Mutex(key))
		for _, done := range all {
			require.NoError(t, locktest.OutcomeOf(t, done))
		}
		require.Equal(t, []int{0, 0, 0, 0, 1, 2, 0, 0, 0, 0}, r.Names)
		locktest.RequireFairFree(t, rdb, key)
	})
}
