package relock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// What WithMinHold promises when Redis does not answer, and where locks have parts: levels, names, sides,
// nodes, replicas.

// A keep that does not get through is made up for in the background. What comes late of it finds nothing.
func TestAMinHoldThatIsNotAnsweredIsKeptInTheBackground(t *testing.T) {
	t.Parallel()
	testKinds(t, []property{{"a keep that does not get through", func(b *kindBench) {
		b.relay()
		const minHold = 1500 * time.Millisecond
		m := b.mutex(WithMinHold(minHold), WithUnlockTimeout(300*time.Millisecond))
		earliest := time.Now()
		b.me.locks(b.t, m)
		var held []*redistest.Held
		for _, relay := range b.relays {
			held = append(held, relay.HoldBackSilently(b.runs(protocol.KeepScript)).Always())
		}
		err := b.me.call(m.Unlock)
		require.ErrorContains(b.t, err, "keep the key for up to 30s")
		require.Zero(b.t, levelsOf(b.me, m))
		for _, h := range held {
			h.Remove()
		}
		eventually(b.t, "kept", func() bool {
			return b.on(func(rdb redis.UniversalClient) bool { return ttlOf(rdb, b.key) <= minHold }) == len(b.rdbs)
		})
		b.requireKept()
		b.me.locks(b.t, b.rival()) // without the pipeline it is held up by the copies
		require.GreaterOrEqual(b.t, time.Since(earliest), minHold)
		b.me.unlocks(b.t, b.rival())
		b.me.locks(b.t, m)
		for _, h := range held {
			require.NoError(b.t, second(h.Deliver(b.t.Context())))
		}
		b.requireHeld(m, 1)
		b.me.unlocks(b.t, b.mutex())
	}}}, allKinds)
}

func TestALateRenewalDoesNotLengthenAMinHold(t *testing.T) {
	t.Parallel()
	testKinds(t, []property{{"a renewal that comes late", func(b *kindBench) {
		b.relay()
		const minHold = 10 * time.Second // less than the lease
		m := b.mutex(WithMinHold(minHold), WithRenewInterval(100*time.Millisecond))
		var held []*redistest.Held
		for _, relay := range b.relays {
			held = append(held, relay.HoldBackSilently(b.runs(protocol.RenewScript)).Always())
		}
		b.me.locks(b.t, m)
		for _, h := range held {
			h.Wait(b.t)
			h.Remove()
		}
		b.me.unlocks(b.t, m)
		for _, h := range held {
			require.NoError(b.t, second(h.Deliver(b.t.Context())))
		}
		eventually(b.t, "kept everywhere", func() bool {
			return b.on(func(rdb redis.UniversalClient) bool { return ttlOf(rdb, b.key) <= minHold }) == len(b.rdbs)
		})
		throughout(b.t, aWhile, func() bool {
			return b.on(func(rdb redis.UniversalClient) bool { return ttlOf(rdb, b.key) > minHold }) == 0
		}, "lengthened")
		b.requireKept()
		fieldsOn(b) // all have it
		require.NoError(b.t, second(b.another().ForceUnlock(b.t.Context())))
	}}}, allKinds)
}

// The monotonic clock counts.
func TestAMinHoldDoesNotGoByTheWallClock(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	c, clocks := locksWithClock(t, rdb, WithMinHold(time.Minute))
	m := c.Mutex(redistest.Key(t))
	requireLocked(t, m)
	clocks.set(-time.Hour)
	requireUnlocked(t, m)
	left := ttlOf(rdb, m.Name())
	require.LessOrEqual(t, left, time.Minute)
	require.Greater(t, left, 50*time.Second)
}

