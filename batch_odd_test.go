package relock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// Odd moments in the life of a batch.

// A hook that stays does not keep the rename from being sent again: an Unlock waits for its answer.
func TestBatch_HookOfAFailedRenameDelaysNoUnlock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		var entered chan struct{}
		b.hooks.RenewFailed, entered = locktest.HookThatStays[relock.Event](t)
		b.m = b.mutex()
		lockAndQueue(b)
		b.relay.ReplyWith("-LOADING Redis is loading the dataset in memory\r\n", b.runs(protocol.RenameScript)).Times(2) // one round of copies
		unlocked := b.other.start(b.m.Unlock)
		require.NoError(t, faultError(t, b.waiting))
		redistest.Receive(t, entered)
		require.NoError(t, faultError(t, unlocked))
		require.NoError(t, b.me.unlock(b.m))
		b.requireGone()
	})
}

// The owner whose name Redis still has for the lock may come back, because its Unlock received the refusal. A late
// copy of the next rename, from that name, must not find it in use again.
func TestBatch_DelayedRenameAfterARefusedOneChangesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr, relock.WithTTL(10*time.Second))
		b.m = b.mutex(relock.WithTTL(10 * time.Second))
		lockAndQueue(b)
		b.relay.ReplyWith("-DENIED Redis is running in protected mode\r\n", b.runs(protocol.RenameScript))
		require.ErrorContains(t, b.other.unlock(b.m), "DENIED")
		require.NoError(t, faultError(t, b.waiting))
		again := b.other.start(func() error { return b.m.Lock(b.ctx) })
		b.awaitContended()

		held := b.relay.HoldBackSilently(b.runs(protocol.RenameScript)) // until the next copy has been sent
		ctx, giveUp := context.WithCancel(b.ctx)
		entered := b.me.start(func() error { return b.m.Lock(ctx) })
		held.Wait(t)
		giveUp()
		require.ErrorIs(t, faultError(t, entered), context.Canceled)
		unlocked := b.me.start(b.m.Unlock)
		require.NoError(t, faultError(t, again))
		require.NoError(t, faultError(t, unlocked))
		hold := b.other.holdOf(b.ctx, b.m)
		b.requireField(b.other, 1)
		_, err := held.Deliver(b.ctx)
		require.NoError(t, err)
		b.requireHeld(b.other, b.m, 1, hold)
		require.NoError(t, b.other.unlock(b.m))
		b.requireGone()
		b.awaitIdle()
	})
}

// What became of the hold after it is no loss of a hold that its owner has given up.
func TestBatch_UnconfirmedUnlockReportsNoLossOfALaterHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		released := make(chan relock.Event, 2)
		b.hooks.Released = func(e relock.Event) { released <- e }
		b.m = b.mutex()
		lockAndQueue(b)
		stopped := b.relay.Block(b.runs(protocol.RenameScript)).Always()
		unlocked := b.other.start(b.m.Unlock)
		require.NoError(t, faultError(t, b.waiting))
		forced, err := b.m.ForceUnlock(b.ctx)
		require.NoError(t, err)
		require.True(t, forced)
		err = faultError(t, unlocked)
		require.ErrorContains(t, err, "not confirmed by Redis")
		require.NotErrorIs(t, err, relock.ErrLost)
		e := redistest.Receive(t, released)
		require.ErrorContains(t, err, e.Err.Error())
		require.Empty(t, e.Cause)
		require.Equal(t, relock.LossForced, redistest.Receive(t, b.lost).Cause)
		stopped.Release()
		require.ErrorIs(t, b.me.unlock(b.m), relock.ErrLost)
		b.awaitIdle()
	})
}

// The min-hold placeholder is the one of the hold that asks for it, though Redis never had that hold's name.
func TestBatch_MinHoldIsKeptUnderTheNameOfTheLastHold(t *testing.T) {
	eachBatch(t, func(t *testing.T, b *batchBench) {
		kept := b.mutex(relock.WithMinHold(time.Minute))
		waiting := b.third.start(func() error { return kept.Lock(b.ctx) })
		b.awaitContended()
		unlocked := b.me.start(b.m.Unlock)
		require.NoError(t, faultError(t, waiting))
		last := b.third.start(kept.Unlock)
		b.stopped.Release()
		require.NoError(t, faultError(t, b.unlocked))
		require.NoError(t, faultError(t, unlocked))
		require.NoError(t, faultError(t, last))
		state, err := kept.State(b.ctx)
		require.NoError(t, err)
		require.Contains(t, state.Owner, fmt.Sprintf(":%d:kept:", b.third.id))
		forced, err := kept.ForceUnlock(b.ctx)
		require.NoError(t, err)
		require.True(t, forced)
	})
}
