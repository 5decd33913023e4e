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

// eachLateAcquire runs fn for each kind on one Redis. end is how a Lock ends whose first copy was held back;
// after that the copy is executed.
func eachLateAcquire(t *testing.T, end func(b *faultBench, m *relock.Mutex)) {
	t.Parallel()
	eachKindOf(t, nil, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		b := newFaultBenchOf(t, k, backend.Addr)
		const lease = time.Minute
		m := b.mutex(relock.WithTTL(lease))
		held := b.relay.HoldBack(b.runs(protocol.AcquireScript))
		end(b, m)
		b.awaitIdle()
		b.requireGone()
		b.deliver(held)
		b.awaitGone(0) // no one has it, so it is released long before its lease of a minute is over
		require.NoError(t, b.rival.Lock(b.ctx))
		require.NoError(t, b.rival.Unlock())
	})
}

func TestDelayedCopy_AfterAnUnlockIsReleasedSoon(t *testing.T) {
	eachLateAcquire(t, func(b *faultBench, m *relock.Mutex) {
		require.NoError(b.t, b.me.lock(b.ctx, m))
		require.NoError(b.t, b.me.unlock(m))
	})
}

func TestDelayedCopy_AfterAnUndoIsReleasedSoon(t *testing.T) {
	eachLateAcquire(t, func(b *faultBench, m *relock.Mutex) {
		ctx, cancel := context.WithCancel(b.ctx)
		executed, release := b.stopReply(protocol.AcquireScript) // of the second copy
		go func() {
			<-executed
			cancel()
		}()
		require.ErrorIs(b.t, b.me.lock(ctx, m), context.Canceled)
		release()
	})
}
