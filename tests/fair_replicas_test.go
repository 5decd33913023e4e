package tests

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// A grant that comes with a message was confirmed by nobody: the waiter sees to that.
func TestFairReplicas_LockCountsOnceConfirmed(t *testing.T) {
	b := newReplicaBench(t, 1)
	m := b.locks.FairMutex(b.key, relock.WithReplicas(1, 4*time.Second))
	holder, waiter, next := locktest.NewActor(t), locktest.NewActor(t), locktest.NewActor(t)
	holder.Locks(t, b.locks.FairMutex(b.key))
	waiting := waiter.Lock(t.Context(), m)
	locktest.AwaitFairQueue(t, b.master, b.key, 1)
	holder.Unlocks(t, b.locks.FairMutex(b.key))
	require.NoError(t, locktest.OutcomeOf(t, waiting))
	require.EqualValues(t, 1, b.Replicas[0].Client(t).Exists(t.Context(), b.key).Val())
	require.Greater(t, locktest.TTLOf(b.master, b.key), locktest.LongestPlace.EntryLease(), "with the full lease")

	const within = 50 * time.Millisecond
	m = b.locks.FairMutex(b.key, relock.WithReplicas(1, within))
	waiting = next.Lock(t.Context(), m)
	locktest.AwaitFairQueue(t, b.master, b.key, 1)
	b.pause()
	b.relay.Latency(3 * time.Millisecond)
	began := time.Now()
	waiter.Unlocks(t, b.locks.FairMutex(b.key))
	require.ErrorIs(t, locktest.OutcomeOf(t, waiting), relock.ErrNotReplicated)
	left := b.master.Exists(t.Context(), b.key).Val()
	if time.Since(began) < within+locktest.UndoGrace {
		require.Zero(t, left, "Lock has returned, and the key is there")
	}
	b.relay.Latency(0)
	b.awaitFree(b.key)
	b.resume()
}

func TestFairReplicas_WaiterRidesOutAnOutageDuringItsGrant(t *testing.T) {
	b := newReplicaBench(t, 1)
	m := b.locks.FairMutex(b.key, relock.WithReplicas(1, 4*time.Second))
	holder, waiter := locktest.NewActor(t), locktest.NewActor(t)
	holder.Locks(t, b.locks.FairMutex(b.key))
	waiting := waiter.Lock(t.Context(), m)
	locktest.AwaitFairQueue(t, b.master, b.key, 1)
	loading := b.relay.ReplyWith("-LOADING it is\r\n", locktest.RunsOf(protocol.RenewScript)).Times(3) // one try is sent as often
	holder.Unlocks(t, b.locks.FairMutex(b.key))
	loading.Wait(t)
	require.NoError(t, locktest.OutcomeOf(t, waiting))
	require.EqualValues(t, 1, b.Replicas[0].Client(t).Exists(t.Context(), b.key).Val())
	waiter.Unlocks(t, m)
}

func TestFairReplicas_WaitersSurviveARestartWithoutData(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	key, holder := redistest.Key(t), locktest.NewActor(t)
	c := locksOn(t, server.Client(t), relock.WithTTL(4*time.Second))
	holder.Locks(t, c.FairMutex(key))
	var waiting []<-chan error
	var actors []*locktest.Actor
	for i := range 3 {
		actors = append(actors, locktest.NewActor(t))
		waiting = append(waiting, actors[i].Begin(func() error {
			return c.FairMutex(key).Do(context.Background(), func(context.Context) error { return nil })
		}))
		locktest.AwaitFairQueue(t, server.Client(t), key, i+1)
	}
	require.NoError(t, server.Restart())
	for _, w := range waiting {
		require.NoError(t, locktest.OutcomeOf(t, w))
	}
	require.ErrorIs(t, holder.Call(c.FairMutex(key).Unlock), relock.ErrLost)
	redistest.Eventually(t, "nothing left", func() bool {
		k := keys.LineOf(key)
		return server.Client(t).Exists(t.Context(), key, k.Queue, k.Entries).Val() == 0
	})
}

// The lease of the place in the queue, and what is waited for it, have nothing to do with that.
func TestFairReplicas_AreWaitedForAsLongAsRequested(t *testing.T) {
	opts := []relock.MutexOption{relock.WithReplicas(1, 5*time.Second), relock.WithSafetyPoll(200 * time.Millisecond)}
	for name, waited := range map[string]bool{"at once": false, "after a wait": true} {
		t.Run(name, func(t *testing.T) {
			b := newReplicaBench(t, 1)
			holder, waiter, m := locktest.NewActor(t), locktest.NewActor(t), b.locks.FairMutex(b.key, opts...)
			result := make(<-chan error)
			if waited {
				holder.Locks(t, b.locks.FairMutex(b.key))
				result = waiter.Lock(t.Context(), m)
				locktest.AwaitFairQueue(t, b.master, b.key, 1)
			}
			b.pause()
			if waited {
				holder.Unlocks(t, b.locks.FairMutex(b.key))
			} else {
				result = waiter.Lock(t.Context(), m)
			}
			redistest.Eventually(t, "the replica is waited for", func() bool { return len(locktest.OnRedis(t, b.master, b.key)) == 1 })
			locktest.Throughout(t, 1500*time.Millisecond, func() bool { return len(result) == 0 }, "no answer")
			b.resume()
			require.NoError(t, locktest.OutcomeOf(t, result))
			waiter.Unlocks(t, m)
		})
	}
}

func TestFairReplicas_UnconfirmedLockReportsIt(t *testing.T) {
	b := newReplicaBench(t, 1)
	b.pause()
	m := b.locks.FairMutex(b.key, relock.WithReplicas(1, 1200*time.Millisecond))
	require.ErrorIs(t, m.Lock(t.Context()), relock.ErrNotReplicated)
	b.resume()
	b.awaitFree(b.key)
}

func TestFairReplicas_WaiterWaitsWhateverReplicasDo(t *testing.T) {
	b := newReplicaBench(t, 1)
	holder, waiter := locktest.NewActor(t), locktest.NewActor(t)
	plain, m := b.locks.FairMutex(b.key), b.locks.FairMutex(b.key, relock.WithReplicas(1, 5*time.Second), relock.WithSafetyPoll(200*time.Millisecond))
	holder.Locks(t, plain)
	b.pause()
	waiting := waiter.Lock(t.Context(), m)
	locktest.AwaitFairQueue(t, b.master, b.key, 1)
	locktest.Throughout(t, 2*time.Second, func() bool { return len(waiting) == 0 }, "it waits")
	b.resume()
	holder.Unlocks(t, plain)
	require.NoError(t, locktest.OutcomeOf(t, waiting))
	waiter.Unlocks(t, m)
}
