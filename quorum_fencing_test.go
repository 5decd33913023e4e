package relock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// raising has the next token be that of node 0, to which node 1 has to be raised: the third
// node is a stranger's.
func (b *quorumBench) raising() {
	b.t.Helper()
	b.warm()
	b.aheadOn(0, time.Hour)
	b.strangersOn(2)
}

// Between its vote and the raise the node loses the lock: somebody else may have it there, with a
// lower token.
func TestACounterThatIsNotRaisedUnderTheLockDoesNotCount(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.raising()
		gone := b.relays[1].Before(runsOf(protocol.RaiseScript).And(redistest.With(b.key)), func(redistest.Command) {
			_ = b.servers[1].Del(context.Background(), b.key).Err()
		})
		err := b.me.call(func() error { return b.mutex(WithFencing()).Lock(b.t.Context()) })
		gone.Wait(b.t)
		var q *QuorumError
		require.ErrorAs(b.t, err, &q)
		require.ErrorIs(b.t, err, lockerr.ErrNotOnRedis)
		b.awaitOn(1, 2)
		b.strangersGone(2)
	})
}

// The context of a fenced Lock ends between the vote and the raise, at each node that is asked.
func TestALockWhoseContextEndsBeforeItsTokenIsRaisedLeavesNothing(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.raising()
		ctx, cancel := context.WithCancel(b.t.Context())
		rule := b.relays[1].Before(runsOf(protocol.RaiseScript).And(redistest.With(b.key)), func(redistest.Command) { cancel() })
		err := b.me.call(func() error { return b.mutex(WithFencing()).Lock(ctx) })
		rule.Wait(b.t)
		if err == nil {
			b.me.unlocks(b.t, b.mutex())
		} else {
			require.ErrorIs(b.t, err, context.Canceled)
		}
		b.awaitOn(1, 2)
		b.strangersGone(2)
		require.True(b.t, b.rivalTries())
	})
}

// Whichever node is missing, the others are a majority of four.
func TestEvenQuorumsForceAndFence(t *testing.T) {
	t.Parallel()
	onQuorum(t, 4, func(b *quorumBench) {
		b.warm()
		m := b.mutex(WithFencing())
		last := int64(0)
		for n := range 4 {
			b.strangersOn(n)
			b.me.locks(b.t, m)
			token := b.tokenOf(b.me, m)
			require.Greater(b.t, token, last)
			last = token
			b.me.unlocks(b.t, m)
			b.strangersGone(n)
		}
		theirs := b.rival.Mutex(b.key)
		b.you.locks(b.t, theirs)
		forced, err := m.ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, forced)
		b.me.locks(b.t, m)
		b.me.unlocks(b.t, m)
		require.ErrorIs(b.t, b.you.call(theirs.Unlock), ErrLost)
	})
}
