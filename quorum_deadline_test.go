package relock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Two nodes do not answer, and every command to them waits for those before it, for much
// longer than a renewal can wait. With two others silent, too, its result depends on them.
func TestALossIsToldInTimeThoughSilentNodesAreFarBehind(t *testing.T) {
	t.Parallel()
	onQuorum(t, 5, func(b *quorumBench) {
		const ttl, rounds = 1500 * time.Millisecond, 10 // in which they get ten seconds behind
		m := b.mutex()
		b.warm()
		b.relays[3].BlackHole(true)
		b.relays[4].BlackHole(true)
		for range rounds { // commands that wait for each other there
			b.me.locks(b.t, m)
			b.me.locks(b.t, m)
			b.me.unlocks(b.t, m)
		}
		ctx := contextOf(b.me, m)
		began := time.Now()
		b.relays[0].BlackHole(true)
		b.relays[1].BlackHole(true)
		receives(b.t, ctx.Done())
		require.ErrorIs(b.t, context.Cause(ctx), ErrLost)
		require.Less(b.t, time.Since(began), ttl+1500*time.Millisecond, "the lease was over before")
		for range rounds {
			require.ErrorIs(b.t, b.me.call(m.Unlock), ErrLost)
		}
	}, WithTTL(1500*time.Millisecond))
}
