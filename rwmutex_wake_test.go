package relock

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// soonerThanAPoll is less than the shortest sleep of a waiter that is listening.
const soonerThanAPoll = time.Second

// A process knows by itself what happens in it.
func TestWithoutThePermissionToPublishTheSidesOfOneProcessWakeEachOther(t *testing.T) {
	t.Parallel()
	rules := slices.DeleteFunc(documentedRules(t), func(rule string) bool { return rule == "+publish" })
	limited := redistest.NewServer(t).User(t, rules...)
	c := locksOn(t, limited, WithPrefix("orders:"), WithSafetyPoll(time.Minute))
	m, me, you := c.RWMutex("17"), newActor(t), newActor(t)
	for range 3 {
		for _, sides := range [][2]*Mutex{{toWrite(m), toRead(m)}, {toRead(m), toWrite(m)}} {
			me.locks(t, sides[0])
			waiting := you.lock(t.Context(), sides[1])
			awaitListening(t, c.session, sides[1].target.Keys[0])
			goesOn(t, waiting)
			began := time.Now()
			me.unlocks(t, sides[0])
			require.NoError(t, outcomeOf(t, waiting))
			require.Less(t, time.Since(began), soonerThanAPoll, "a poll has found it out")
			you.unlocks(t, sides[1])
		}
	}
}

// Nor does it need a subscription.
func TestWithoutThePermissionToSubscribeTheSidesOfOneProcessWakeEachOther(t *testing.T) {
	t.Parallel()
	rules := slices.DeleteFunc(documentedRules(t), func(rule string) bool { return rule == "+subscribe" })
	limited := redistest.NewServer(t).User(t, rules...)
	c := locksOn(t, limited, WithPrefix("orders:"), WithSafetyPoll(time.Minute))
	m, me, you := c.RWMutex("17"), newActor(t), newActor(t)
	for _, sides := range [][2]*Mutex{{toWrite(m), toRead(m)}, {toRead(m), toWrite(m)}} {
		me.locks(t, sides[0])
		waiting := you.lock(t.Context(), sides[1])
		other := sides[1].target
		awaitWaiters(t, c.session, other.Keys[0], 1)
		g := c.session.registry.Gate(gateOf(other, 0))
		woken := g.Queue.Wakes()
		me.unlocks(t, sides[0])
		require.Greater(t, g.Queue.Wakes(), woken)
		require.NoError(t, outcomeOf(t, waiting))
		you.unlocks(t, sides[1])
	}
}

func TestTheLossOfAHoldWakesTheOtherSideOfItsProcess(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex(WithSafetyPoll(time.Minute), WithRenewInterval(20*time.Millisecond))
		for _, sides := range [][2]*Mutex{{toWrite(m), toRead(m)}, {toRead(m), toWrite(m)}} {
			b.me.locks(b.t, sides[0])
			hold := contextOf(b.me, sides[0])
			waiting := b.you.lock(b.t.Context(), sides[1])
			awaitListening(b.t, b.c.session, b.key)
			goesOn(b.t, waiting)
			require.NoError(b.t, b.rdb.Del(b.t.Context(), keysAbout(b.t, b.rdb, b.key)...).Err())
			receives(b.t, hold.Done())
			began := time.Now()
			require.NoError(b.t, outcomeOf(b.t, waiting))
			require.Less(b.t, time.Since(began), soonerThanAPoll, "a poll has found it out")
			b.you.unlocks(b.t, sides[1])
			require.ErrorIs(b.t, b.me.call(sides[0].Unlock), ErrLost)
		}
	})
}

