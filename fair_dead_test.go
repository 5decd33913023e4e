package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// The process of the first in line is cut off for good, as if it had been killed.
func TestFair_DeadWaiterDelaysOthersByItsLeaseAtMost(t *testing.T) {
	redistest.Slow(t)
	eachFairWait(t, func(w *fairWait) {
		w.queue()
		next := locktest.NewActor(w.t)
		c := relock.LocksOn(w.t, w.direct, shortPlaces)
		waiting := next.Lock(w.t.Context(), c.FairMutex(w.key))
		locktest.AwaitFairQueue(w.t, w.direct, w.key, 2)
		w.relay.BlackHole(true)
		began := time.Now()
		w.holder.Unlocks(w.t, w.rival)
		require.NoError(w.t, locktest.OutcomeOf(w.t, waiting))
		require.Less(w.t, time.Since(began), placeLease*3/2, "from the release on, the lease of the grant and nothing else")
		next.Unlocks(w.t, c.FairMutex(w.key))
		w.relay.BlackHole(false)
		w.relay.Cut()
		w.served() // it has waited again
	})
}

// Redis sees that the connections of a killed process are closed.
func TestFair_KilledProcessDelaysNoOne(t *testing.T) {
	redistest.InTime(t)
	eachFairWait(t, func(w *fairWait) {
		w.queue()
		next := locktest.NewActor(w.t)
		c := relock.LocksOn(w.t, w.direct, longPlaces)
		waiting := next.Lock(w.t.Context(), c.FairMutex(w.key))
		locktest.AwaitFairQueue(w.t, w.direct, w.key, 2)
		channel := grantsOf(w.c, w.key) // of the entry: a poll that the cut interrupts gives c another identity
		w.relay.BlackHole(true)         // all at once: a poll between two cuts would come through
		require.NoError(w.t, w.relay.Refuse(true))
		w.relay.Cut()
		redistest.Eventually(w.t, "no one listens", func() bool {
			return w.direct.PubSubNumSub(w.t.Context(), channel).Val()[channel] == 0
		})
		began := time.Now()
		w.holder.Unlocks(w.t, w.rival)
		require.NoError(w.t, locktest.OutcomeOf(w.t, waiting))
		require.Less(w.t, time.Since(began), time.Second, "it waits for a place to end")
		require.Empty(w.t, locktest.FairQueueOf(w.t, w.direct, w.key), "later releases walk over it")
		w.relay.BlackHole(false)
		require.NoError(w.t, w.relay.Refuse(false)) // it was only cut off
		next.Unlocks(w.t, c.FairMutex(w.key))
		w.served()
	}, longPlaces)
}

// A process that no message reaches polls, and is served like any other.
func TestFair_UnsubscribedProcessIsServedWithinAPoll(t *testing.T) {
	redistest.InTime(t)
	eachFairWait(t, func(w *fairWait) {
		w.relay.ReplyWith("-NOPERM this user has no permissions to access one of the channels\r\n", redistest.Named("SUBSCRIBE")).Always()
		w.waiting = w.me.Lock(context.WithoutCancel(w.t.Context()), w.m)
		locktest.AwaitFairQueue(w.t, w.direct, w.key, 1)
		began := time.Now()
		redistest.Eventually(w.t, "polls", func() bool { return w.polls() > 8 })
		require.Less(w.t, time.Since(began), 4*time.Second, "its pauses grow")
		behind := locktest.NewActor(w.t)
		c := relock.LocksOn(w.t, w.direct, longPlaces)
		waiting := behind.Lock(w.t.Context(), c.FairMutex(w.key))
		locktest.AwaitFairQueue(w.t, w.direct, w.key, 2)
		w.holder.Unlocks(w.t, w.rival)
		require.NoError(w.t, locktest.OutcomeOf(w.t, w.waiting))
		locktest.GoesOn(w.t, waiting)
		w.me.Unlocks(w.t, w.m)
		require.NoError(w.t, locktest.OutcomeOf(w.t, waiting))
		behind.Unlocks(w.t, c.FairMutex(w.key))
		locktest.RequireFairFree(w.t, w.direct, w.key)
	}, longPlaces)
}

func TestFair_ManyDeadWaitersCostNoMoreThanOne(t *testing.T) {
	redistest.Slow(t)
	eachFairWait(t, func(w *fairWait) {
		for i := range 20 {
			_ = locktest.NewActor(w.t).Lock(w.t.Context(), w.m)
			locktest.AwaitFairQueue(w.t, w.direct, w.key, i+1)
		}
		w.relay.BlackHole(true)
		next, c := locktest.NewActor(w.t), relock.LocksOn(w.t, w.direct, shortPlaces)
		waiting := next.Lock(w.t.Context(), c.FairMutex(w.key))
		locktest.AwaitFairQueue(w.t, w.direct, w.key, 21)
		began := time.Now()
		w.holder.Unlocks(w.t, w.rival)
		require.NoError(w.t, locktest.OutcomeOf(w.t, waiting))
		require.Less(w.t, time.Since(began), placeLease*3/2, "from the release on, the lease of the grant and nothing else")
		next.Unlocks(w.t, c.FairMutex(w.key))
		w.relay.BlackHole(false)
		w.relay.Cut()
	})
}

func TestFair_ProcessCutOffForTooLongWaitsAgain(t *testing.T) {
	eachFairWait(t, func(w *fairWait) {
		w.queue()
		k := keys.LineOf(w.key)
		require.NoError(w.t, w.direct.Del(w.t.Context(), k.Queue, k.Entries).Err())
		locktest.AwaitFairQueue(w.t, w.direct, w.key, 1)
		w.awaitListening()
		w.holder.Unlocks(w.t, w.rival)
		w.served()
	})
}
