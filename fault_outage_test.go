package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redistest"
)

// faultsOnRedis runs fn on a real server alone: what follows is about the network, takes seconds,
// and does not depend on who is at its other end.
func faultsOnRedis(t *testing.T, fn func(t *testing.T, backend *redistest.Backend)) {
	fn(t, redistest.Redis(t))
}

// outage takes the server away from the bench's client, or gives it back.
func (b *faultBench) outage(on bool) {
	b.t.Helper()
	require.NoError(b.t, b.relay.Refuse(on))
	if on {
		b.relay.Cut()
	}
}

// awaitSilence waits until a waiter has found that Redis does not answer.
func (b *faultBench) awaitSilence() {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		_, out := b.m.Learned()
		return out.Failed != (clock.Instant{})
	}, faultPatience, faultPoll)
}

// queueUp has n goroutines wait for the lock, which is held by the rival for long.
func (b *faultBench) queueUp(n int) (rival *relock.Mutex, waiters []*faultOwner, waiting []<-chan error) {
	b.t.Helper()
	rival = b.kind.rival(b.rivals, b.key, relock.WithTTL(time.Minute))
	require.NoError(b.t, b.other.lock(b.ctx, rival))
	asleep := b.whenAsleep()
	for range n {
		a := newFaultOwner(b.t)
		waiters = append(waiters, a)
		waiting = append(waiting, a.start(func() error { return b.m.Lock(b.ctx) }))
		b.awaitContended()
	}
	b.awaitStop(asleep)
	return rival, waiters, waiting
}

func TestOutage_ShorterThanTheLeaseIsRiddenOutByWaiters(t *testing.T) {
	t.Parallel()
	eachExclusiveKindOnRedis(t, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
		b := newFaultBenchOf(t, kind, backend.Addr)
		b.m = b.mutex(relock.WithTTL(time.Minute))
		rival, waiters, waiting := b.queueUp(3)
		b.outage(true)
		b.awaitSilence()
		require.NoError(t, b.other.unlock(rival))
		b.outage(false)
		for i, done := range waiting {
			require.NoError(t, faultError(t, done))
			hold := waiters[i].holdOf(b.ctx, b.m)
			b.requireHeld(waiters[i], b.m, 1, hold)
			b.unwind(waiters[i], b.m, 1, hold)
		}
		b.requireGone()
		b.awaitIdle()
	})
}

func TestOutage_LongOneFailsAllWaitersTogether(t *testing.T) {
	redistest.InTime(t)
	t.Parallel()
	eachExclusiveKindOnRedis(t, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
		b := newFaultBenchOf(t, kind, backend.Addr, relock.WithTTL(defaultTTL))
		rival, _, waiting := b.queueUp(4)
		b.outage(true)
		b.awaitSilence()
		began := time.Now()
		var first time.Time
		for _, done := range waiting {
			err := faultError(t, done)
			if first.IsZero() {
				first = time.Now()
			}
			require.ErrorContains(t, err, "connection refused")
			require.ErrorContains(t, err, "requests to Redis have been failing for")
			require.ErrorContains(t, err, b.key)
		}
		require.Less(t, time.Since(first), 500*time.Millisecond, "they failed one after another")
		require.Less(t, time.Since(began), 4*faultTTL)
		b.outage(false)
		require.NoError(t, b.other.unlock(rival))
		b.requireLockable()
	})
}

func TestOutage_NewcomerFailsSoonWithItsOwnError(t *testing.T) {
	t.Parallel()
	faultsOnRedis(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr, relock.WithTTL(defaultTTL))
		b.m = b.mutex(relock.WithTTL(time.Minute))
		rival, waiters, waiting := b.queueUp(1)
		b.outage(true)
		b.awaitSilence()
		began := time.Now()
		elsewhere := b.locks.Mutex(redistest.Key(t), relock.WithTTL(time.Minute))
		err := b.me.lock(b.ctx, elsewhere)
		require.ErrorContains(t, err, "connection refused")
		require.ErrorContains(t, err, elsewhere.Name())
		require.Less(t, time.Since(began), 8*time.Second)
		require.Empty(t, waiting[0], "the other one rides it out")
		b.outage(false)
		require.NoError(t, b.other.unlock(rival))
		require.NoError(t, faultError(t, waiting[0]))
		require.NoError(t, waiters[0].unlock(b.m))
	})
}

