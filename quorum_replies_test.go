package relock

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestLostRepliesOfOtherCommandsOfAQuorumChangeNothing(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		name   string
		script *script
		do     func(b *quorumBench)
	}{
		{"renew", renewScript, func(b *quorumBench) {
			m := b.mutex(WithRenewInterval(50 * time.Millisecond))
			b.me.locks(b.t, m)
			ctx := contextOf(b.me, m)
			throughout(b.t, 300*time.Millisecond, func() bool { return ctx.Err() == nil }, "held")
			require.False(b.t, b.rivalTries())
			b.me.unlocks(b.t, m)
		}},
		{"force", forceScript, func(b *quorumBench) {
			theirs := b.rival.Mutex(b.key, WithRenewInterval(50*time.Millisecond))
			b.you.locks(b.t, theirs)
			b.awaitOn(1, 0, 1, 2)
			forced, err := b.mutex().ForceUnlock(b.t.Context())
			require.NoError(b.t, err)
			require.True(b.t, forced)
			require.ErrorIs(b.t, b.you.call(theirs.Unlock), ErrLost)
		}},
		{"release of an inner level", releaseScript, func(b *quorumBench) {
			m := b.mutex()
			b.me.locks(b.t, m)
			b.me.locks(b.t, m)
			b.me.unlocks(b.t, m)
			require.False(b.t, b.rivalTries())
			ctx := contextOf(b.me, m)
			require.NoError(b.t, ctx.Err())
			b.me.unlocks(b.t, m)
		}},
		{"raise", raiseScript, func(b *quorumBench) {
			m := b.mutex(WithFencing())
			b.aheadOn(0, time.Hour)
			b.me.locks(b.t, m)
			require.Greater(b.t, b.tokenOf(b.me, m), int64(0))
			b.me.unlocks(b.t, m)
		}},
		{"state", stateScript, func(b *quorumBench) {
			m := b.mutex()
			b.me.locks(b.t, m)
			s, err := m.State(b.t.Context())
			require.NoError(b.t, err)
			require.Equal(b.t, 1, s.Count)
			b.me.unlocks(b.t, m)
		}},
	} {
		for _, nodes := range [][]int{{0}, {1, 2}, {0, 1, 2}} {
			t.Run(fmt.Sprintf("%s on %v", s.name, nodes), func(t *testing.T) {
				onQuorum(t, 3, func(b *quorumBench) {
					b.warm()
					for _, n := range nodes {
						b.relays[n].DropReply(runsOf(s.script).And(redistest.With(b.key)))
					}
					s.do(b)
					b.awaitFree()
					b.cycle(b.mutex())
					b.awaitFree()
				})
			})
		}
	}
}
