package relock_test

import (
	"context"
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

// eachLateAcquire runs fn for each kind on one Redis. end is how a Lock ends whose first copy was held back;
// after that the copy is executed.
func eachLateAcquire(t *testing.T, end func(b *faultBench, m *relock.Mutex)) {
	t.Parallel()
	redistest.Slow(t)
	eachKindOf(t, nil, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		b := newFaultBenchOf(t, k, backend.Addr)
		const lease = time.Minute
		m := b.mutex(relock.WithTTL(lease))
		held := b.relay.HoldBack(b.runs(protocol.AcquireScript))
		end(b, m)
		b.awaitIdle()
		b.requireGone()
		b.deliver(held)
		b.awaitGone(0) // no one has it, so it is released long before its lease of a minute is over
		require.NoError(t, b.rival.Lock(b.ctx))
		require.NoError(t, b.rival.Unlock())
	})
}

func TestDelayedCopy_AfterAnUnlockIsReleasedSoon(t *testing.T) {
	eachLateAcquire(t, func(b *faultBench, m *relock.Mutex) {
		require.NoError(b.t, b.me.lock(b.ctx, m))
		require.NoError(b.t, b.me.unlock(m))
	})
}

func TestDelayedCopy_AfterAnUndoIsReleasedSoon(t *testing.T) {
	eachLateAcquire(t, func(b *faultBench, m *relock.Mutex) {
		ctx, cancel := context.WithCancel(b.ctx)
		executed, release := b.stopReply(protocol.AcquireScript) // of the second copy
		go func() {
			<-executed
			cancel()
		}()
		require.ErrorIs(b.t, b.me.lock(ctx, m), context.Canceled)
		release()
	})
}

// The first copy of a request for an entry is held back, and the second one makes the entry. What the first one acquires after
// that has no owner.

func TestDelayedCopy_OfAnEntryThatIsGoneIsReleasedSoon(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		direct, key := b.Client(t), redistest.Key(t)
		holder, holding := locktest.NewActor(t), relock.LocksOn(t, direct).FairMutex(key)
		holder.Locks(t, holding)
		held := relay.HoldBack(locktest.RunsOf(protocol.LineAcquireScript))
		m, owner := relock.LocksOn(t, rdb).FairMutex(key), locktest.NewActor(t)
		waiting := owner.Lock(t.Context(), m)
		locktest.AwaitFairQueue(t, direct, key, 1)
		first := locktest.FairQueueOf(t, direct, key)
		line := keys.LineOf(key)
		require.NoError(t, direct.Del(t.Context(), line.Queue, line.Entries).Err())
		redistest.Eventually(t, "another entry", func() bool {
			now := locktest.FairQueueOf(t, direct, key)
			return len(now) == 1 && now[0] != first[0]
		})
		holder.Unlocks(t, holding)
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		owner.Unlocks(t, m)
		requireReleasedSoon(t, direct, held, key)
	})
}

func TestDelayedCopy_OfAnEntryForAFurtherNameIsReleasedSoon(t *testing.T) {
	redistest.Slow(t)
	inLongMultiWait(t, func(w *multiWait, relay *redistest.Relay) {
		held := relay.HoldBack(locktest.RunsOf(protocol.LineAcquireScript).And(redistest.With(w.other)))
		w.holder.Unlocks(w.t, w.holding)
		locktest.AwaitFairQueue(w.t, w.rdb, w.other, 1)
		require.NotEmpty(w.t, locktest.OnRedis(w.t, w.rdb, w.one), "it keeps it")
		require.NoError(w.t, w.rdb.Del(w.t.Context(), w.other).Err())
		locktest.Publishes(w.t, w.rdb, w.other)
		require.NoError(w.t, locktest.OutcomeOf(w.t, w.waiting))
		w.owner.Unlocks(w.t, w.m)
		requireReleasedSoon(w.t, w.rdb, held, w.one, w.other)
	})
}