// One that joins the line during an outage has not waited through it: it does not get the
// error of those who have, but its own, when it has waited for as long.
func TestOutage_NewcomerInLineDoesNotFailWithTheOthers(t *testing.T) {
	t.Parallel()
	faultsOnRedis(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr, relock.WithTTL(defaultTTL))
		rival, _, waiting := b.queueUp(1)
		b.outage(true)
		b.awaitSilence()
		newcomer := b.mutex(relock.WithTTL(time.Minute))
		b.waiting = b.me.start(func() error { return newcomer.Lock(b.ctx) })
		require.ErrorContains(t, faultError(t, waiting[0]), "connection refused")
		require.NoError(t, b.other.unlock(rival))
		b.outage(false)
		require.NoError(t, faultError(t, b.waiting))
		unlockOnce(b)
		b.requireGone()
	})
}

// stuck is a bench with the leases that a black hole is to be survived with, and a renewal
// every second.
func stuck(t *testing.T, addr string) *faultBench {
	t.Helper()
	b := newFaultBench(t, addr, relock.WithTTL(3*time.Second))
	b.m = b.mutex(relock.WithTTL(3 * time.Second))
	return b
}

func TestBlackHole_AroundExistingConnectionsLosesNoHold(t *testing.T) {
	t.Parallel()
	faultsOnRedis(t, func(t *testing.T, backend *redistest.Backend) {
		b := stuck(t, backend.Addr)
		lockOnce(b)
		hold := b.me.holdOf(b.ctx, b.m)
		b.relay.BlackHoleCurrent()
		b.await(b.renewed)
		b.await(b.renewed) // and the time after
		b.requireHeld(b.me, b.m, 1, hold)
		b.unwind(b.me, b.m, 1, hold)
		b.requireGone()
		b.awaitIdle()
	})
}

// The engine is stuck for the time that suits the client's leases. A shorter lease does not
// outlive that: its second renewal goes past the engine. There is half a second for it, which a
// machine that stalls may not have: a hold that is lost every time is one that waits.
func TestBlackHole_ShortLeaseSurvivesAStuckEngine(t *testing.T) {
	t.Parallel()
	faultsOnRedis(t, func(t *testing.T, backend *redistest.Backend) {
		const ttl = 1500 * time.Millisecond
		redistest.Eventually(t, "a hold that survives", func() bool {
			b := newFaultBench(t, backend.Addr, relock.WithTTL(defaultTTL))
			b.m = b.mutex(relock.WithTTL(ttl))
			lockOnce(b)
			hold := b.me.holdOf(b.ctx, b.m)
			b.relay.BlackHoleCurrent()
			redistest.Eventually(t, "renewed or lost", func() bool { return len(b.renewed)+len(b.lost) > 0 })
			if len(b.lost) > 0 {
				return false
			}
			b.requireHeld(b.me, b.m, 1, hold)
			b.unwind(b.me, b.m, 1, hold)
			b.requireGone()
			return true
		})
	})
}

func TestBlackHole_EveryStepGetsPastExistingConnections(t *testing.T) {
	eachFaultStep(t, func(t *testing.T, b *faultBench, s faultStep) {
		if s.name == "undo" {
			t.Skip("it begins with an acquisition, which is a step of its own")
		}
		elsewhere := b.locks.Mutex(redistest.Key(t)) // for a connection that can become a black hole
		require.NoError(t, b.me.lock(b.ctx, elsewhere))
		require.NoError(t, b.me.unlock(elsewhere))
		s.before(b)
		b.rule = b.relay.Before(b.runs(s.script), func(redistest.Command) {})
		b.relay.BlackHoleCurrent()
		began := time.Now()
		s.do(b)
		require.Less(t, time.Since(began), 3*time.Second)
		hold := b.me.holdOf(b.ctx, b.m)
		if s.levels > 0 {
			b.requireHeld(b.me, b.m, s.levels, hold)
		}
		b.unwind(b.me, b.m, s.levels, hold)
		b.requireGone()
	}, hasty)
}

// A network that comes back after less than the lease costs nothing.
func TestBlackHole_ShorterThanTheLeaseLosesNoHold(t *testing.T) {
	t.Parallel()
	faultsOnRedis(t, func(t *testing.T, backend *redistest.Backend) {
		b := stuck(t, backend.Addr)
		failed := make(chan relock.Event, 64)
		b.hooks.RenewFailed = func(e relock.Event) { failed <- e }
		b.m = b.mutex(relock.WithTTL(5*time.Second), relock.WithRenewInterval(100*time.Millisecond))
		lockOnce(b)
		hold := b.me.holdOf(b.ctx, b.m)
		b.relay.BlackHole(true)
		b.await(failed)
		for len(b.renewed) > 0 {
			<-b.renewed
		}
		b.relay.BlackHole(false)
		b.await(b.renewed)
		b.requireHeld(b.me, b.m, 1, hold)
		b.unwind(b.me, b.m, 1, hold)
		b.requireGone()
	})
}

