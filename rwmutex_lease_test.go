package relock

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// strangerReads has a process that is none of ours read, with a lease for each level.
func (b *rwBench) strangerReads(field string, leases ...time.Duration) {
	b.t.Helper()
	require.NoError(b.t, b.rdb.HSet(b.t.Context(), b.key, "mode", "read", field, len(leases)).Err())
	longest := max(ttlOf(b.rdb, b.key), 0)
	for i, lease := range leases {
		require.NoError(b.t, b.rdb.Set(b.t.Context(), b.timeout(field, i+1), "1", lease).Err())
		longest = max(longest, lease)
	}
	require.NoError(b.t, b.rdb.PExpire(b.t.Context(), b.key, longest).Err())
}

func (b *rwBench) timeout(field string, level int) string {
	return b.mutex().read.target.RW.Timeouts + ":" + field + ":rwlock_timeout:" + strconv.Itoa(level)
}

// requireLife requires that the key lives for d, give or take what a loaded machine needs.
func (b *rwBench) requireLife(d time.Duration) {
	b.t.Helper()
	life := ttlOf(b.rdb, b.key)
	require.LessOrEqual(b.t, life, d)
	require.Greater(b.t, life, d-20*time.Second)
}

func TestTheLockLivesAsLongAsItsLongestReader(t *testing.T) {
	eachRW(t, lastAsLongAsTheLongest)
}

// HRANDFIELD makes the release of a reader cheap, and came with Redis 6.2.
func TestReadersNeedNoCommandThatRedis5LacksToLiveAsLong(t *testing.T) {
	t.Parallel()
	b := newRWBench(t, redistest.NewServer(t, "--rename-command", "HRANDFIELD", "").Client(t))
	require.ErrorContains(t, b.rdb.HRandField(t.Context(), b.key, 1).Err(), "unknown command")
	lastAsLongAsTheLongest(b)
	b.free()
}

func lastAsLongAsTheLongest(b *rwBench) {
	long := b.mutex(WithTTL(time.Hour), WithoutRenewal())
	short := b.mutex(WithTTL(time.Minute))
	b.you.locks(b.t, toRead(short))
	b.requireLife(time.Minute)
	b.me.locks(b.t, toRead(long))
	b.requireLife(time.Hour)
	b.you.unlocks(b.t, toRead(short))
	b.requireLife(time.Hour)
	b.you.locks(b.t, toRead(short))
	b.you.locks(b.t, toRead(short))
	b.me.locks(b.t, toRead(short)) // a level with a shorter lease
	b.me.unlocks(b.t, toRead(short))
	b.requireLife(time.Hour)
	b.me.unlocks(b.t, toRead(long))
	b.requireLife(time.Minute)
	b.you.unlocks(b.t, toRead(short))
	b.you.unlocks(b.t, toRead(short))
}

func TestEachLevelOfAReaderHasTheLeaseOfTheHold(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex(WithTTL(time.Minute))
		b.me.locks(b.t, toRead(m))
		b.me.locks(b.t, toRead(b.mutex(WithTTL(time.Hour))))
		field := holdsOn(b.c.session, b.key)[0].name.Field
		for level := range 2 {
			require.Greater(b.t, ttlOf(b.rdb, b.timeout(field, level+1)), 50*time.Minute)
		}
		b.me.unlocks(b.t, toRead(m))
		require.Negative(b.t, ttlOf(b.rdb, b.timeout(field, 2)))
		require.Greater(b.t, ttlOf(b.rdb, b.timeout(field, 1)), 50*time.Minute)
		b.me.unlocks(b.t, toRead(b.mutex(WithTTL(time.Hour))))
	})
}

func TestADeadReaderIsNotKeptAliveByOthers(t *testing.T) {
	redistest.Slow(t)
	eachRW(t, func(b *rwBench) {
		m := b.mutex(WithRenewInterval(20 * time.Millisecond))
		b.me.locks(b.t, toRead(m))
		b.strangerReads("dead:1", 2*time.Second)
		require.Len(b.t, stateOf(b.t, m).Readers, 2)
		theirs := b.another(WithSafetyPoll(time.Minute))
		waiting := b.you.lock(b.t.Context(), toWrite(theirs))
		eventually(b.t, "the end of its lease", func() bool { return ttlOf(b.rdb, b.timeout("dead:1", 1)) < 0 })
		require.Len(b.t, stateOf(b.t, m).Readers, 1)
		goesOn(b.t, waiting)
		b.me.unlocks(b.t, toRead(m))
		began := time.Now()
		require.NoError(b.t, outcomeOf(b.t, waiting))
		require.Less(b.t, time.Since(began), 2*time.Second)
		b.you.unlocks(b.t, toWrite(theirs))
	})
}

