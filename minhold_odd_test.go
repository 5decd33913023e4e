package relock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// What WithMinHold promises when Redis does not answer, and where locks have parts: levels, names, sides,
// nodes, replicas.

// A min-hold request that does not get through is repeated in the background. A delayed copy of it finds nothing.
func TestMinHold_UnansweredIsRetriedInTheBackground(t *testing.T) {
	t.Parallel()
	testKinds(t, []property{{"a min hold that does not get through", func(b *kindBench) {
		b.relay()
		const minHold = 1500 * time.Millisecond
		m := b.mutex(relock.WithMinHold(minHold), relock.WithUnlockTimeout(300*time.Millisecond))
		earliest := time.Now()
		b.me.Locks(b.t, m)
		var held []*redistest.Held
		for _, relay := range b.relays {
			held = append(held, relay.HoldBackSilently(b.runs(protocol.PlaceholderScript)).Always())
		}
		err := b.me.Call(m.Unlock)
		require.ErrorContains(b.t, err, "the key may remain for up to 30s")
		require.Zero(b.t, levelsOf(b.me, m))
		for _, h := range held {
			h.Remove()
		}
		redistest.Eventually(b.t, "kept", func() bool {
			return b.on(func(rdb redis.UniversalClient) bool { return locktest.TTLOf(rdb, b.key) <= minHold }) == len(b.rdbs)
		})
		b.requireKept(earliest, minHold)
		b.me.Locks(b.t, b.rival()) // without the pipeline it is held up by the copies
		require.GreaterOrEqual(b.t, time.Since(earliest), minHold)
		b.me.Unlocks(b.t, b.rival())
		b.me.Locks(b.t, m)
		for _, h := range held {
			require.NoError(b.t, second(h.Deliver(b.t.Context())))
		}
		b.requireHeld(m, 1)
		b.me.Unlocks(b.t, b.mutex())
	}}}, allKinds)
}

func TestMinHold_DelayedRenewalDoesNotLengthenIt(t *testing.T) {
	t.Parallel()
	testKinds(t, []property{{"a renewal that comes late", func(b *kindBench) {
		b.relay()
		const minHold = 10 * time.Second // less than the lease
		m := b.mutex(relock.WithMinHold(minHold), relock.WithRenewInterval(100*time.Millisecond))
		var held []*redistest.Held
		for _, relay := range b.relays {
			held = append(held, relay.HoldBackSilently(b.runs(protocol.RenewScript)).Always())
		}
		earliest := time.Now()
		b.me.Locks(b.t, m)
		for _, h := range held {
			h.Wait(b.t)
			h.Remove()
		}
		b.me.Unlocks(b.t, m)
		for _, h := range held {
			require.NoError(b.t, second(h.Deliver(b.t.Context())))
		}
		redistest.Eventually(b.t, "the placeholder everywhere", func() bool {
			return b.on(func(rdb redis.UniversalClient) bool { return locktest.TTLOf(rdb, b.key) <= minHold }) == len(b.rdbs)
		})
		locktest.Throughout(b.t, locktest.AWhile, func() bool {
			return b.on(func(rdb redis.UniversalClient) bool { return locktest.TTLOf(rdb, b.key) > minHold }) == 0
		}, "lengthened")
		b.requireKept(earliest, minHold)
		fieldsOn(b) // all have it
		require.NoError(b.t, second(b.another().ForceUnlock(b.t.Context())))
	}}}, allKinds)
}

// The monotonic clock counts. Set forward by more than the lease the wall clock ends the hold.
func TestMinHold_DoesNotFollowTheWallClock(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{-time.Hour, 20 * time.Second} {
		rdb := redistest.Mini(t).Client(t)
		c, clocks := relock.LocksWithClock(t, rdb, relock.WithMinHold(time.Minute))
		m := c.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		clocks.Set(step)
		locktest.RequireUnlocked(t, m)
		left := locktest.TTLOf(rdb, m.Name())
		require.LessOrEqual(t, left, time.Minute, step)
		require.Greater(t, left, 50*time.Second, step)
	}
}

