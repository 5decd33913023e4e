package interop

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

const forcedTTL = 3 * time.Second // a loss is noticed at the next renewal, after a third of it

func TestForceUnlock_InJavaIsALossForTheGoHolder(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		java, locks := d.redisson(t), d.locks(t, relock.WithTTL(forcedTTL))
		thread, g := java.thread(), newActor(t)
		name := redistest.Key(t)
		lock, m := java.lock("plain", name), locks.Mutex(name)

		g.locks(t, m)
		hold := g.context(t, m)
		require.True(t, valueOf[bool](t, thread.call(t, "forceUnlock", lock)))
		require.True(t, thread.tries(t, lock))
		require.ErrorIs(t, ends(t, hold), relock.ErrLost)
		require.ErrorIs(t, outcomeOf(t, g.begin(m.Unlock)), relock.ErrLost)
		require.Equal(t, 1, stateOf(t, m).Count, "Go's late unlock took Java's lock away")
		thread.unlocks(t, lock)
		d.requireFree(t, name)
	})
}

func TestForceUnlock_InGoIsALossForAGoHolderAndWakesJava(t *testing.T) {
	t.Parallel()
	d := single(t)
	java, locks, rdb := d.redisson(t), d.locks(t, relock.WithTTL(forcedTTL)), d.client(t)
	operator := d.locks(t)
	thread, g := java.thread(), newActor(t)
	name := redistest.Key(t)
	lock, m := java.lock("plain", name), locks.Mutex(name)

	g.locks(t, m)
	hold := g.context(t, m)
	returned := thread.begin("lock", lock)
	eventually(t, "Java listens", func() bool { return d.listeners(t, rdb, name) == 1 })
	forced, err := operator.Mutex(name).ForceUnlock(t.Context())
	require.NoError(t, err)
	require.True(t, forced)
	thread.comes(t, returned)
	require.ErrorIs(t, ends(t, hold), relock.ErrLost)
	require.ErrorIs(t, outcomeOf(t, g.begin(m.Unlock)), relock.ErrLost)
	thread.unlocks(t, lock)
	d.requireFree(t, name)
}

func TestForceUnlock_InGoEndsAHoldOfJava(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		java, locks := d.redisson(t), d.locks(t)
		thread, g := java.thread(), newActor(t)
		name := redistest.Key(t)
		lock, m := java.lock("plain", name), locks.Mutex(name)

		thread.locks(t, lock)
		coming := g.waits(t, m)
		forced, err := m.ForceUnlock(t.Context())
		require.NoError(t, err)
		require.True(t, forced)
		require.NoError(t, outcomeOf(t, coming))
		require.False(t, valueOf[bool](t, thread.call(t, "isHeldByCurrentThread", lock)))
		require.ErrorContains(t, thread.call(t, "unlock", lock).err(), "IllegalMonitorStateException")
		require.Equal(t, 1, stateOf(t, m).Count, "Java's late unlock took Go's lock away")
		g.unlocks(t, m)
		d.requireFree(t, name)
	})
}

func TestForceUnlock_OfAFreeLockIsReportedInBothLanguages(t *testing.T) {
	t.Parallel()
	d := single(t)
	java, locks := d.redisson(t), d.locks(t)
	name := redistest.Key(t)
	require.False(t, valueOf[bool](t, java.thread().call(t, "forceUnlock", java.lock("plain", name))))
	forced, err := locks.Mutex(name).ForceUnlock(t.Context())
	require.NoError(t, err)
	require.False(t, forced)
}
