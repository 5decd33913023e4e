package relock_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// soonerThanAPoll is less than the shortest sleep of a waiter that is listening.
const soonerThanAPoll = time.Second

// A process needs no message for what happens in it.
func TestRWMutex_SidesOfAProcessWakeEachOtherWithoutPublish(t *testing.T) {
	t.Parallel()
	rules := slices.DeleteFunc(documentedRules(t), func(rule string) bool { return rule == "+publish" })
	limited := redistest.NewServer(t).User(t, rules...)
	c := relock.LocksOn(t, limited, relock.WithPrefix("orders:"), relock.WithSafetyPoll(time.Minute))
	m, me, you := c.RWMutex("17"), locktest.NewActor(t), locktest.NewActor(t)
	for range 3 {
		for _, sides := range [][2]*relock.Mutex{{m.Write(), m.Read()}, {m.Read(), m.Write()}} {
			me.Locks(t, sides[0])
			waiting := you.Lock(t.Context(), sides[1])
			relock.AwaitListening(t, c, sides[1].Keys().Keys[0])
			locktest.GoesOn(t, waiting)
			began := time.Now()
			me.Unlocks(t, sides[0])
			require.NoError(t, locktest.OutcomeOf(t, waiting))
			require.Less(t, time.Since(began), soonerThanAPoll, "a poll has found it out")
			you.Unlocks(t, sides[1])
		}
	}
}

// Nor does it need a subscription.
func TestRWMutex_SidesOfAProcessWakeEachOtherWithoutSubscribe(t *testing.T) {
	t.Parallel()
	rules := slices.DeleteFunc(documentedRules(t), func(rule string) bool { return rule == "+subscribe" })
	limited := redistest.NewServer(t).User(t, rules...)
	c := relock.LocksOn(t, limited, relock.WithPrefix("orders:"), relock.WithSafetyPoll(time.Minute))
	m, me, you := c.RWMutex("17"), locktest.NewActor(t), locktest.NewActor(t)
	for _, sides := range [][2]*relock.Mutex{{m.Write(), m.Read()}, {m.Read(), m.Write()}} {
		me.Locks(t, sides[0])
		waiting := you.Lock(t.Context(), sides[1])
		other := sides[1].Keys()
		relock.AwaitWaiters(t, c, other.Keys[0], 1)
		wakes := func() uint64 { return sides[1].Wakes() }
		woken := wakes()
		me.Unlocks(t, sides[0])
		require.Greater(t, wakes(), woken)
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		you.Unlocks(t, sides[1])
	}
}

func TestRWMutex_LossWakesTheOtherSideOfItsProcess(t *testing.T) {
	redistest.InTime(t)
	eachRW(t, func(b *rwBench) {
		m := b.mutex(relock.WithSafetyPoll(time.Minute), relock.WithRenewInterval(20*time.Millisecond))
		for _, sides := range [][2]*relock.Mutex{{m.Write(), m.Read()}, {m.Read(), m.Write()}} {
			b.me.Locks(b.t, sides[0])
			hold := b.me.ContextOf(sides[0])
			waiting := b.you.Lock(b.t.Context(), sides[1])
			relock.AwaitListening(b.t, b.c, b.key)
			locktest.GoesOn(b.t, waiting)
			require.NoError(b.t, b.rdb.Del(b.t.Context(), keysAbout(b.t, b.rdb, b.key)...).Err())
			redistest.Receive(b.t, hold.Done())
			began := time.Now()
			require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
			require.Less(b.t, time.Since(began), soonerThanAPoll, "a poll has found it out")
			b.you.Unlocks(b.t, sides[1])
			require.ErrorIs(b.t, b.me.Call(sides[0].Unlock), relock.ErrLost)
		}
	})
}