// A waiter that follows its predecessor before Redis knows has a min hold of its own.
func TestAHoldThatFollowedAnotherKeepsItsMinHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb := backend.Client(t)
		c, key, me, you := locksOn(t, rdb), redistest.Key(t), newActor(t), newActor(t)
		before, after := c.Mutex(key), c.Mutex(key, WithMinHold(time.Hour))
		me.locks(t, before)
		following := you.lock(t.Context(), after)
		awaitWaiters(t, c.session, key, 1)
		me.unlocks(t, before)
		require.NoError(t, outcomeOf(t, following))
		you.unlocks(t, after)
		require.False(t, me.tries(t, before))
		require.Greater(t, ttlOf(rdb, key), 59*time.Minute)
		require.NoError(t, second(before.ForceUnlock(t.Context())))
	})
}

func TestTokensRiseOverAMinHold(t *testing.T) {
	t.Parallel()
	b := newKindBench(t, redistest.Mini(t), kindNamed("plain"))
	m := b.mutex(WithFencing(), WithMinHold(50*time.Millisecond))
	b.me.locks(t, m)
	first := tokenOf(b.me, m)
	b.me.unlocks(t, m)
	b.me.locks(t, m)
	require.Greater(t, tokenOf(b.me, m), first)
	b.me.unlocks(t, m)
	b.free()
}

func TestDoKeepsAMinHoldAlsoAfterAPanic(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	m := locksOn(t, rdb).Mutex(redistest.Key(t), WithMinHold(time.Hour))
	require.Panics(t, func() { _ = m.Do(t.Context(), func(context.Context) error { panic("job") }) })
	held, err := m.TryLock(t.Context())
	require.NoError(t, err)
	require.False(t, held)
	_, err = m.ForceUnlock(t.Context())
	require.NoError(t, err)
	failed := errors.New("job")
	require.Equal(t, failed, m.Do(t.Context(), func(context.Context) error { return failed }))
	require.Positive(t, ttlOf(rdb, m.Name()))
}

// A name that is unlocked while another of the same hold stays is kept by itself.
func TestAPartOfAHoldIsKept(t *testing.T) {
	eachPartly(t, func(b *partly) {
		me, you, both := newActor(t), newActor(t), b.both(WithMinHold(aMinHold))
		earliest := time.Now()
		me.locks(b.t, both)
		me.locks(b.t, b.one())
		me.unlocks(b.t, both)
		require.Equal(b.t, 1, levelsOf(me, b.one()))
		require.False(b.t, you.tries(b.t, b.rivalOfTwo))
		you.locks(b.t, b.rivalOfTwo)
		require.GreaterOrEqual(b.t, time.Since(earliest), aMinHold)
		require.Equal(b.t, 1, levelsOf(me, b.one()))
		you.unlocks(b.t, b.rivalOfTwo)
		me.unlocks(b.t, b.one())
		eventually(b.t, "free", func() bool { return len(keysAbout(b.t, b.rdb.(*redis.Client), b.names[0])) == 0 })
	})
}

// A MultiMutex that lost one of its names keeps none.
func TestAHoldThatLostANameKeepsNone(t *testing.T) {
	eachPartly(t, func(b *partly) {
		me, you, both := newActor(t), newActor(t), b.both(WithMinHold(time.Hour))
		me.locks(b.t, both)
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.names[0]).Err())
		require.ErrorIs(b.t, me.call(both.Unlock), ErrLost)
		eventually(b.t, "the second name", func() bool { return you.tries(b.t, b.rivalOfTwo) })
		you.unlocks(b.t, b.rivalOfTwo)
	})
}

// A Lock that fails changes nothing: the level that it had on the way asks for no min hold.
func TestALockThatFailedAsksForNoMinHold(t *testing.T) {
	eachPartly(t, func(b *partly) {
		heldByStranger(b.t, b.rdb, b.names[1], time.Minute)
		me, you := newActor(t), newActor(t)
		me.locks(b.t, b.one())
		require.False(b.t, me.tries(b.t, b.both(WithMinHold(time.Hour))))
		me.unlocks(b.t, b.one())
		other := b.rival.Mutex(b.names[0])
		require.True(b.t, you.tries(b.t, other))
		you.unlocks(b.t, other)
	})
}

