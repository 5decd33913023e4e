package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// eachTotalLoss runs fn twice for each kind, or for those named, on each backend: with a rule that lets every copy of a command
// be executed and loses the reply, and with one that loses every copy itself.
func eachTotalLoss(t *testing.T, fn func(b *faultBench, lose func(*redisexec.Script) *redistest.Rule, executed bool), kinds ...string) {
	redistest.Slow(t)
	t.Parallel()
	for name, executed := range map[string]bool{"executed": true, "not executed": false} {
		t.Run(name, func(t *testing.T) {
			eachKindOf(t, kinds, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
				b := newFaultBenchOf(t, kind, backend.Addr)
				fn(b, func(s *redisexec.Script) *redistest.Rule {
					if executed {
						return b.relay.DropReply(b.runs(s)).Always()
					}
					return b.relay.HoldBack(b.runs(s)).Always().Rule
				}, executed)
			})
		})
	}
}

// requireLockable asserts that the lock works as on the first day.
func (b *faultBench) requireLockable() {
	b.t.Helper()
	lockOnce(b)
	hold := b.me.holdOf(b.ctx, b.m)
	b.requireHeld(b.me, b.m, 1, hold)
	b.unwind(b.me, b.m, 1, hold)
	b.requireGone()
	b.awaitIdle()
}

func TestAcquisition_UnansweredOneIsUndone(t *testing.T) {
	eachTotalLoss(t, func(b *faultBench, lose func(*redisexec.Script) *redistest.Rule, _ bool) {
		rule := lose(protocol.AcquireScript)
		id, began := b.name(), time.Now()
		err := b.me.lock(b.ctx, b.m)
		require.NotEqual(b.t, id, b.locks.ID())
		require.ErrorContains(b.t, err, b.key)
		require.NotErrorIs(b.t, err, relock.ErrLost)
		require.Less(b.t, time.Since(began), faultTTL)
		require.Zero(b.t, b.me.levels(b.m))
		b.awaitIdle()
		b.requireGone()
		require.Zero(b.t, b.relay.Count(b.runs(protocol.RenewScript)), "a watchdog without a hold")
		rule.Remove()
		b.requireLockable()
	})
}

func TestReentry_UnansweredOneLeavesTheHoldAsItWas(t *testing.T) {
	eachTotalLoss(t, func(b *faultBench, lose func(*redisexec.Script) *redistest.Rule, _ bool) {
		lockOnce(b)
		rule := lose(protocol.ReenterScript)
		id := b.name()
		require.ErrorContains(b.t, b.me.lock(b.ctx, b.m), b.key)
		require.NotEqual(b.t, id, b.locks.ID())
		rule.Remove()
		hold := b.me.holdOf(b.ctx, b.m)
		require.Equal(b.t, 1, b.me.levels(b.m))
		lockOnce(b)
		b.requireHeld(b.me, b.m, 2, hold)
		b.unwind(b.me, b.m, 2, hold)
		b.requireGone()
		b.awaitIdle()
	})
}

func TestHandOver_UnansweredOneLetsTheWaiterAcquireItself(t *testing.T) {
	eachTotalLoss(t, func(b *faultBench, lose func(*redisexec.Script) *redistest.Rule, _ bool) {
		b.m = b.mutex(relock.WithUnlockTimeout(200 * time.Millisecond))
		lockAndQueueFirst(b)
		lose(protocol.RenameScript)
		id, began := b.name(), time.Now()
		err := b.other.unlock(b.m)
		require.NotEqual(b.t, id, b.locks.ID())
		require.ErrorContains(b.t, err, b.key)
		require.Less(b.t, time.Since(began), faultTTL)
		b.m = b.mutex() // whose Unlock has all the time it needs
		require.Zero(b.t, b.other.levels(b.m))
		require.NoError(b.t, faultError(b.t, b.waiting))
		hold := b.me.holdOf(b.ctx, b.m)
		b.requireHeld(b.me, b.m, 1, hold)
		b.unwind(b.me, b.m, 1, hold)
		b.requireGone()
		b.awaitIdle()
	}, "plain", "multi", "write")
}

