package relock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// A hand-over may be refused though it looked possible here: another owner reads beside the
// writer. What the refusal says concerns the library alone, also if a copy of the hand-over got no answer.
func TestRWMutex_UnlockWithARefusedHandOverReleases(t *testing.T) {
	for fault, lose := range map[string]func(b *faultBench){
		"answered":          func(*faultBench) {},
		"the reply is lost": func(b *faultBench) { b.relay.DropReply(b.runs(protocol.RenameScript)) },
		"held back":         func(b *faultBench) { b.relay.HoldBack(b.runs(protocol.RenameScript)) },
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
				b := newFaultBenchOf(t, kindNamed("write"), backend.Addr)
				b.m = b.mutex(relock.WithTTL(5 * time.Second)) // what a busy machine keeps, and is over in time
				lockAndQueue(b)
				b.readsBeside("another:1")
				lose(b)
				require.NoError(t, b.other.unlock(b.m))
				require.Equal(t, map[string]string{"another:1": "1"}, b.fields())

				b.readsNoMore("another:1")
				require.NoError(t, faultError(t, b.waiting))
				require.NoError(t, b.me.unlock(b.m))
				b.requireGone()
				b.awaitIdle()
			})
		})
	}
}

// A copy that was held back may come when the refusal has been answered, and before the lock has been
// released. It is undone, and the Unlock does not report a lost lock.
func TestRWMutex_UnlockWithADelayedRefusedHandOverIsNoLoss(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBenchOf(t, kindNamed("write"), backend.Addr)
		b.m = b.mutex(relock.WithTTL(5 * time.Second)) // what a busy machine keeps, and is over in time
		lockAndQueue(b)
		holder, _ := b.m.Learned()
		b.readsBeside("another:1")
		late := b.relay.HoldBack(b.runs(protocol.RenameScript))
		var reply string
		b.relay.Before(b.runs(protocol.ReleaseScript).And(redistest.With(holder)), func(redistest.Command) {
			b.readsNoMore("another:1")
			reply, _ = late.Deliver(b.ctx)
		})
		require.NoError(t, b.other.unlock(b.m))
		require.Equal(t, ":1\r\n", reply, "it was handed over")
		require.NoError(t, faultError(t, b.waiting))
		require.NoError(t, b.me.unlock(b.m))
		b.requireGone()
		b.awaitIdle()
	})
}

// readsBeside has field read, besides who holds the lock.
func (b *faultBench) readsBeside(field string) {
	b.t.Helper()
	require.NoError(b.t, b.server.HSet(b.ctx, b.key, field, 1).Err())
	require.NoError(b.t, b.server.Set(b.ctx, b.m.Keys().RW.Timeouts+":"+field+":rwlock_timeout:1", 1, time.Minute).Err())
}

// readsNoMore ends that.
func (b *faultBench) readsNoMore(field string) {
	b.t.Helper()
	require.NoError(b.t, b.server.Del(b.ctx, b.m.Keys().RW.Timeouts+":"+field+":rwlock_timeout:1").Err())
	require.NoError(b.t, b.server.HDel(b.ctx, b.key, field).Err())
	require.NoError(b.t, b.server.Publish(b.ctx, b.m.Keys().Channels[0], "1").Err())
	require.NoError(b.t, b.server.Publish(b.ctx, b.m.Keys().Channels[0], "0").Err())
}