// A waiter that follows its predecessor before Redis is notified has a min hold of its own.
func TestMinHold_OfAHoldThatFollowedAnotherIsReserved(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb := backend.Client(t)
		c, key, me, you := relock.LocksOn(t, rdb), redistest.Key(t), locktest.NewActor(t), locktest.NewActor(t)
		before, after := c.Mutex(key), c.Mutex(key, relock.WithMinHold(time.Hour))
		me.Locks(t, before)
		following := you.Lock(t.Context(), after)
		relock.AwaitWaiters(t, c, key, 1)
		me.Unlocks(t, before)
		require.NoError(t, locktest.OutcomeOf(t, following))
		you.Unlocks(t, after)
		require.False(t, me.Tries(t, before))
		require.Greater(t, locktest.TTLOf(rdb, key), 59*time.Minute)
		require.NoError(t, second(before.ForceUnlock(t.Context())))
	})
}

func TestMinHold_TokensRiseOverIt(t *testing.T) {
	t.Parallel()
	b := newKindBench(t, redistest.Mini(t), kindNamed("plain"))
	m := b.mutex(relock.WithFencing(), relock.WithMinHold(50*time.Millisecond))
	b.me.Locks(t, m)
	first := b.me.TokenOf(m)
	b.me.Unlocks(t, m)
	b.me.Locks(t, m)
	require.Greater(t, b.me.TokenOf(m), first)
	b.me.Unlocks(t, m)
	b.free()
}

func TestMinHold_DoReservesItAlsoAfterAPanic(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	m := relock.LocksOn(t, rdb).Mutex(redistest.Key(t), relock.WithMinHold(time.Hour))
	require.Panics(t, func() { _ = m.Do(t.Context(), func(context.Context) error { panic("job") }) })
	held, err := m.TryLock(t.Context())
	require.NoError(t, err)
	require.False(t, held)
	_, err = m.ForceUnlock(t.Context())
	require.NoError(t, err)
	failed := errors.New("job")
	require.Equal(t, failed, m.Do(t.Context(), func(context.Context) error { return failed }))
	require.Positive(t, locktest.TTLOf(rdb, m.Name()))
}

func TestMinHold_KeepsASideOfAnRWMutexAsItWas(t *testing.T) {
	redistest.Slow(t)
	eachRW(t, func(b *rwBench) {
		m, other := b.mutex(relock.WithMinHold(aMinHold)), b.another()
		earliest := time.Now()
		b.me.Locks(b.t, m.Read())
		b.me.Unlocks(b.t, m.Read())
		require.True(b.t, b.you.Tries(b.t, other.Read()), "a reader keeps no reader out")
		b.you.Unlocks(b.t, other.Read())
		require.True(b.t, b.me.Tries(b.t, m.Read()), "not even of the same owner")
		b.me.Unlocks(b.t, m.Read())
		require.False(b.t, b.me.Tries(b.t, m.Write()))
		require.False(b.t, b.you.Tries(b.t, other.Write()))
		b.you.Locks(b.t, other.Write())
		require.GreaterOrEqual(b.t, time.Since(earliest), aMinHold-time.Millisecond, "Redis counts in milliseconds")
		b.you.Unlocks(b.t, other.Write())

		earliest = time.Now()
		b.me.Locks(b.t, m.Write())
		b.me.Unlocks(b.t, m.Write())
		require.False(b.t, b.you.Tries(b.t, other.Read()))
		require.False(b.t, b.me.Tries(b.t, m.Read()), "its last writer reads no sooner than others")
		b.you.Locks(b.t, other.Read())
		require.GreaterOrEqual(b.t, time.Since(earliest), aMinHold-time.Millisecond, "Redis counts in milliseconds")
		b.you.Unlocks(b.t, other.Read())
	})
}

