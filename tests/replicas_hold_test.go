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

// A waiter that is refused does not go on waiting; the one behind it tries by itself.
func TestReplicas_UnconfirmedWaiterIsRefusedAndTheNextTries(t *testing.T) {
	b := newReplicaBench(t, 1, relock.WithReplicas(1, 300*time.Millisecond), relock.WithLocalHandoffs(0))
	another := locksOn(t, b.master).Mutex(b.key)
	locktest.RequireLocked(t, another)
	m := b.locks.Mutex(b.key)
	first, second := locktest.NewActor(t), locktest.NewActor(t)
	one := first.Lock(t.Context(), m)
	b.awaitEvent("contended", 1)
	two := second.Lock(t.Context(), b.locks.Mutex(b.key, relock.WithReplicas(1, 5*time.Second)))
	b.awaitEvent("contended", 2)
	locktest.AwaitSubscribed(t, b.master, b.key, b.locks)
	locktest.GoesOn(t, one)

	b.pause()
	locktest.RequireUnlocked(t, another)
	err := locktest.OutcomeOf(t, one)
	require.ErrorIs(t, err, relock.ErrNotReplicated)
	require.NotContains(t, err.Error(), "still held by")
	b.resume()
	require.NoError(t, locktest.OutcomeOf(t, two))
	second.Unlocks(t, m)
	b.awaitFree(b.key)
}

// A failover could bring back the lease that the replicas have. That lease counts.
func TestReplicas_UnconfirmedRenewalsLoseTheHoldInTime(t *testing.T) {
	const ttl = 3 * time.Second
	b := newReplicaBench(t, 1, relock.WithTTL(ttl), relock.WithReplicas(1, 200*time.Millisecond), relock.WithRenewInterval(100*time.Millisecond))
	m := b.locks.Mutex(b.key)
	b.locked(m)
	hold := m.Context(t.Context())
	b.pause()
	paused := time.Now() // what is confirmed was sent before
	b.awaitEvent("renew failed", 1)
	require.ErrorIs(t, b.events.Of("renew failed")[0].Err, relock.ErrNotReplicated)
	for now := time.Now(); hold.Err() == nil; now = time.Now() {
		require.Less(t, now.Sub(paused), ttl, "valid after the end of the confirmed lease")
		time.Sleep(locktest.LookEvery)
	}
	require.ErrorIs(t, context.Cause(hold), relock.ErrLost)
	b.awaitEvent("lost", 1)
	require.ErrorIs(t, m.Unlock(), relock.ErrLost)
	b.awaitFree(b.key)
}

func TestReplicas_HoldRecoversWhenAReplicaReturnsInTime(t *testing.T) {
	b := newReplicaBench(t, 1, relock.WithReplicas(1, 200*time.Millisecond), relock.WithRenewInterval(50*time.Millisecond))
	m := b.locks.Mutex(b.key)
	b.locked(m)
	b.pause()
	b.awaitEvent("renew failed", 1)
	b.resume()
	b.awaitEvent("renewed", len(b.events.Of("renewed"))+1)
	require.Equal(t, 1, m.HoldCount())
	require.Empty(t, b.events.Of("lost"))
	locktest.RequireUnlocked(t, m)
	b.awaitFree(b.key)
}

func TestReplicas_UnconfirmedReentryAddsNoLevel(t *testing.T) {
	b := newReplicaBench(t, 1)
	m := b.locks.Mutex(b.key)
	locktest.RequireLocked(t, m)
	hold := m.Context(t.Context())
	field := locktest.FieldOf(b.locks)
	before, _ := m.Deadline()
	b.pause()
	inner := b.locks.Mutex(b.key, relock.WithTTL(time.Hour), relock.WithReplicas(1, 100*time.Millisecond))
	require.ErrorIs(t, inner.Lock(t.Context()), relock.ErrNotReplicated)
	require.Equal(t, 1, m.HoldCount())
	require.NoError(t, hold.Err())
	after, _ := m.Deadline()
	require.WithinDuration(t, before, after, time.Minute, "it proves nothing")
	b.resume()

	locktest.RequireLocked(t, b.locks.Mutex(b.key, relock.WithReplicas(1, 4*time.Second)))
	require.Equal(t, 2, m.HoldCount())
	locktest.RequireOnRedis(t, b.master, b.key, field, 2)
	locktest.RequireUnlocked(t, m)
	locktest.RequireUnlocked(t, m)
	locktest.RequireFree(t, b.master, b.key)
	require.Equal(t, []string{"1", "1"}, b.waitsFor(protocol.ReenterScript))
}

