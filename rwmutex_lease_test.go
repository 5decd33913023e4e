package relock_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// anotherReads has a process that is none of ours read, with a lease for each level.
func (b *rwBench) anotherReads(field string, leases ...time.Duration) {
	b.t.Helper()
	require.NoError(b.t, b.rdb.HSet(b.t.Context(), b.key, "mode", "read", field, len(leases)).Err())
	longest := max(locktest.TTLOf(b.rdb, b.key), 0)
	for i, lease := range leases {
		require.NoError(b.t, b.rdb.Set(b.t.Context(), b.timeout(field, i+1), "1", lease).Err())
		longest = max(longest, lease)
	}
	require.NoError(b.t, b.rdb.PExpire(b.t.Context(), b.key, longest).Err())
}

func (b *rwBench) timeout(field string, level int) string {
	return b.mutex().Read().Keys().RW.Timeouts + ":" + field + ":rwlock_timeout:" + strconv.Itoa(level)
}

// requireLife requires that the key lives for d, give or take what a loaded machine needs.
func (b *rwBench) requireLife(d time.Duration) {
	b.t.Helper()
	life := locktest.TTLOf(b.rdb, b.key)
	require.LessOrEqual(b.t, life, d)
	require.Greater(b.t, life, d-20*time.Second)
}

func TestRWMutex_LivesAsLongAsItsLongestReader(t *testing.T) {
	eachRW(t, lastAsLongAsTheLongest)
}

// HRANDFIELD makes the release of a reader cheap, and came with Redis 6.2.
func TestRWMutex_LongReadersNeedNoCommandThatRedis5Lacks(t *testing.T) {
	t.Parallel()
	b := newRWBench(t, redistest.NewServer(t, "--rename-command", "HRANDFIELD", "").Client(t))
	require.ErrorContains(t, b.rdb.HRandField(t.Context(), b.key, 1).Err(), "unknown command")
	lastAsLongAsTheLongest(b)
	b.free()
}

func lastAsLongAsTheLongest(b *rwBench) {
	long := b.mutex(relock.WithTTL(time.Hour), relock.WithoutRenewal())
	short := b.mutex(relock.WithTTL(time.Minute))
	b.you.Locks(b.t, short.Read())
	b.requireLife(time.Minute)
	b.me.Locks(b.t, long.Read())
	b.requireLife(time.Hour)
	b.you.Unlocks(b.t, short.Read())
	b.requireLife(time.Hour)
	b.you.Locks(b.t, short.Read())
	b.you.Locks(b.t, short.Read())
	b.me.Locks(b.t, short.Read()) // a level with a shorter lease
	b.me.Unlocks(b.t, short.Read())
	b.requireLife(time.Hour)
	b.me.Unlocks(b.t, long.Read())
	b.requireLife(time.Minute)
	b.you.Unlocks(b.t, short.Read())
	b.you.Unlocks(b.t, short.Read())
}

func TestRWMutex_EachLevelOfAReaderHasTheLeaseOfTheHold(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex(relock.WithTTL(time.Minute))
		b.me.Locks(b.t, m.Read())
		b.me.Locks(b.t, b.mutex(relock.WithTTL(time.Hour)).Read())
		field := relock.HoldsOn(b.c, b.key)[0].Field
		for level := range 2 {
			require.Greater(b.t, locktest.TTLOf(b.rdb, b.timeout(field, level+1)), 50*time.Minute)
		}
		b.me.Unlocks(b.t, m.Read())
		require.Negative(b.t, locktest.TTLOf(b.rdb, b.timeout(field, 2)))
		require.Greater(b.t, locktest.TTLOf(b.rdb, b.timeout(field, 1)), 50*time.Minute)
		b.me.Unlocks(b.t, b.mutex(relock.WithTTL(time.Hour)).Read())
	})
}

func TestRWMutex_DeadReaderIsNotKeptAliveByOthers(t *testing.T) {
	redistest.Slow(t)
	eachRW(t, func(b *rwBench) {
		m := b.mutex(relock.WithRenewInterval(20 * time.Millisecond))
		b.me.Locks(b.t, m.Read())
		b.anotherReads("dead:1", 2*time.Second)
		require.Len(b.t, stateOf(b.t, m).Readers, 2)
		theirs := b.another(relock.WithSafetyPoll(time.Minute))
		waiting := b.you.Lock(b.t.Context(), theirs.Write())
		redistest.Eventually(b.t, "the end of its lease", func() bool { return locktest.TTLOf(b.rdb, b.timeout("dead:1", 1)) < 0 })
		require.Len(b.t, stateOf(b.t, m).Readers, 1)
		locktest.GoesOn(b.t, waiting)
		b.me.Unlocks(b.t, m.Read())
		began := time.Now()
		require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
		require.Less(b.t, time.Since(began), 2*time.Second)
		b.you.Unlocks(b.t, theirs.Write())
	})
}