func TestAFixedOwnerThatGetsToWriteNeedNotWaitToReadAnyLonger(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		for _, before := range []int{0, 1} { // so many others in line
			relay, rdb := relayedTo(t, backend)
			b := newRWBench(t, backend.Client(t))
			b.c = locksOn(t, rdb, WithSafetyPoll(time.Minute))
			theirs, job := b.another(), b.mutex(WithOwner("job-17"))
			b.me.locks(t, toWrite(theirs))
			// Who does not write gets no further, not even when the stranger has unlocked.
			asked := runsOf(protocol.RWReadScript)
			busy := relay.ReplyWith("*4\r\n:0\r\n:9000\r\n:1\r\n$7\r\nx:write\r\n", func(c redistest.Command) bool {
				return asked(c) && c[len(c)-1] == ""
			}).Always()
			readers := make([]<-chan error, before)
			for i := range readers {
				readers[i] = b.you.lock(t.Context(), toRead(b.mutex()))
				awaitWaiters(t, b.c.session, b.key, i+1)
			}
			reading := newActor(t).lock(t.Context(), toRead(job))
			awaitWaiters(t, b.c.session, b.key, before+1)
			writer := newActor(t)
			writing := writer.lock(t.Context(), toWrite(job))
			awaitWaiters(t, b.c.session, b.key, before+2)
			awaitListening(t, b.c.session, b.key)

			b.me.unlocks(t, toWrite(theirs))
			require.NoError(t, outcomeOf(t, writing))
			began := time.Now()
			require.NoError(t, outcomeOf(t, reading))
			require.Less(t, time.Since(began), soonerThanAPoll, "a poll has found it out")
			busy.Remove()

			writer.unlocks(t, toWrite(job))
			for _, r := range readers {
				require.NoError(t, outcomeOf(t, r))
				b.you.unlocks(t, toRead(b.mutex()))
			}
			writer.unlocks(t, toRead(job))
			b.free()
		}
	})
}

// It waits for its turn behind a writer who waits for its read hold to end.
func TestAFixedOwnerInLineIsToldAtOnceThatItCannotWrite(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		b.strangerReads("alive:1", time.Hour)
		job := b.mutex(WithOwner("job-17"), WithSafetyPoll(time.Minute))
		writer, reader := newActor(b.t), newActor(b.t)
		ctx, cancel := context.WithCancel(b.t.Context())
		defer cancel()
		first := b.me.lock(ctx, toWrite(b.mutex()))
		awaitWaiters(b.t, b.c.session, b.key, 1)
		second := writer.lock(ctx, toWrite(job))
		awaitWaiters(b.t, b.c.session, b.key, 2)
		for !reader.tries(b.t, toRead(job)) { // it comes in before the claim counts
			b.rdb.Del(b.t.Context(), b.claims(""))
		}
		began := time.Now()
		require.ErrorIs(b.t, outcomeOf(b.t, second), ErrUpgrade)
		require.Less(b.t, time.Since(began), soonerThanAPoll, "a poll has found it out")
		cancel()
		require.ErrorIs(b.t, outcomeOf(b.t, first), context.Canceled)
		reader.unlocks(b.t, toRead(job))
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.key, b.timeout("alive:1", 1)).Err())
	})
}

func TestAFixedOwnerThatGetsToReadIsToldAtOnceThatItCannotWrite(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		job := b.mutex(WithOwner("job-17"), WithSafetyPoll(time.Minute))
		writer, reader := newActor(b.t), newActor(b.t)
		for range 4 {
			b.me.locks(b.t, toWrite(b.mutex()))
			writing := writer.lock(b.t.Context(), toWrite(job))
			reading := reader.lock(b.t.Context(), toRead(job))
			awaitWaiters(b.t, b.c.session, b.key, 2)
			b.me.unlocks(b.t, toWrite(b.mutex()))
			began := time.Now()
			err := outcomeOf(b.t, writing)
			require.NoError(b.t, outcomeOf(b.t, reading))
			require.Less(b.t, time.Since(began), soonerThanAPoll, "a poll has found it out")
			if err == nil { // it was the first
				writer.unlocks(b.t, toWrite(job))
			} else {
				require.ErrorIs(b.t, err, ErrUpgrade)
			}
			reader.unlocks(b.t, toRead(job))
			b.free()
		}
	})
}