func TestRWMutex_FixedOwnerThatGetsToWriteNeedNotWaitToRead(t *testing.T) {
	redistest.InTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		for _, before := range []int{0, 1} { // so many others in line
			relay, rdb := locktest.RelayedTo(t, backend)
			b := newRWBench(t, backend.Client(t))
			b.c = relock.LocksOn(t, rdb, relock.WithSafetyPoll(time.Minute))
			theirs, job := b.another(), b.mutex(relock.WithOwner("job-17"))
			b.me.Locks(t, theirs.Write())
			// Who does not write gets no further, not even when the other client has unlocked.
			asked := locktest.RunsOf(protocol.RWReadScript)
			busy := relay.ReplyWith("*4\r\n:0\r\n:9000\r\n:1\r\n$7\r\nx:write\r\n", func(c redistest.Command) bool {
				return asked(c) && c[8] == "" // its owner does not write
			}).Always()
			readers := make([]<-chan error, before)
			for i := range readers {
				readers[i] = b.you.Lock(t.Context(), b.mutex().Read())
				relock.AwaitWaiters(t, b.c, b.key, i+1)
			}
			reading := locktest.NewActor(t).Lock(t.Context(), job.Read())
			relock.AwaitWaiters(t, b.c, b.key, before+1)
			writer := locktest.NewActor(t)
			writing := writer.Lock(t.Context(), job.Write())
			relock.AwaitWaiters(t, b.c, b.key, before+2)
			relock.AwaitListening(t, b.c, b.key)

			b.me.Unlocks(t, theirs.Write())
			require.NoError(t, locktest.OutcomeOf(t, writing))
			began := time.Now()
			require.NoError(t, locktest.OutcomeOf(t, reading))
			require.Less(t, time.Since(began), soonerThanAPoll, "a poll has found it out")
			busy.Remove()

			writer.Unlocks(t, job.Write())
			for _, r := range readers {
				require.NoError(t, locktest.OutcomeOf(t, r))
				b.you.Unlocks(t, b.mutex().Read())
			}
			writer.Unlocks(t, job.Read())
			b.free()
		}
	})
}

// It waits for its turn behind a writer who waits for its read hold to end.
func TestRWMutex_FixedOwnerInLineFailsAtOnceIfItCannotWrite(t *testing.T) {
	redistest.InTime(t)
	eachRW(t, func(b *rwBench) {
		b.anotherReads("alive:1", time.Hour)
		job := b.mutex(relock.WithOwner("job-17"), relock.WithSafetyPoll(time.Minute))
		writer, reader := locktest.NewActor(b.t), locktest.NewActor(b.t)
		ctx, cancel := context.WithCancel(b.t.Context())
		defer cancel()
		first := b.me.Lock(ctx, b.mutex().Write())
		relock.AwaitWaiters(b.t, b.c, b.key, 1)
		second := writer.Lock(ctx, job.Write())
		relock.AwaitWaiters(b.t, b.c, b.key, 2)
		for !reader.Tries(b.t, job.Read()) { // it comes in before the claim counts
			b.rdb.Del(b.t.Context(), b.claims(""))
		}
		began := time.Now()
		require.ErrorIs(b.t, locktest.OutcomeOf(b.t, second), relock.ErrUpgrade)
		require.Less(b.t, time.Since(began), soonerThanAPoll, "a poll has found it out")
		cancel()
		require.ErrorIs(b.t, locktest.OutcomeOf(b.t, first), context.Canceled)
		reader.Unlocks(b.t, job.Read())
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.key, b.timeout("alive:1", 1)).Err())
	})
}

func TestRWMutex_FixedOwnerThatGetsToReadFailsAtOnceIfItCannotWrite(t *testing.T) {
	redistest.InTime(t)
	eachRW(t, func(b *rwBench) {
		job := b.mutex(relock.WithOwner("job-17"), relock.WithSafetyPoll(time.Minute))
		writer, reader := locktest.NewActor(b.t), locktest.NewActor(b.t)
		for range 4 {
			b.me.Locks(b.t, b.mutex().Write())
			writing := writer.Lock(b.t.Context(), job.Write())
			reading := reader.Lock(b.t.Context(), job.Read())
			relock.AwaitWaiters(b.t, b.c, b.key, 2)
			b.me.Unlocks(b.t, b.mutex().Write())
			began := time.Now()
			err := locktest.OutcomeOf(b.t, writing)
			require.NoError(b.t, locktest.OutcomeOf(b.t, reading))
			require.Less(b.t, time.Since(began), soonerThanAPoll, "a poll has found it out")
			if err == nil { // it was the first
				writer.Unlocks(b.t, job.Write())
			} else {
				require.ErrorIs(b.t, err, relock.ErrUpgrade)
			}
			reader.Unlocks(b.t, job.Read())
			b.free()
		}
	})
}