// The release is done, whatever becomes of the grant.
func TestReplicas_UnconfirmedHandOverIsARelease(t *testing.T) {
	b := newReplicaBench(t, 1)
	m, other := b.locks.Mutex(b.key), locktest.NewActor(t)
	locktest.RequireLocked(t, m)
	passed := other.Lock(t.Context(), b.locks.Mutex(b.key, relock.WithReplicas(1, 200*time.Millisecond)))
	b.awaitEvent("contended", 1)
	b.pause()
	id := b.locks.ID()
	require.NoError(t, m.Unlock())
	require.ErrorIs(t, locktest.OutcomeOf(t, passed), relock.ErrNotReplicated)
	require.NotEqual(t, id, b.locks.ID())
	require.Len(t, b.waitsFor(protocol.RenameScript), 1)
	require.NotEmpty(t, b.waitsFor(protocol.AcquireScript)[1:], "the waiter did not try itself")
	b.awaitFree(b.key)
	require.Empty(t, b.events.Of("lost"))
}

func TestReplicas_WaiterOfARefusedHandOverAcquiresItself(t *testing.T) {
	b := newReplicaBench(t, 1)
	m, other := b.locks.Mutex(b.key), locktest.NewActor(t)
	locktest.RequireLocked(t, m)
	next := b.locks.Mutex(b.key, relock.WithReplicas(1, 4*time.Second))
	passed := other.Lock(t.Context(), next)
	b.awaitEvent("contended", 1)
	id := b.locks.ID()
	b.relay.ReplyWith(":0\r\n", waits)
	require.NoError(t, m.Unlock())
	require.NoError(t, locktest.OutcomeOf(t, passed))
	for field := range locktest.OnRedis(t, b.master, b.key) {
		require.NotContains(t, field, id, "a grant that was refused keeps its name")
	}
	other.Unlocks(t, next)
	b.awaitFree(b.key)
}

// A release does not wait, and a hand-over no longer than the Unlock may.
func TestReplicas_UnlockDoesNotWaitForThemWhileDown(t *testing.T) {
	b := newReplicaBench(t, 1, relock.WithUnlockTimeout(4*time.Second))
	m, other := b.locks.Mutex(b.key, relock.WithReplicas(1, 5*time.Second)), locktest.NewActor(t)
	locktest.RequireLocked(t, m)
	b.pause()
	began := time.Now()
	locktest.RequireUnlocked(t, m)
	require.Less(t, time.Since(began), 4*time.Second)

	m = b.locks.Mutex(b.key)
	locktest.RequireLocked(t, m)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	passed := other.Lock(ctx, b.locks.Mutex(b.key, relock.WithReplicas(1, 5*time.Second)))
	b.awaitEvent("contended", 1)
	require.NoError(t, m.Unlock())
	cancel()
	require.Error(t, locktest.OutcomeOf(t, passed))
	b.awaitFree(b.key)
}