// Nobody polls for such an entry: the key would be granted to it.
func TestDelayedCopy_OfAnEntryForAFurtherNameLeavesNoEntry(t *testing.T) {
	redistest.Slow(t)
	leavesNoEntry(t, func(w *multiWait, _ *redistest.Relay) { w.owner.Unlocks(w.t, w.m) })
}

// As above. The further name leaves the hold before the hold ends.
func TestDelayedCopy_OfAnEntryForANameUnlockedEarlierLeavesNoEntry(t *testing.T) {
	redistest.Slow(t)
	for name, unlock := range map[string]func(w *multiWait, relay *redistest.Relay){
		"answered": func(w *multiWait, _ *redistest.Relay) { w.owner.Unlocks(w.t, w.m) },
		"not answered": func(w *multiWait, relay *redistest.Relay) {
			silence := relay.DropReply(locktest.RunsOf(protocol.ReleaseScript)).Always()
			require.ErrorContains(w.t, w.owner.Call(w.m.Unlock), "Redis did not confirm the new count")
			silence.Remove()
		},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNoEntry(t, func(w *multiWait, relay *redistest.Relay) {
				w.owner.Locks(w.t, w.c.Mutex(w.one))
				unlock(w, relay)
			})
		})
	}
}

// leavesNoEntry requires that the late copy of a request for an entry leaves none once unlock has released the further name.
func leavesNoEntry(t *testing.T, unlock func(w *multiWait, relay *redistest.Relay)) {
	t.Helper()
	inLongMultiWait(t, func(w *multiWait, relay *redistest.Relay) {
		held := relay.HoldBack(locktest.RunsOf(protocol.LineAcquireScript).And(redistest.With(w.other)))
		w.holder.Unlocks(w.t, w.holding)
		locktest.AwaitFairQueue(w.t, w.rdb, w.other, 1)
		require.NoError(w.t, w.rdb.Del(w.t.Context(), w.other).Err())
		locktest.Publishes(w.t, w.rdb, w.other)
		require.NoError(w.t, locktest.OutcomeOf(w.t, w.waiting))
		unlock(w, relay)
		locktest.HeldByAnother(w.t, w.rdb, w.other, time.Minute)
		_, err := held.Deliver(w.t.Context()) // adds an entry
		require.NoError(w.t, err)
		began := time.Now()
		locktest.AwaitFairQueue(w.t, w.rdb, w.other, 0)
		require.Less(w.t, time.Since(began), 4*time.Second, "it is removed before it ends")
		require.NoError(w.t, w.rdb.Del(w.t.Context(), w.other).Err())
	})
}

// requireReleasedSoon requires that what a copy acquires that comes only now is released long before its lease ends.
func requireReleasedSoon(t *testing.T, rdb *redis.Client, held *redistest.Held, names ...string) {
	t.Helper()
	_, err := held.Deliver(t.Context())
	require.NoError(t, err)
	time.Sleep(10 * time.Second)
	for _, name := range names {
		locktest.RequireFree(t, rdb, name)
	}
}

// The second name leaves the hold before the hold ends.
func TestDelayedCopy_OfALockWhoseNameWasUnlockedEarlierIsReleasedSoon(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		c, names := relock.LocksOn(t, rdb, relock.WithTTL(time.Minute)), locktest.NamesFrom(redistest.Key(t), 2)
		one, both := c.Mutex(names[0]), c.MultiMutex(names)
		held := relay.HoldBack(locktest.RunsOf(protocol.AcquireScript))
		locktest.RequireLocked(t, both)
		locktest.RequireLocked(t, one)
		locktest.RequireUnlocked(t, both)
		requireReleasedSoon(t, b.Client(t), held, names[1])
		require.Equal(t, 1, one.HoldCount())
		locktest.RequireUnlocked(t, one)
		locktest.RequireFree(t, b.Client(t), names[0])
	})
}