// The placeholder of a writer that reads when it unlocks is a reader's, however its read side goes on.
func TestMinHold_OfAWriterThatReadsOnIsAReaders(t *testing.T) {
	redistest.Slow(t)
	eachRW(t, func(b *rwBench) {
		m, other := b.mutex(), b.another()
		writes := b.mutex(relock.WithMinHold(aMinHold))
		earliest := time.Now()
		b.me.Locks(b.t, writes.Write())
		b.me.Locks(b.t, m.Read())
		b.me.Unlocks(b.t, writes.Write())
		require.True(b.t, b.you.Tries(b.t, other.Read()))
		b.you.Unlocks(b.t, other.Read())
		b.me.Unlocks(b.t, m.Read())
		require.False(b.t, b.you.Tries(b.t, other.Write()))
		b.you.Locks(b.t, other.Write())
		require.GreaterOrEqual(b.t, time.Since(earliest), aMinHold-time.Millisecond, "Redis counts in milliseconds")
		b.you.Unlocks(b.t, other.Write())

		// One that has read, and leaves a placeholder for that, while it writes on.
		reads := b.mutex(relock.WithMinHold(aMinHold))
		b.me.Locks(b.t, m.Write())
		earliest = time.Now()
		b.me.Locks(b.t, reads.Read())
		b.me.Unlocks(b.t, reads.Read())
		require.False(b.t, b.you.Tries(b.t, other.Read()), "it writes")
		b.me.Unlocks(b.t, m.Write())
		require.True(b.t, b.you.Tries(b.t, other.Read()))
		b.you.Unlocks(b.t, other.Read())
		b.you.Locks(b.t, other.Write())
		require.GreaterOrEqual(b.t, time.Since(earliest), aMinHold-time.Millisecond, "Redis counts in milliseconds")
		b.you.Unlocks(b.t, other.Write())
	})
}

// One node that is down does not keep a quorum from it, and learns of it when it is back. Most nodes do.
func TestMinHold_IsReservedByMostNodesOfAQuorum(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		m := b.mutex(relock.WithMinHold(time.Hour), relock.WithUnlockTimeout(time.Second))
		kept := func(nodes ...int) {
			b.t.Helper()
			names := make(map[string]bool)
			redistest.Eventually(b.t, "kept", func() bool {
				n := 0
				clear(names)
				for _, i := range nodes {
					for field := range b.fields()[i] {
						if _, is := keys.ReplacedBy(field); is && locktest.TTLOf(b.servers[i], b.key) > time.Minute {
							n++
							names[field] = true
						}
					}
				}
				return n == len(nodes)
			})
			require.Len(b.t, names, 1, "the nodes have one name for the placeholder, or ForceUnlock would miss some")
		}
		b.me.Locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		b.down(2)
		b.me.Unlocks(b.t, m)
		kept(0, 1)
		require.False(b.t, b.rivalTries())
		b.up(2)
		kept(0, 1, 2)
		require.NoError(b.t, second(b.rival.Mutex(b.key).ForceUnlock(b.t.Context())))
		b.awaitFree()

		b.me.Locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		b.down(1, 2)
		var few *relock.QuorumError
		require.ErrorAs(b.t, b.me.Call(m.Unlock), &few)
		b.up(1, 2)
		kept(0, 1, 2)
		require.NoError(b.t, second(b.rival.Mutex(b.key).ForceUnlock(b.t.Context())))
		b.awaitFree()
	})
}

// Waiters of Redisson, who sleep for the time that a reply gave, receive a message that they may ask again.
func TestMinHold_IsPublishedToForeignWaiters(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	eachOf(t, lockKinds, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		b := newKindBench(t, backend, k)
		m := b.mutex(relock.WithMinHold(aMinHold))
		sub := b.rdbs[0].Subscribe(t.Context(), m.Keys().Channels[0])
		t.Cleanup(func() { _ = sub.Close() })
		require.NoError(t, second(sub.Receive(t.Context())))
		messages := sub.Channel()
		b.heldBriefly(m)
		for message := redistest.Receive(t, messages); message.Payload != "0"; message = redistest.Receive(t, messages) {
		}
		b.free()
	})
}

