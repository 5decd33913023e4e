package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// Odd moments in the life of a batch.

// A hook that stays does not keep the rename from being sent again: an Unlock waits for its answer.
func TestAHookThatIsToldOfARenameDelaysNoUnlock(t *testing.T) {
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

func TestAHookThatIsToldOfARenameMayCloseTheClient(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		closed := make(chan error, 16)
		b.hooks.RenewFailed = func(relock.Event) { closed <- b.locks.Close() }
		b.m = b.mutex()
		lockAndQueue(b)
		b.relay.ReplyWith("-LOADING Redis is loading the dataset in memory\r\n", b.runs(protocol.RenameScript)).Times(2)
		unlocked := b.other.start(b.m.Unlock)
		require.NoError(t, faultError(t, b.waiting))
		require.NoError(t, faultError(t, closed))
		require.NoError(t, faultError(t, unlocked))
		b.requireGone()
	})
}
