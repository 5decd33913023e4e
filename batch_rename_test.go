package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

func TestBatch_RenameIsSentAgainUntilAnswered(t *testing.T) {
	for name, lose := range map[string]func(*faultBench) *redistest.Rule{
		"executed":     func(b *faultBench) *redistest.Rule { return b.relay.DropReply(b.runs(protocol.RenameScript)) },
		"not executed": func(b *faultBench) *redistest.Rule { return b.relay.HoldBack(b.runs(protocol.RenameScript)).Rule },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
				b := newFaultBench(t, backend.Addr, relock.WithTTL(10*time.Second))
				b.m = b.mutex(relock.WithTTL(10 * time.Second))
				lockAndQueue(b)
				lose(b).Times(4) // more than one round of copies
				id := b.name()
				require.NoError(t, b.other.unlock(b.m))
				require.NotEqual(t, id, b.locks.ID(), "a copy is in doubt")
				require.NoError(t, faultError(t, b.waiting))
				hold := b.me.holdOf(b.ctx, b.m)
				b.requireHeld(b.me, b.m, 1, hold)
				b.unwind(b.me, b.m, 1, hold)
				b.requireGone()
				b.awaitIdle()
			})
		})
	}
}

func TestBatch_RefusedRenameIsAnErrorOfUnlockAndTheNextCommandCoversIt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		for range 10 {
			b := newFaultBench(t, backend.Addr)
			lockAndQueue(b)
			b.relay.ReplyWith("-DENIED Redis is running in protected mode\r\n", b.runs(protocol.RenameScript))
			require.ErrorContains(t, b.other.unlock(b.m), "DENIED")
			require.NoError(t, faultError(t, b.waiting))
			hold := b.me.holdOf(b.ctx, b.m)
			b.requireField(b.other, 1)

			// The first owner is back before Redis has received another's name: not by the name that Redis has.
			b.waiting = b.other.start(func() error { return b.m.Lock(b.ctx) })
			b.awaitContended()
			free := heldOf(b).Occupy() // something is under way
			unlocked := b.me.start(b.m.Unlock)
			require.NoError(t, faultError(t, b.waiting))
			require.Error(t, hold.Err())
			entered := b.other.start(func() error { return b.m.Lock(b.ctx) })
			free()
			require.NoError(t, faultError(t, entered))
			require.NoError(t, faultError(t, unlocked))
			b.requireHeld(b.other, b.m, 2, b.other.holdOf(b.ctx, b.m))
			require.NoError(t, b.other.unlock(b.m))
			require.NoError(t, b.other.unlock(b.m))
			b.requireGone()
			b.awaitIdle()
		}
	})
}

// Without an answer the hold is lost here before its lease is over there, and Redis is rid of both
// names: in an order in which a late copy of the rename brings none of them back.
func TestBatch_UnansweredRenameLosesTheHoldAndUndoesBothNames(t *testing.T) {
	for name, executed := range map[string]bool{"executed": true, "not executed": false, "late": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
				b := newFaultBench(t, backend.Addr)
				lockAndQueue(b)
				end := time.Now().Add(faultTTL)
				var held *redistest.Held
				if executed {
					b.relay.DropReply(b.runs(protocol.RenameScript)).Always()
				} else {
					held = b.relay.HoldBack(b.runs(protocol.RenameScript)).Always()
				}
				late := make(chan error, 1)
				if name == "late" { // between the first undo and the second
					first := true
					b.relay.After(b.runs(protocol.ReleaseScript).And(func(redistest.Command) bool {
						defer func() { first = false }()
						return first
					}), func(redistest.Command, string) {
						_, err := held.Deliver(b.ctx)
						late <- err
					})
				}
				// The key stays alive, as on a Redis that is slow by its clock.
				require.NoError(t, b.server.PExpire(b.ctx, b.key, time.Minute).Err())
				unlocked := b.other.start(b.m.Unlock)
				require.NoError(t, faultError(t, b.waiting))
				hold := b.me.holdOf(b.ctx, b.m)
				<-hold.Done()
				require.WithinDuration(t, end, time.Now(), faultTTL)
				require.ErrorIs(t, context.Cause(hold), relock.ErrLost)
				require.ErrorContains(t, faultError(t, unlocked), "released locally, but not confirmed by Redis")
				require.ErrorIs(t, b.me.unlock(b.m), relock.ErrLost)
				if name == "late" {
					require.NoError(t, faultError(t, late))
				}
				b.awaitIdle()
				b.requireGone()
			})
		})
	}
}