func TestRWMutex_WriterTakesOverFromDeadReaders(t *testing.T) {
	redistest.Slow(t)
	eachRW(t, func(b *rwBench) {
		const lease = time.Second
		redistest.Eventually(b.t, "a try before their leases end", func() bool {
			began := time.Now()
			b.anotherReads("dead:1", lease/2, lease)
			b.anotherReads("dead:2", lease)
			require.NoError(b.t, b.rdb.PExpire(b.t.Context(), b.key, time.Hour).Err())
			if !b.me.Tries(b.t, b.mutex().Write()) {
				return true
			}
			require.GreaterOrEqual(b.t, time.Since(began), lease, "it has not waited for them")
			b.me.Unlocks(b.t, b.mutex().Write())
			return false
		})
		redistest.Eventually(b.t, "the end of their leases", func() bool { return b.me.Tries(b.t, b.mutex().Write()) })
		b.requireLife(defaultTTL)
		require.Empty(b.t, stateOf(b.t, b.mutex()).Readers)
		b.me.Unlocks(b.t, b.mutex().Write())
	})
}

func TestRWMutex_ReadingWhileWritingLeavesTheWritersLease(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, short := b.mutex(relock.WithTTL(time.Hour), relock.WithoutRenewal()), b.mutex(relock.WithTTL(time.Minute))
		b.me.Locks(b.t, m.Write())
		b.me.Locks(b.t, short.Write()) // sets, and does not add, a lease
		b.requireLife(time.Hour)
		b.me.Locks(b.t, short.Read())
		b.me.Locks(b.t, short.Read())
		b.me.Unlocks(b.t, short.Read())
		b.me.Unlocks(b.t, short.Write())
		b.requireLife(time.Hour)
		b.me.Unlocks(b.t, m.Write())
		b.requireLife(time.Minute)
		b.me.Unlocks(b.t, short.Read())
	})
}

func TestRWMutex_BothSidesOfOneOwnerAreRenewed(t *testing.T) {
	t.Parallel()
	locktest.OnEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
		m := relock.LocksOn(t, rdb, relock.WithTTL(ttl)).RWMutex(redistest.Key(t))
		require.NoError(t, m.Lock(t.Context()))
		require.NoError(t, m.RLock(t.Context()))
		require.NoError(t, m.RLock(t.Context()))
		require.NoError(t, m.RUnlock())
		writing, reading := m.Context(t.Context()), m.RContext(t.Context())
		locktest.Throughout(t, ttl*3/2, func() bool { return writing.Err() == nil && reading.Err() == nil }, "held")
		require.NoError(t, m.Unlock())
		require.ErrorIs(t, context.Cause(writing), relock.ErrReleased)
		locktest.Throughout(t, ttl*3/2, func() bool { return reading.Err() == nil }, "held")
		require.NoError(t, m.RUnlock())
		locktest.RequireFree(t, rdb, m.Name())
	})
}

func TestRWMutex_ReaderWithoutItsTimeoutKeyIsLostAlone(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex(relock.WithRenewInterval(20 * time.Millisecond))
		b.me.Locks(b.t, m.Read())
		field := relock.HoldsOn(b.c, b.key)[0].Field
		b.you.Locks(b.t, m.Read())
		mine, yours := b.me.ContextOf(m.Read()), b.you.ContextOf(m.Read())
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.timeout(field, 1)).Err())
		redistest.Receive(b.t, mine.Done())
		require.ErrorIs(b.t, context.Cause(mine), relock.ErrLost)
		require.ErrorIs(b.t, b.me.Call(m.RUnlock), relock.ErrLost)
		require.NoError(b.t, yours.Err())
		b.you.Unlocks(b.t, m.Read())
	})
}

func TestRWMutex_DeadWaitingWriterKeepsReadersOutForItsClaimOnly(t *testing.T) {
	redistest.Slow(t)
	eachRW(t, func(b *rwBench) {
		m := b.mutex(relock.WithSafetyPoll(time.Minute))
		b.anotherReads("alive:1", time.Hour)
		require.NoError(b.t, b.rdb.Set(b.t.Context(), m.Read().Keys().RW.Claim, "1 dead:7:write", time.Second).Err())
		require.False(b.t, b.me.Tries(b.t, m.Read()))
		began := time.Now()
		b.me.Locks(b.t, m.Read())
		require.Less(b.t, time.Since(began), 3*time.Second)
		b.me.Unlocks(b.t, m.Read())
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.key, b.timeout("alive:1", 1)).Err())
	})
}