func TestASideOfAnRWMutexIsKeptAsWhatItWas(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, other := b.mutex(WithMinHold(aMinHold)), b.another()
		earliest := time.Now()
		b.me.locks(b.t, &m.read)
		b.me.unlocks(b.t, &m.read)
		require.True(b.t, b.you.tries(b.t, &other.read), "a reader keeps no reader out")
		b.you.unlocks(b.t, &other.read)
		require.True(b.t, b.me.tries(b.t, &m.read), "not even of the same owner")
		b.me.unlocks(b.t, &m.read)
		require.False(b.t, b.me.tries(b.t, &m.write))
		require.False(b.t, b.you.tries(b.t, &other.write))
		b.you.locks(b.t, &other.write)
		require.GreaterOrEqual(b.t, time.Since(earliest), aMinHold)
		b.you.unlocks(b.t, &other.write)

		earliest = time.Now()
		b.me.locks(b.t, &m.write)
		b.me.unlocks(b.t, &m.write)
		require.False(b.t, b.you.tries(b.t, &other.read))
		require.False(b.t, b.me.tries(b.t, &m.read), "its last writer reads no sooner than others")
		b.you.locks(b.t, &other.read)
		require.GreaterOrEqual(b.t, time.Since(earliest), aMinHold)
		b.you.unlocks(b.t, &other.read)
	})
}

// A writer that reads when it unlocks is kept as a reader, however its read side goes on.
func TestAWriterThatReadsOnIsKeptAsAReader(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, other := b.mutex(), b.another()
		writes := b.mutex(WithMinHold(aMinHold))
		earliest := time.Now()
		b.me.locks(b.t, &writes.write)
		b.me.locks(b.t, &m.read)
		b.me.unlocks(b.t, &writes.write)
		require.True(b.t, b.you.tries(b.t, &other.read))
		b.you.unlocks(b.t, &other.read)
		b.me.unlocks(b.t, &m.read)
		require.False(b.t, b.you.tries(b.t, &other.write))
		b.you.locks(b.t, &other.write)
		require.GreaterOrEqual(b.t, time.Since(earliest), aMinHold)
		b.you.unlocks(b.t, &other.write)

		// One that has read, and is kept for that, while it writes on.
		reads := b.mutex(WithMinHold(aMinHold))
		b.me.locks(b.t, &m.write)
		earliest = time.Now()
		b.me.locks(b.t, &reads.read)
		b.me.unlocks(b.t, &reads.read)
		require.False(b.t, b.you.tries(b.t, &other.read), "it writes")
		b.me.unlocks(b.t, &m.write)
		require.True(b.t, b.you.tries(b.t, &other.read))
		b.you.unlocks(b.t, &other.read)
		b.you.locks(b.t, &other.write)
		require.GreaterOrEqual(b.t, time.Since(earliest), aMinHold)
		b.you.unlocks(b.t, &other.write)
	})
}

// One node that is down does not keep a quorum from it, and learns of it when it is back. Most nodes do.
func TestMostNodesOfAQuorumHaveToKeepAMinHold(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		m := b.mutex(WithMinHold(time.Hour), WithUnlockTimeout(time.Second))
		kept := func(nodes ...int) {
			b.t.Helper()
			eventually(b.t, "kept", func() bool {
				n := 0
				for _, i := range nodes {
					for field := range b.fields()[i] {
						if _, is := keys.KeptFor(field); is && ttlOf(b.servers[i], b.key) > time.Minute {
							n++
						}
					}
				}
				return n == len(nodes)
			})
		}
		b.me.locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		b.down(2)
		b.me.unlocks(b.t, m)
		kept(0, 1)
		require.False(b.t, b.rivalTries())
		b.up(2)
		kept(0, 1, 2)
		require.NoError(b.t, second(b.rival.Mutex(b.key).ForceUnlock(b.t.Context())))
		b.awaitFree()

		b.me.locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		b.down(1, 2)
		var few *QuorumError
		require.ErrorAs(b.t, b.me.call(m.Unlock), &few)
		b.up(1, 2)
		kept(0, 1, 2)
		require.NoError(b.t, second(b.rival.Mutex(b.key).ForceUnlock(b.t.Context())))
		b.awaitFree()
	})
}

