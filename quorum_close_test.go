package relock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is waited for is that go-redis closes the connections to the frozen node, and not its undos besides.
func TestClose_DoesNotWaitForAFrozenNodeOfAQuorum(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		b.relays[2].BlackHole(true)
		m := b.mutex()
		b.me.Locks(b.t, m)
		b.me.Unlocks(b.t, m)
		b.me.Locks(b.t, m) // what is held is released as well
		began := time.Now()
		require.NoError(b.t, b.locks.Close())
		require.Less(b.t, time.Since(began), b.locks.Patience()*3/2)
		for _, n := range []int{0, 1} {
			require.Empty(b.t, b.fields()[n])
		}
	})
}

// Most nodes are frozen: there is an undo that too few have settled, which has the time of one command.
func TestClose_IsBoundedThoughMostNodesOfAQuorumAreFrozen(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		b.relays[1].BlackHole(true)
		b.relays[2].BlackHole(true)
		held, err := b.mutex().TryLock(b.t.Context())
		require.Error(b.t, err)
		require.False(b.t, held)
		began := time.Now()
		require.NoError(b.t, b.locks.Close())
		require.LessOrEqual(b.t, time.Since(began), 3*b.locks.Patience())
		for _, relay := range b.relays {
			relay.BlackHole(false)
			relay.Cut()
		}
		if b.minis[0].Miniredis != nil { // what go-redis still tries is over then: its Close would stop the clock
			time.Sleep(time.Minute)
		}
	})
}

// A node that is slower than the others is rid of the lock when Close returns.
func TestClose_WaitsAMomentForTheSlowestNodeOfAQuorum(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.relays[2].Latency(20 * time.Millisecond)
		b.warm()
		b.locksOn(b.mutex(), 0, 1, 2)
		require.NoError(b.t, b.locks.Close())
		require.Empty(b.t, b.fields()[2])
	})
}
