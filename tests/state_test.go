package tests

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

func TestState_ReportsTheHolder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, watcher := locksOn(t, rdb), locksOn(t, rdb)
		stateOf := func() relock.State {
			s, err := watcher.Mutex(key).State(t.Context())
			require.NoError(t, err)
			return s
		}
		require.Equal(t, relock.State{}, stateOf(), "free")

		m := c.Mutex(key, relock.WithTTL(time.Minute), relock.WithFencing())
		locktest.RequireLocked(t, m)
		locktest.RequireLocked(t, m)
		s := stateOf()
		require.Equal(t, locktest.FieldOf(c), s.Owner)
		require.Equal(t, 2, s.Count)
		require.Equal(t, m.FencingToken(), s.FencingToken)
		require.LessOrEqual(t, s.TTL, time.Minute)
		require.Greater(t, s.TTL, 40*time.Second)
		locktest.RequireUnlocked(t, m)
		require.Equal(t, 1, stateOf().Count)
		locktest.RequireUnlocked(t, m)
		require.Empty(t, stateOf().Owner)
		require.NotZero(t, stateOf().FencingToken, "the counter stays")

		locktest.HeldByAnother(t, rdb, key, 0)
		s = stateOf()
		require.Equal(t, "another:1", s.Owner)
		require.Negative(t, s.TTL, "without expiry")
	})
}

func TestState_OfAMultiMutexIsThatOfTheFirstHeldName(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		m := locksOn(t, rdb).MultiMutex([]string{key + "-c", key + "-b", key + "-a"})
		s, err := m.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, relock.State{}, s)
		require.NoError(t, rdb.HSet(t.Context(), key+"-c", "late:1", 1).Err())
		require.NoError(t, rdb.HSet(t.Context(), key+"-b", "early:1", 3).Err())
		s, err = m.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, "early:1", s.Owner)
		require.Equal(t, 3, s.Count)
	})
}

func TestForceUnlock_OfAFreeLockDoesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		forced, err := locksOn(t, b.Client(t)).Mutex(redistest.Key(t)).ForceUnlock(t.Context())
		require.NoError(t, err)
		require.False(t, forced)
	})
}

func TestForceUnlock_NotifiesAHolderOfTheSameClient(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, holder, operator := locksOn(t, rdb), locktest.NewActor(t), locktest.NewActor(t)
		m := c.Mutex(key)
		holder.Locks(t, m)
		var ctx context.Context
		require.NoError(t, holder.Call(func() error { ctx = m.Context(t.Context()); return nil }))
		var forced bool
		require.NoError(t, operator.Call(func() (err error) {
			forced, err = c.Mutex(key).ForceUnlock(t.Context())
			return err
		}))
		require.True(t, forced)
		require.Error(t, ctx.Err())
		require.ErrorIs(t, context.Cause(ctx), relock.ErrLost)
		locktest.RequireFree(t, rdb, key)
		locktest.RequireLocked(t, m)
		require.ErrorIs(t, holder.Call(m.Unlock), relock.ErrLost)
		locktest.RequireOnRedis(t, rdb, key, locktest.FieldOf(c), 1)
		locktest.RequireUnlocked(t, m)
	})
}

func TestForceUnlock_EndsAnotherClientsHoldAndWakesWaiters(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		holder := locksOn(t, rdb, relock.WithRenewInterval(100*time.Millisecond))
		m := holder.Mutex(key)
		locktest.RequireLocked(t, m)
		ctx := m.Context(t.Context())
		c, waiter := locksOn(t, rdb, relock.WithSafetyPoll(time.Hour)), locktest.NewActor(t)
		waiting := waiter.Lock(t.Context(), c.Mutex(key))
		locktest.AwaitSubscribed(t, rdb, key, c)
		forced, err := locksOn(t, rdb).Mutex(key).ForceUnlock(t.Context())
		require.NoError(t, err)
		require.True(t, forced)
		require.NoError(t, locktest.OutcomeOf(t, waiting), "the waiter is woken")
		redistest.Receive(t, ctx.Done())
		require.ErrorIs(t, context.Cause(ctx), relock.ErrLost, "the holder learns it at its next renewal")
		require.ErrorIs(t, m.Unlock(), relock.ErrLost)
		require.True(t, waiter.Tries(t, c.Mutex(key)), "what the waiter got is still its own")
		waiter.Unlocks(t, c.Mutex(key))
		waiter.Unlocks(t, c.Mutex(key))
		locktest.RequireFree(t, rdb, key)
	})
}

func TestForceUnlock_LeavesAHolderItDidNotSee(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		key, direct := redistest.Key(t), b.Client(t)
		locktest.HeldByAnother(t, direct, key, time.Minute)
		newcomer := locksOn(t, direct).Mutex(key)
		relay.Before(locktest.RunsOf(protocol.ForceScript), func(redistest.Command) {
			_ = direct.Del(context.Background(), key).Err()
			_ = direct.HSet(context.Background(), key, "newcomer:1", 1).Err()
		})
		forced, err := locksOn(t, rdb).Mutex(key).ForceUnlock(t.Context())
		require.NoError(t, err)
		require.False(t, forced)
		s, err := newcomer.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, "newcomer:1", s.Owner)
	})
}

func TestForceUnlock_OfAMultiMutexFreesEachName(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c, operator := locksOn(t, rdb), locksOn(t, rdb)
		names := []string{key + "-a", key + "-b"}
		single := c.Mutex(names[1])
		locktest.RequireLocked(t, single)
		forced, err := operator.MultiMutex(names).ForceUnlock(t.Context())
		require.NoError(t, err)
		require.True(t, forced, "one of them was held")
		locktest.RequireFree(t, rdb, names...)
		require.ErrorIs(t, single.Unlock(), relock.ErrLost)

		both := c.MultiMutex(names)
		locktest.RequireLocked(t, both)
		forced, err = c.MultiMutex(names).ForceUnlock(t.Context())
		require.NoError(t, err)
		require.True(t, forced)
		locktest.RequireFree(t, rdb, names...)
		require.ErrorIs(t, both.Unlock(), relock.ErrLost)
	})
}