func TestWithReplicasAMinHoldIsConfirmed(t *testing.T) {
	b := newReplicaBench(t, 1, WithReplicas(1, 200*time.Millisecond))
	m := b.locks.Mutex(b.key, WithMinHold(time.Hour))
	b.locked(m)
	requireUnlocked(t, m)
	require.Equal(t, []string{"1"}, b.waitsFor(protocol.KeepScript))
	_, err := m.ForceUnlock(t.Context())
	require.NoError(t, err)

	b.locked(m)
	id := b.locks.ID()
	b.pause()
	require.ErrorIs(t, m.Unlock(), ErrNotReplicated)
	require.NotEqual(t, id, b.locks.ID(), "a failover may bring the hold back, of which no later one may be a level")
	require.Greater(t, ttlOf(b.master, b.key), time.Minute)
	b.resume()
	_, err = m.ForceUnlock(t.Context())
	require.NoError(t, err)
}

// Waiters of Redisson, who sleep for as long as they were told, hear that they may ask again.
func TestStrangersAreToldOfAMinHold(t *testing.T) {
	t.Parallel()
	eachOf(t, lockKinds, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		b := newKindBench(t, backend, k)
		m := b.mutex(WithMinHold(aMinHold))
		sub := b.rdbs[0].Subscribe(t.Context(), m.target.Channels[0])
		t.Cleanup(func() { _ = sub.Close() })
		require.NoError(t, second(sub.Receive(t.Context())))
		messages := sub.Channel()
		b.heldBriefly(m)
		for message := receives(t, messages); message.Payload != "0"; message = receives(t, messages) {
		}
		b.free()
	})
}

// A late copy of an enqueue may have given the holder a place, which would be granted the lock later.
func TestAKeepGivesUpAPlaceInTheLine(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb, key, me := backend.Client(t), redistest.Key(t), newActor(t)
		m := locksOn(t, rdb).FairMutex(key, WithMinHold(aMinHold), WithOwner("job"))
		me.locks(t, m)
		field := m.target.Field(string(*m.session.identity()), keys.Owner{Fixed: "job"})
		fair := m.kind.fair
		_, out := fair.Enqueue(t.Context(), redisexec.CallOptions{}, m.target, "other:1", &m.settings.Terms, 1)
		require.NoError(t, out.Err)
		line := keys.LineOf(key)
		require.NoError(t, rdb.ZAdd(t.Context(), line.Queue, redis.Z{Score: 9, Member: field}).Err())
		require.NoError(t, rdb.HSet(t.Context(), line.Entries, field, "x").Err())
		me.unlocks(t, m)
		require.Equal(t, []string{"other:1"}, rdb.ZRange(t.Context(), line.Queue, 0, -1).Val())
		require.False(t, rdb.HExists(t.Context(), line.Entries, field).Val())
		_, out = fair.Release(t.Context(), redisexec.CallOptions{}, m.target, "other:1", []int{0})
		require.NoError(t, out.Err)
	})
}

// No two holds are kept by one name, and none is taken for a hold.
func TestWhatIsKeptIsNoHold(t *testing.T) {
	for _, field := range []string{"uuid:17", "uuid:job", "uuid:17:write"} {
		kept := keys.Kept(field, clock.Instant{Mono: 1})
		require.NotEqual(t, kept, keys.Kept(field, clock.Instant{Mono: 2}))
		require.Equal(t, keys.SideOf(field), keys.SideOf(kept))
		require.NotEqual(t, keys.OwnerNamed(field), keys.OwnerNamed(kept))
		of, is := keys.KeptFor(kept)
		require.True(t, is)
		require.Equal(t, field, of)
		_, is = keys.KeptFor(field)
		require.False(t, is)
	}
}