// The server may go on lengthening the lease: the client has no reply, and must not hope.
func TestRenewals_UnansweredOnesLoseTheHoldBeforeItsLease(t *testing.T) {
	eachTotalLoss(t, func(b *faultBench, lose func(*redisexec.Script) *redistest.Rule, _ bool) {
		const ttl = 500 * time.Millisecond
		rule := lose(protocol.RenewScript)
		m := b.mutex(relock.WithTTL(ttl))
		began := time.Now()
		require.NoError(b.t, b.me.lock(b.ctx, m))
		id := b.name()
		hold := b.me.holdOf(b.ctx, m)
		b.requireLostBy(hold, b.lastAnswered(protocol.AcquireScript).Add(ttl))
		require.GreaterOrEqual(b.t, time.Since(began), ttl-clock.Margin(ttl), "lost early")
		require.ErrorIs(b.t, context.Cause(hold), relock.ErrLost)
		require.NotEqual(b.t, id, b.locks.ID())
		require.ErrorIs(b.t, b.me.lock(b.ctx, m), relock.ErrLost)
		require.ErrorIs(b.t, b.me.unlock(m), relock.ErrLost)
		require.ErrorIs(b.t, b.me.unlock(m), relock.ErrNotHeld)
		b.awaitGone(ttl)
		rule.Remove()
		b.requireLockable()
	})
}

func TestRelease_UnansweredOneEndsTheHold(t *testing.T) {
	eachTotalLoss(t, func(b *faultBench, lose func(*redisexec.Script) *redistest.Rule, executed bool) {
		m := b.mutex(relock.WithUnlockTimeout(faultTTL / 4))
		require.NoError(b.t, b.me.lock(b.ctx, m))
		hold := b.me.holdOf(b.ctx, m)
		rule := lose(protocol.ReleaseScript)
		id, began := b.name(), time.Now()
		err := b.me.unlock(m)
		require.NotEqual(b.t, id, b.locks.ID())
		require.ErrorContains(b.t, err, b.key)
		require.NotErrorIs(b.t, err, relock.ErrLost)
		require.Less(b.t, time.Since(began), faultTTL)
		require.ErrorIs(b.t, context.Cause(hold), relock.ErrReleased)
		require.ErrorIs(b.t, b.me.unlock(m), relock.ErrNotHeld)
		if executed {
			rule.Wait(b.t) // the Unlock has not waited until it was
			b.requireGone()
		}
		b.awaitGone(faultTTL)
		rule.Remove()
		b.requireLockable()
	})
}

func TestRelease_UnansweredInnerOneEndsTheLevel(t *testing.T) {
	eachTotalLoss(t, func(b *faultBench, lose func(*redisexec.Script) *redistest.Rule, _ bool) {
		b.m = b.mutex(relock.WithUnlockTimeout(100 * time.Millisecond))
		lockTwice(b)
		hold := b.me.holdOf(b.ctx, b.m)
		rule := lose(protocol.ReleaseScript)
		id := b.name()
		require.ErrorContains(b.t, b.me.unlock(b.m), b.key)
		require.NotEqual(b.t, id, b.locks.ID())
		require.Equal(b.t, 1, b.me.levels(b.m))
		require.NoError(b.t, context.Cause(hold))
		b.requireRefused()
		rule.Remove()
		b.unwind(b.me, b.mutex(), 1, hold)
		b.requireGone()
		b.awaitIdle()
	})
}

func TestUndo_UnansweredOneGivesUpWhenTheLeaseIsOver(t *testing.T) {
	eachTotalLoss(t, func(b *faultBench, lose func(*redisexec.Script) *redistest.Rule, executed bool) {
		const ttl = faultTTL / 2 // that is waited for
		b.m = b.mutex(relock.WithTTL(ttl))
		b.rule = lose(protocol.ReleaseScript)
		began := time.Now()
		leases := time.Duration(1)
		if b.kind.name == "fair" {
			leases = 2 // the lease of the entry, and then the lease of the lock
		}
		abandonAcquire(b)
		require.Less(b.t, time.Since(began), leases*ttl+faultTTL)
		if executed {
			b.requireGone()
		}
		b.awaitGone(ttl)
		b.rule.Remove()
		b.m = b.mutex() // whose lease a busy machine keeps
		b.requireLockable()
	})
}

func TestForceUnlock_UnansweredOneIsAnError(t *testing.T) {
	eachTotalLoss(t, func(b *faultBench, lose func(*redisexec.Script) *redistest.Rule, executed bool) {
		lockByRival(b)
		lose(protocol.ForceScript)
		began := time.Now()
		forced, err := b.m.ForceUnlock(b.ctx)
		require.ErrorContains(b.t, err, b.key)
		require.False(b.t, forced)
		require.Less(b.t, time.Since(began), faultTTL)
		if executed {
			require.ErrorIs(b.t, b.other.unlock(b.rival), relock.ErrLost)
		} else {
			require.NoError(b.t, b.other.unlock(b.rival))
		}
		b.requireLockable()
	})
}
