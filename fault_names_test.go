package relock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// A doubt about one hold gives later acquisitions another name; the hold keeps its own.
func TestHold_KeepsItsNameAfterTheClientTookAnother(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		id := b.locks.ID()
		lockOnce(b)
		hold := b.me.holdOf(b.ctx, b.m)
		b.relay.DropReply(b.runs(protocol.ReenterScript))
		lockOnce(b)
		require.NotEqual(t, id, b.locks.ID())

		elsewhere := redistest.Key(t)
		require.NoError(t, b.me.lock(b.ctx, b.locks.Mutex(elsewhere)))
		fields, err := b.server.HKeys(b.ctx, elsewhere).Result()
		require.NoError(t, err)
		require.Len(t, fields, 1)
		require.True(t, strings.HasPrefix(fields[0], b.locks.ID()+":"), "%s is not of the new name", fields[0])
		require.NoError(t, b.me.unlock(b.locks.Mutex(elsewhere)))

		lockOnce(b)
		for field := range b.fields() {
			require.True(t, strings.HasPrefix(field, id+":"), "%s is not of the old name", field)
		}
		b.requireHeld(b.me, b.m, 3, hold)
		b.unwind(b.me, b.m, 3, hold)
		b.requireGone()
	})
}

// The next owner must find the hold ended.
func TestHold_EndsLocallyBeforeRedisIsNotified(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		causes := make(chan error, 1)
		lockAndQueueFirst(b)
		hold := b.other.holdOf(b.ctx, b.m)
		b.relay.Before(b.runs(protocol.RenameScript), func(redistest.Command) { causes <- context.Cause(hold) })
		handOverToMe(b)
		require.ErrorIs(t, <-causes, relock.ErrReleased)

		hold = b.me.holdOf(b.ctx, b.m)
		b.relay.Before(b.runs(protocol.ReleaseScript), func(redistest.Command) { causes <- context.Cause(hold) })
		unlockOnce(b)
		require.ErrorIs(t, <-causes, relock.ErrReleased)
		b.requireGone()
	})
}

// errGaveUp is why waiters quit.
var errGaveUp = errors.New("gave up")

// quitter is a waiter that quits while a hand-over to it is under way.
type quitter struct {
	*faultBench
	unlocked <-chan error // of the holder
	release  func()       // lets the hand-over go on
}

// eachQuitter runs fn with the hand-over stopped before Redis executes it, and after.
func eachQuitter(t *testing.T, fn func(q *quitter)) {
	t.Parallel()
	t.Run("before it is executed", func(t *testing.T) {
		redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
			b := newFaultBench(t, backend.Addr)
			rule := b.relay.Block(b.runs(protocol.RenameScript))
			fn(b.quit(rule.Caught(), rule.Release))
		})
	})
	t.Run("before it is answered", func(t *testing.T) {
		redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
			b := newFaultBench(t, backend.Addr)
			executed, released := b.stopReply(protocol.RenameScript)
			fn(b.quit(executed, released))
		})
	})
}

// quit has the other goroutine hand the lock over to this one, which quits meanwhile.
func (b *faultBench) quit(stopped <-chan struct{}, release func()) *quitter {
	b.t.Helper()
	b.asksRedisFirst()
	require.NoError(b.t, b.other.lock(b.ctx, b.m))
	ctx, cancel := context.WithCancelCause(b.ctx)
	waiting := b.me.start(func() error { return b.m.Lock(ctx) })
	b.awaitContended()
	unlocked := b.other.start(b.m.Unlock)
	b.awaitStop(stopped)
	id := b.locks.ID()
	cancel(errGaveUp)
	require.ErrorIs(b.t, faultError(b.t, waiting), errGaveUp)
	require.NotEqual(b.t, id, b.locks.ID(), "the hand-over carries the name")
	return &quitter{faultBench: b, unlocked: unlocked, release: release}
}

func TestHandOver_ToAWaiterThatLeftIsReturned(t *testing.T) {
	eachQuitter(t, func(q *quitter) {
		q.release()
		require.NoError(q.t, faultError(q.t, q.unlocked))
		q.awaitIdle()
		q.requireGone()
		q.requireLockable()
	})
}

func TestHandOver_ToAWaiterThatCameBackReachesIt(t *testing.T) {
	eachQuitter(t, func(q *quitter) {
		waiting := q.me.start(func() error { return q.m.Lock(q.ctx) })
		q.awaitContended()
		q.requireRefused()
		q.release()
		require.NoError(q.t, faultError(q.t, q.unlocked))
		require.NoError(q.t, faultError(q.t, waiting))
		hold := q.me.holdOf(q.ctx, q.m)
		q.requireHeld(q.me, q.m, 1, hold)
		lockOnce(q.faultBench)
		q.requireHeld(q.me, q.m, 2, hold)
		q.unwind(q.me, q.m, 2, hold)
		q.requireGone()
		q.awaitIdle()
	})
}

func TestHandOver_ToAWaiterThatLeftReachesTheNext(t *testing.T) {
	eachQuitter(t, func(q *quitter) {
		third := newFaultOwner(q.t)
		waiting := third.start(func() error { return q.m.Lock(q.ctx) })
		q.awaitContended()
		q.release()
		require.NoError(q.t, faultError(q.t, q.unlocked))
		require.NoError(q.t, faultError(q.t, waiting))
		hold := third.holdOf(q.ctx, q.m)
		q.requireHeld(third, q.m, 1, hold)
		q.unwind(third, q.m, 1, hold)
		q.requireGone()
		q.awaitIdle()
	})
}

// The hand-over arrives when its target, back again under another name, has had the lock.
func TestHandOver_ToAWaiterThatLeftDoesNotReachItsNextHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		held := b.relay.HoldBack(b.runs(protocol.RenameScript))
		second := b.relay.Block(b.runs(protocol.RenameScript))
		q := b.quit(second.Caught(), second.Release)
		q.release()
		require.NoError(t, faultError(t, q.unlocked))
		b.awaitIdle()
		lockOnce(b)
		hold := b.me.holdOf(b.ctx, b.m)
		b.deliver(held)
		b.requireHeld(b.me, b.m, 1, hold)
		b.unwind(b.me, b.m, 1, hold)
		b.requireGone()
	})
}
