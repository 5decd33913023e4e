package relock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/protocol"
)

// A waiter that is refused does not go on waiting; the one behind it tries by itself.
func TestAWaiterThatTooFewReplicasConfirmIsRefusedAndTheNextOneTries(t *testing.T) {
	b := newReplicaBench(t, 1, WithReplicas(1, 300*time.Millisecond), WithLocalHandoffs(0))
	stranger := locksOn(t, b.master).Mutex(b.key)
	requireLocked(t, stranger)
	m := b.locks.Mutex(b.key)
	first, second := newActor(t), newActor(t)
	one := first.lock(t.Context(), m)
	awaitWaiters(t, b.locks.session, b.key, 1)
	two := second.lock(t.Context(), b.locks.Mutex(b.key, WithReplicas(1, 5*time.Second)))
	awaitWaiters(t, b.locks.session, b.key, 2)
	awaitListening(t, b.locks.session, b.key)
	goesOn(t, one)

	b.pause()
	requireUnlocked(t, stranger)
	err := outcomeOf(t, one)
	require.ErrorIs(t, err, ErrNotReplicated)
	require.NotContains(t, err.Error(), "still held by")
	b.resume()
	require.NoError(t, outcomeOf(t, two))
	second.unlocks(t, m)
	b.awaitFree(b.key)
}

// A failover could bring back the lease that the replicas know of: it is that which counts.
func TestAHoldWhoseRenewalsTooFewReplicasConfirmIsLostInTime(t *testing.T) {
	const ttl = 3 * time.Second
	b := newReplicaBench(t, 1, WithTTL(ttl), WithReplicas(1, 200*time.Millisecond), WithRenewInterval(100*time.Millisecond))
	m := b.locks.Mutex(b.key)
	b.locked(m)
	hold := m.Context(t.Context())
	b.pause()
	paused := time.Now() // what is confirmed was sent before
	b.awaitEvent("renew failed", 1)
	require.ErrorIs(t, b.events.of("renew failed")[0].Err, ErrNotReplicated)
	for now := time.Now(); hold.Err() == nil; now = time.Now() {
		require.Less(t, now.Sub(paused), ttl, "valid after the end of the confirmed lease")
		time.Sleep(lookEvery)
	}
	require.ErrorIs(t, context.Cause(hold), ErrLost)
	b.awaitEvent("lost", 1)
	require.ErrorIs(t, m.Unlock(), ErrLost)
	b.awaitFree(b.key)
}

func TestAHoldRecoversWhenTheReplicaIsBackInTime(t *testing.T) {
	b := newReplicaBench(t, 1, WithReplicas(1, 200*time.Millisecond), WithRenewInterval(50*time.Millisecond))
	m := b.locks.Mutex(b.key)
	b.locked(m)
	b.pause()
	b.awaitEvent("renew failed", 1)
	b.resume()
	b.awaitEvent("renewed", len(b.events.of("renewed"))+1)
	require.Equal(t, 1, m.HoldCount())
	require.Empty(t, b.events.of("lost"))
	requireUnlocked(t, m)
	b.awaitFree(b.key)
}

func TestAReentryThatTooFewReplicasConfirmAddsNoLevel(t *testing.T) {
	b := newReplicaBench(t, 1)
	m := b.locks.Mutex(b.key)
	requireLocked(t, m)
	hold := m.Context(t.Context())
	field := fieldOf(b.locks)
	deadline := func() clock.Instant {
		h := holdsOn(b.locks.session, b.key)[0]
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.lease.Deadline()
	}
	before := deadline()
	b.pause()
	inner := b.locks.Mutex(b.key, WithReplicas(1, 100*time.Millisecond))
	require.ErrorIs(t, inner.Lock(t.Context()), ErrNotReplicated)
	require.Equal(t, 1, m.HoldCount())
	require.NoError(t, hold.Err())
	require.Equal(t, before, deadline(), "it proves nothing")
	b.resume()

	requireLocked(t, b.locks.Mutex(b.key, WithReplicas(1, 4*time.Second)))
	require.Equal(t, 2, m.HoldCount())
	requireOnRedis(t, b.master, b.key, field, 2)
	requireUnlocked(t, m)
	requireUnlocked(t, m)
	requireFree(t, b.master, b.key)
	require.Equal(t, []string{"1", "1"}, b.waitsFor(protocol.ReenterScript))
}