func TestAWriterTakesOverFromDeadReaders(t *testing.T) {
	redistest.Slow(t)
	eachRW(t, func(b *rwBench) {
		const lease = time.Second
		eventually(b.t, "a try before their leases end", func() bool {
			began := time.Now()
			b.strangerReads("dead:1", lease/2, lease)
			b.strangerReads("dead:2", lease)
			require.NoError(b.t, b.rdb.PExpire(b.t.Context(), b.key, time.Hour).Err())
			if !b.me.tries(b.t, toWrite(b.mutex())) {
				return true
			}
			require.GreaterOrEqual(b.t, time.Since(began), lease, "it has not waited for them")
			b.me.unlocks(b.t, toWrite(b.mutex()))
			return false
		})
		eventually(b.t, "the end of their leases", func() bool { return b.me.tries(b.t, toWrite(b.mutex())) })
		b.requireLife(defaultTTL)
		require.Empty(b.t, stateOf(b.t, b.mutex()).Readers)
		b.me.unlocks(b.t, toWrite(b.mutex()))
	})
}

func TestReadingWhileWritingDoesNotTouchTheLeaseOfTheWriter(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, short := b.mutex(WithTTL(time.Hour), WithoutRenewal()), b.mutex(WithTTL(time.Minute))
		b.me.locks(b.t, toWrite(m))
		b.me.locks(b.t, toWrite(short)) // sets, and does not add, a lease
		b.requireLife(time.Hour)
		b.me.locks(b.t, toRead(short))
		b.me.locks(b.t, toRead(short))
		b.me.unlocks(b.t, toRead(short))
		b.me.unlocks(b.t, toWrite(short))
		b.requireLife(time.Hour)
		b.me.unlocks(b.t, toWrite(m))
		b.requireLife(time.Minute)
		b.me.unlocks(b.t, toRead(short))
	})
}

func TestBothSidesOfOneOwnerAreRenewed(t *testing.T) {
	t.Parallel()
	onEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
		m := locksOn(t, rdb, WithTTL(ttl)).RWMutex(redistest.Key(t))
		require.NoError(t, m.Lock(t.Context()))
		require.NoError(t, m.RLock(t.Context()))
		require.NoError(t, m.RLock(t.Context()))
		require.NoError(t, m.RUnlock())
		writing, reading := m.Context(t.Context()), m.RContext(t.Context())
		throughout(t, ttl*3/2, func() bool { return writing.Err() == nil && reading.Err() == nil }, "held")
		require.NoError(t, m.Unlock())
		require.ErrorIs(t, context.Cause(writing), ErrReleased)
		throughout(t, ttl*3/2, func() bool { return reading.Err() == nil }, "held")
		require.NoError(t, m.RUnlock())
		requireFree(t, rdb, m.Name())
	})
}

func TestAReaderWhoseTimeoutKeyIsGoneHasLostItsHoldAndNoOtherHas(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex(WithRenewInterval(20 * time.Millisecond))
		b.me.locks(b.t, toRead(m))
		field := holdsOn(b.c.session, b.key)[0].name.Field
		b.you.locks(b.t, toRead(m))
		mine, yours := contextOf(b.me, toRead(m)), contextOf(b.you, toRead(m))
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.timeout(field, 1)).Err())
		receives(b.t, mine.Done())
		require.ErrorIs(b.t, context.Cause(mine), ErrLost)
		require.ErrorIs(b.t, b.me.call(m.RUnlock), ErrLost)
		require.NoError(b.t, yours.Err())
		b.you.unlocks(b.t, toRead(m))
	})
}

// Java's watchdog gives the key its own 30 s, whatever others have asked for.
func TestReadersAreRenewedBeforeAJavaReaderCanEndTheirLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		m := locksOn(t, b.Client(t)).RWMutex("x", WithTTL(5*time.Minute))
		require.Equal(t, readRenewInterval, m.read.settings.renewInterval)
		require.Equal(t, 100*time.Second, m.write.settings.renewInterval)
	})
}