func TestRWMutex_WaitingReadersOfAProcessCostTheTrafficOfOne(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, backend *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, backend)
		c, key := relock.LocksOn(t, rdb, relock.WithSafetyPoll(time.Hour)), redistest.Key(t)
		m, holder := c.RWMutex(key), locktest.NewActor(t)
		theirs := relock.LocksOn(t, backend.Client(t)).RWMutex(key)
		holder.Locks(t, theirs.Write())
		var waiting []<-chan error
		queue := func(n int) {
			for range n {
				waiting = append(waiting, locktest.NewActor(t).Begin(func() error {
					return m.RDo(t.Context(), func(context.Context) error { return nil })
				}))
			}
			relock.AwaitWaiters(t, c, key, len(waiting))
		}
		queue(1)
		relock.AwaitListening(t, c, key)
		locktest.AwaitAsleep(t, relay, key)
		before := relay.Count(redistest.Scripts)
		queue(20)
		require.Equal(t, before, relay.Count(redistest.Scripts), "who joins the line asks nothing")
		holder.Unlocks(t, theirs.Write())
		for _, w := range waiting {
			require.NoError(t, locktest.OutcomeOf(t, w))
		}
		require.Equal(t, before+2*21, relay.Count(redistest.Scripts), "one to lock and one to unlock for each")
	})
}

// A reader that is let in late would make the next writer wait.
func TestRWMutex_NoNewReaderEntersAfterAClaim(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex()
		b.me.Locks(b.t, m.Read())
		claim := m.Write().Keys().RW.Claim
		waiting := b.you.Lock(b.t.Context(), m.Write())
		redistest.Eventually(b.t, "a claim", func() bool { return b.rdb.Exists(b.t.Context(), claim).Val() == 1 })
		first := b.rdb.Get(b.t.Context(), claim).Val()
		second := locktest.NewActor(b.t)
		ctx, cancel := context.WithCancel(b.t.Context())
		other := second.Lock(ctx, b.another().Write())
		field := func() (from, whose string) {
			from, whose, _ = strings.Cut(b.rdb.Get(b.t.Context(), claim).Val(), " ")
			return from, whose
		}
		began, whose := field()
		redistest.Eventually(b.t, "the second writer's claim", func() bool { _, now := field(); return now != whose })
		from, _ := field()
		require.Equal(b.t, began, from, "it begins again: readers come in for ever")
		require.True(b.t, strings.HasPrefix(first, from))
		cancel()
		require.Error(b.t, locktest.OutcomeOf(b.t, other))
		b.me.Unlocks(b.t, m.Read())
		require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
		b.you.Unlocks(b.t, m.Write())
	})
}

func TestRWMutex_LossOfOneSideIsReportedOnTheOther(t *testing.T) {
	redistest.Slow(t)
	eachRW(t, func(b *rwBench) {
		m := b.mutex(relock.WithTTL(time.Second), relock.WithoutRenewal())
		b.me.Locks(b.t, m.Write())
		redistest.Receive(b.t, b.me.ContextOf(m.Write()).Done())
		require.ErrorIs(b.t, b.me.Call(func() error { return m.RLock(b.t.Context()) }), relock.ErrLost)
		require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrLost)
		b.me.Locks(b.t, m.Read())
		redistest.Receive(b.t, b.me.ContextOf(m.Read()).Done())
		require.ErrorIs(b.t, b.me.Call(func() error { return m.Lock(b.t.Context()) }), relock.ErrLost)
		require.ErrorIs(b.t, b.me.Call(m.RUnlock), relock.ErrLost)
	})
}

// fieldIn is the name by which an actor acquires to read.
func (b *rwBench) fieldIn(a *locktest.Actor) (field string) {
	b.t.Helper()
	require.NoError(b.t, a.Call(func() error {
		field = locktest.FieldOf(b.c)
		return nil
	}))
	return field
}

// A request to read that is sent again may find what its first copy made, dead, and kept on
// Redis by others who read.
func TestRWMutex_ReaderThatFindsItsFieldDeadStartsAgain(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, field := b.mutex(), b.fieldIn(b.me)
		b.anotherReads("alive:1", time.Hour)
		require.NoError(b.t, b.rdb.HSet(b.t.Context(), b.key, field, 1).Err())
		claim := m.Read().Keys().RW.Claim
		require.NoError(b.t, b.rdb.Set(b.t.Context(), claim, "1 waiting:7:write", time.Hour).Err())
		require.False(b.t, b.me.Tries(b.t, m.Read()), "it is a new reader, whom a claim keeps out")
		require.NoError(b.t, b.rdb.Del(b.t.Context(), claim).Err())

		b.me.Locks(b.t, m.Read())
		require.Positive(b.t, locktest.TTLOf(b.rdb, b.timeout(field, 1)), "for Redis it does not read")
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.timeout("alive:1", 1)).Err())
		require.NoError(b.t, b.rdb.PExpire(b.t.Context(), b.key, defaultTTL).Err())
		require.False(b.t, b.you.Tries(b.t, m.Write()))
		b.me.Unlocks(b.t, m.Read())
	})
}