// A network that does not come back costs the hold, before its lease is over.
func TestBlackHole_LongerThanTheLeaseLosesTheHold(t *testing.T) {
	t.Parallel()
	faultsOnRedis(t, func(t *testing.T, backend *redistest.Backend) {
		const ttl = 600 * time.Millisecond
		b := newFaultBench(t, backend.Addr)
		b.m = b.mutex(relock.WithTTL(ttl))
		lockOnce(b)
		hold := b.me.holdOf(b.ctx, b.m)
		b.relay.BlackHole(true)
		b.await(b.lost)
		require.ErrorIs(t, context.Cause(hold), relock.ErrLost)
		require.ErrorIs(t, b.me.unlock(b.m), relock.ErrLost)
		b.awaitGone(ttl)
		b.relay.BlackHole(false)
		b.m = b.mutex() // whose lease a busy machine keeps
		b.requireLockable()
	})
}

// silence has nothing arrive any more, or again. Unlike in an outage, the relay keeps its port.
func (b *faultBench) silence(on bool) {
	b.relay.BlackHole(on)
	if !on {
		b.relay.Cut()
	}
}

// TryLock does not ask where another waiter of the process is before it; but that one has.
func TestTryLock_BehindAWaiterThatRedisDoesNotAnswerIsAnError(t *testing.T) {
	t.Parallel()
	eachKindOf(t, nil, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
		b := newFaultBenchOf(t, kind, backend.Addr, hasty)
		b.m = b.mutex(relock.WithTTL(time.Minute), relock.WithSafetyPoll(200*time.Millisecond))
		rival, waiters, waiting := b.queueUp(1)
		trier := newFaultOwner(t)
		try := func() (held bool, err error) {
			err = trier.do(func() (err error) {
				held, err = b.m.TryLock(b.ctx)
				return err
			})
			return held, err
		}
		held, err := try()
		require.NoError(t, err, "it is taken")
		require.False(t, held)

		b.silence(true)
		b.awaitSilence()
		held, err = try()
		require.Error(t, err)
		if kind.name != "fair" { // a fair lock asks all the same
			require.ErrorContains(t, err, "requests to Redis have been failing for ")
		}
		require.False(t, held)

		b.silence(false)
		require.Eventually(t, func() bool {
			held, err := try()
			require.False(t, held)
			return err == nil
		}, faultPatience, faultPoll, "it is taken again")
		require.NoError(t, b.other.unlock(rival))
		require.NoError(t, faultError(t, waiting[0]))
		require.NoError(t, waiters[0].unlock(b.m))
	})
}

func TestTryLock_OfAnOwnerWhoseLockIsUnansweredIsAnError(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr, hasty)
		b.m = b.mutex(relock.WithTTL(time.Minute), relock.WithOwner("job"), relock.WithSafetyPoll(200*time.Millisecond))
		rival, _, waiting := b.queueUp(1)
		b.silence(true)
		b.awaitSilence()
		held, err := b.m.TryLock(b.ctx)
		require.ErrorContains(t, err, "requests to Redis have been failing for ")
		require.False(t, held)
		b.silence(false)
		require.NoError(t, b.other.unlock(rival))
		require.NoError(t, faultError(t, waiting[0]))
		require.NoError(t, b.m.Unlock())
	})
}

func TestTryLock_BehindAWaiterThatRedisDelaysIsAnErrorInTheEnd(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		b.m = b.mutex(relock.WithTTL(time.Minute), relock.WithSafetyPoll(200*time.Millisecond))
		_, _, waiting := b.queueUp(1)
		b.silence(true)
		err := error(nil)
		require.Eventually(t, func() bool {
			held := false
			held, err = b.m.TryLock(b.ctx)
			require.False(t, held)
			return err != nil
		}, faultPatience, faultPoll)
		require.ErrorIs(t, err, lockerr.ErrNoAnswer)
		require.Empty(t, waiting[0], "it goes on")
		b.silence(false)
	})
}