func TestAWriterThatHasDiedWhileItWaitedKeepsReadersOutForItsClaimOnly(t *testing.T) {
	redistest.Slow(t)
	eachRW(t, func(b *rwBench) {
		m := b.mutex(WithSafetyPoll(time.Minute))
		b.strangerReads("alive:1", time.Hour)
		require.NoError(b.t, b.rdb.Set(b.t.Context(), m.read.target.RW.Claim, "1 dead:7:write", time.Second).Err())
		require.False(b.t, b.me.tries(b.t, toRead(m)))
		began := time.Now()
		b.me.locks(b.t, toRead(m))
		require.Less(b.t, time.Since(began), 3*time.Second)
		b.me.unlocks(b.t, toRead(m))
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.key, b.timeout("alive:1", 1)).Err())
	})
}

func TestReadersOfAProcessThatWaitCostTheTrafficOfOne(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		relay, rdb := relayedTo(t, backend)
		c, key := locksOn(t, rdb, WithSafetyPoll(time.Hour)), redistest.Key(t)
		m, holder := c.RWMutex(key), newActor(t)
		theirs := locksOn(t, backend.Client(t)).RWMutex(key)
		holder.locks(t, toWrite(theirs))
		var waiting []<-chan error
		queue := func(n int) {
			for range n {
				waiting = append(waiting, newActor(t).begin(func() error {
					return m.RDo(t.Context(), func(context.Context) error { return nil })
				}))
			}
			awaitWaiters(t, c.session, key, len(waiting))
		}
		queue(1)
		awaitListening(t, c.session, key)
		awaitAsleep(t, relay, key)
		before := relay.Count(redistest.Scripts)
		queue(20)
		require.Equal(t, before, relay.Count(redistest.Scripts), "who joins the line asks nothing")
		holder.unlocks(t, toWrite(theirs))
		for _, w := range waiting {
			require.NoError(t, outcomeOf(t, w))
		}
		require.Equal(t, before+2*21, relay.Count(redistest.Scripts), "one to lock and one to unlock for each")
	})
}

// A reader that is let in late would make the next writer wait.
func TestNoNewReaderComesInOnceTheClaimHasBegun(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex()
		b.me.locks(b.t, toRead(m))
		claim := m.write.target.RW.Claim
		waiting := b.you.lock(b.t.Context(), toWrite(m))
		eventually(b.t, "a claim", func() bool { return b.rdb.Exists(b.t.Context(), claim).Val() == 1 })
		first := b.rdb.Get(b.t.Context(), claim).Val()
		second := newActor(b.t)
		ctx, cancel := context.WithCancel(b.t.Context())
		other := second.lock(ctx, toWrite(b.another()))
		field := func() (from, whose string) {
			from, whose, _ = strings.Cut(b.rdb.Get(b.t.Context(), claim).Val(), " ")
			return from, whose
		}
		began, whose := field()
		eventually(b.t, "the second writer's claim", func() bool { _, now := field(); return now != whose })
		from, _ := field()
		require.Equal(b.t, began, from, "it begins anew: readers come in for ever")
		require.True(b.t, strings.HasPrefix(first, from))
		cancel()
		require.Error(b.t, outcomeOf(b.t, other))
		b.me.unlocks(b.t, toRead(m))
		require.NoError(b.t, outcomeOf(b.t, waiting))
		b.you.unlocks(b.t, toWrite(m))
	})
}

func TestALossOnOneSideIsToldOnTheOther(t *testing.T) {
	redistest.Slow(t)
	eachRW(t, func(b *rwBench) {
		m := b.mutex(WithTTL(time.Second), WithoutRenewal())
		b.me.locks(b.t, toWrite(m))
		receives(b.t, contextOf(b.me, toWrite(m)).Done())
		require.ErrorIs(b.t, b.me.call(func() error { return m.RLock(b.t.Context()) }), ErrLost)
		require.ErrorIs(b.t, b.me.call(m.Unlock), ErrLost)
		b.me.locks(b.t, toRead(m))
		receives(b.t, contextOf(b.me, toRead(m)).Done())
		require.ErrorIs(b.t, b.me.call(func() error { return m.Lock(b.t.Context()) }), ErrLost)
		require.ErrorIs(b.t, b.me.call(m.RUnlock), ErrLost)
	})
}