// The release is done, whatever becomes of the grant.
func TestAHandOverThatTooFewReplicasConfirmIsARelease(t *testing.T) {
	b := newReplicaBench(t, 1)
	m, other := b.locks.Mutex(b.key), newActor(t)
	requireLocked(t, m)
	passed := other.lock(t.Context(), b.locks.Mutex(b.key, WithReplicas(1, 200*time.Millisecond)))
	awaitWaiters(t, b.locks.session, b.key, 1)
	b.pause()
	id := b.locks.ID()
	require.NoError(t, m.Unlock())
	require.ErrorIs(t, outcomeOf(t, passed), ErrNotReplicated)
	require.NotEqual(t, id, b.locks.ID())
	require.Len(t, b.waitsFor(protocol.HandoffScript), 1)
	require.NotEmpty(t, b.waitsFor(protocol.AcquireScript)[1:], "the waiter did not try itself")
	b.awaitFree(b.key)
	require.Empty(t, b.events.of("lost"))
}

func TestAWaiterWhoseHandOverWasRefusedGetsTheLockByItself(t *testing.T) {
	b := newReplicaBench(t, 1)
	m, other := b.locks.Mutex(b.key), newActor(t)
	requireLocked(t, m)
	next := b.locks.Mutex(b.key, WithReplicas(1, 4*time.Second))
	passed := other.lock(t.Context(), next)
	awaitWaiters(t, b.locks.session, b.key, 1)
	id := b.locks.ID()
	b.relay.ReplyWith(":0\r\n", waits)
	require.NoError(t, m.Unlock())
	require.NoError(t, outcomeOf(t, passed))
	for field := range onRedis(t, b.master, b.key) {
		require.NotContains(t, field, id, "a grant that was refused keeps its name")
	}
	other.unlocks(t, next)
	b.awaitFree(b.key)
}

// A release does not wait, and a hand-over no longer than the Unlock may.
func TestUnlockDoesNotWaitForReplicasThatAreDown(t *testing.T) {
	b := newReplicaBench(t, 1, WithUnlockTimeout(4*time.Second))
	m, other := b.locks.Mutex(b.key, WithReplicas(1, 5*time.Second)), newActor(t)
	requireLocked(t, m)
	b.pause()
	began := time.Now()
	requireUnlocked(t, m)
	require.Less(t, time.Since(began), 4*time.Second)

	m = b.locks.Mutex(b.key)
	requireLocked(t, m)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	passed := other.lock(ctx, b.locks.Mutex(b.key, WithReplicas(1, 5*time.Second)))
	awaitWaiters(t, b.locks.session, b.key, 1)
	require.NoError(t, m.Unlock())
	cancel()
	require.Error(t, outcomeOf(t, passed))
	b.awaitFree(b.key)
}

func TestNestedLevelsWaitForTheMostReplicasThatOneOfThemWants(t *testing.T) {
	b := newReplicaBench(t, 2, WithRenewInterval(50*time.Millisecond))
	outer := b.locks.Mutex(b.key, WithReplicas(1, 4*time.Second))
	inner := b.locks.Mutex(b.key, WithReplicas(2, 3*time.Second))
	requireLocked(t, outer)
	requireLocked(t, inner)
	require.Equal(t, []string{"1"}, b.waitsFor(protocol.AcquireScript))
	require.Equal(t, []string{"2"}, b.waitsFor(protocol.ReenterScript))
	renewedFor := func(n string) {
		t.Helper()
		eventually(t, "a renewal that waits for "+n, func() bool {
			found := b.waitsFor(protocol.RenewScript)
			return len(found) > 0 && found[len(found)-1] == n
		})
	}
	renewedFor("2")
	requireUnlocked(t, inner)
	renewedFor("1")
	requireLocked(t, outer)
	require.Equal(t, []string{"2", "1"}, b.waitsFor(protocol.ReenterScript))
}

// Nothing else of the hold gets through meanwhile.
func TestAReentryWaitsForReplicasNoLongerThanTheHoldCanSpare(t *testing.T) {
	b := newReplicaBench(t, 1)
	outer := b.locks.Mutex(b.key, WithTTL(2*time.Second))
	requireLocked(t, outer)
	ctx := outer.Context(t.Context())
	b.pause()
	err := b.locks.Mutex(b.key, WithTTL(30*time.Second), WithReplicas(1, 4*time.Second)).Lock(t.Context())
	require.ErrorIs(t, err, ErrNotReplicated)
	b.resume()
	require.NoError(t, ctx.Err(), "the hold is as it was")
	requireUnlocked(t, outer)
}