func TestReplicas_NestedLevelsWaitForTheMostThatOneWants(t *testing.T) {
	b := newReplicaBench(t, 2, relock.WithRenewInterval(50*time.Millisecond))
	outer := b.locks.Mutex(b.key, relock.WithReplicas(1, 4*time.Second))
	inner := b.locks.Mutex(b.key, relock.WithReplicas(2, 3*time.Second))
	locktest.RequireLocked(t, outer)
	locktest.RequireLocked(t, inner)
	require.Equal(t, []string{"1"}, b.waitsFor(protocol.AcquireScript))
	require.Equal(t, []string{"2"}, b.waitsFor(protocol.ReenterScript))
	renewedFor := func(n string) {
		t.Helper()
		redistest.Eventually(t, "a renewal that waits for "+n, func() bool {
			found := b.waitsFor(protocol.RenewScript)
			return len(found) > 0 && found[len(found)-1] == n
		})
	}
	renewedFor("2")
	locktest.RequireUnlocked(t, inner)
	renewedFor("1")
	locktest.RequireLocked(t, outer)
	require.Equal(t, []string{"2", "1"}, b.waitsFor(protocol.ReenterScript))
}

// Nothing else of the hold gets through meanwhile.
func TestReplicas_ReentryWaitsNoLongerThanTheHoldCanSpare(t *testing.T) {
	b := newReplicaBench(t, 1)
	outer := b.locks.Mutex(b.key, relock.WithTTL(2*time.Second))
	locktest.RequireLocked(t, outer)
	ctx := outer.Context(t.Context())
	b.pause()
	err := b.locks.Mutex(b.key, relock.WithTTL(30*time.Second), relock.WithReplicas(1, 4*time.Second)).Lock(t.Context())
	require.ErrorIs(t, err, relock.ErrNotReplicated)
	b.resume()
	require.NoError(t, ctx.Err(), "the hold is as it was")
	locktest.RequireUnlocked(t, outer)
}

func TestMinHold_IsConfirmedByReplicas(t *testing.T) {
	b := newReplicaBench(t, 1, relock.WithReplicas(1, 200*time.Millisecond))
	m := b.locks.Mutex(b.key, relock.WithMinHold(time.Hour))
	b.locked(m)
	locktest.RequireUnlocked(t, m)
	require.Equal(t, []string{"1"}, b.waitsFor(protocol.PlaceholderScript))
	_, err := m.ForceUnlock(t.Context())
	require.NoError(t, err)

	b.locked(m)
	id := b.locks.ID()
	b.pause()
	require.ErrorIs(t, m.Unlock(), relock.ErrNotReplicated)
	require.NotEqual(t, id, b.locks.ID(), "a failover may bring the hold back, and no later hold may re-enter it")
	require.Greater(t, locktest.TTLOf(b.master, b.key), time.Minute)
	b.resume()
	_, err = m.ForceUnlock(t.Context())
	require.NoError(t, err)
}

// The hold goes on for another name.
func TestMinHold_OfOneNameOfAMultiMutexIsConfirmedByReplicas(t *testing.T) {
	b := newReplicaBench(t, 1, relock.WithReplicas(1, 200*time.Millisecond))
	one, two := b.locks.Mutex(b.key+"-2"), b.locks.MultiMutex([]string{b.key, b.key + "-2"}, relock.WithMinHold(time.Hour))
	nested := func() {
		b.locked(two)
		locktest.RequireLocked(t, one)
	}
	nested()
	locktest.RequireUnlocked(t, two)
	require.Equal(t, []string{"1"}, b.waitsFor(protocol.PlaceholderScript))
	locktest.RequireUnlocked(t, one)
	_, err := two.ForceUnlock(t.Context())
	require.NoError(t, err)

	nested()
	id := b.locks.ID()
	b.pause()
	require.ErrorIs(t, two.Unlock(), relock.ErrNotReplicated)
	require.NotEqual(t, id, b.locks.ID(), "a failover may bring the hold back, and no later hold may re-enter it")
	require.Greater(t, locktest.TTLOf(b.master, b.key), time.Minute)
	b.resume()
	require.Equal(t, 1, one.HoldCount())
	locktest.RequireUnlocked(t, one)
	_, err = two.ForceUnlock(t.Context())
	require.NoError(t, err)
}