// A late copy of an enqueue may have given the holder a place, which would be granted the lock later.
func TestMinHold_PlaceholderRemovesTheEntryInTheLine(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb, key, me := backend.Client(t), redistest.Key(t), locktest.NewActor(t)
		c := relock.LocksOn(t, rdb)
		m := c.FairMutex(key, relock.WithMinHold(time.Hour), relock.WithOwner("job"))
		me.Locks(t, m)
		field, fair := c.ID()+":job", m.Protocol().(*protocol.Lined)
		_, out := fair.Enqueue(t.Context(), redisexec.CallOptions{}, m.Keys(), "other:1", m.Terms(), 1)
		require.NoError(t, out.Err)
		line := keys.LineOf(key)
		require.NoError(t, rdb.ZAdd(t.Context(), line.Queue, redis.Z{Score: 9, Member: field}).Err())
		require.NoError(t, rdb.HSet(t.Context(), line.Entries, field, "x").Err())
		me.Unlocks(t, m)
		require.Equal(t, []string{"other:1"}, rdb.ZRange(t.Context(), line.Queue, 0, -1).Val())
		require.False(t, rdb.HExists(t.Context(), line.Entries, field).Val())
		_, out = fair.Release(t.Context(), redisexec.CallOptions{}, m.Keys(), "other:1", []int{0})
		require.NoError(t, out.Err)
		require.NoError(t, second(m.ForceUnlock(t.Context())))
	})
}

// No two holds have the same placeholder, and no placeholder is taken for a hold.
func TestMinHold_IsNoHold(t *testing.T) {
	for _, field := range []string{"uuid:17", "uuid:job", "uuid:17:write"} {
		kept := keys.Placeholder(field, clock.Instant{Mono: 1})
		require.NotEqual(t, kept, keys.Placeholder(field, clock.Instant{Mono: 2}))
		require.Equal(t, keys.SideOf(field), keys.SideOf(kept))
		require.NotEqual(t, keys.OwnerNamed(field), keys.OwnerNamed(kept))
		of, is := keys.ReplacedBy(kept)
		require.True(t, is)
		require.Equal(t, field, of)
		_, is = keys.ReplacedBy(field)
		require.False(t, is)
	}
}

// A hold of one key on one Redis has left no placeholder if the key does not have the hold.
func TestMinHold_LossOfTheOnlyKeyIsNotUndone(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	backend := redistest.Mini(t)
	for name, acquire := range map[string]func(c *relock.Client, key string) (release func() error, err error){
		"plain": func(c *relock.Client, key string) (func() error, error) { return locked(t, c.Mutex(key)) },
		"fair":  func(c *relock.Client, key string) (func() error, error) { return locked(t, c.FairMutex(key)) },
		"read":  func(c *relock.Client, key string) (func() error, error) { return locked(t, c.RWMutex(key).Read()) },
		"semaphore": func(c *relock.Client, key string) (func() error, error) {
			p, err := c.Semaphore(key, 2).Acquire(t.Context())
			return p.Release, err
		},
	} {
		relay, rdb := locktest.RelayedTo(t, backend)
		key := redistest.Key(t) + name
		c := relock.LocksOn(t, rdb, relock.WithMinHold(time.Hour))
		release, err := acquire(c, key)
		require.NoError(t, err)
		require.NoError(t, backend.Client(t).Del(t.Context(), key).Err())
		relay.ResetLog()
		require.ErrorIs(t, release(), relock.ErrLost)
		require.NoError(t, c.Close()) // waits for undos
		require.Equal(t, 1, relay.Count(redistest.Named("eval", "evalsha").And(redistest.With(key))), name)
	}
}

// locked locks m, and returns its Unlock.
func locked(t *testing.T, m *relock.Mutex) (unlock func() error, err error) {
	return m.Unlock, m.Lock(t.Context())
}
