package interop

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

func TestExclusion_HolderOfEitherLanguageKeepsTheOtherOut(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		java, locks := d.redisson(t), d.locks(t)
		thread, g := java.thread(), newActor(t)
		// These are the same on Redis, messages included.
		for _, kind := range []string{"plain", "fenced", "nonReentrant"} {
			for _, name := range namesOf(t) {
				lock, m := java.lock(kind, name), locks.Mutex(name)

				thread.locks(t, lock)
				require.False(t, g.tries(t, m), "both hold %s", name)
				coming := g.waits(t, m)
				thread.unlocks(t, lock)
				require.NoError(t, outcomeOf(t, coming))

				require.True(t, valueOf[bool](t, thread.call(t, "isLocked", lock)))
				require.False(t, thread.tries(t, lock), "both hold %s", name)
				returned := thread.waits(t, lock)
				g.unlocks(t, m)
				thread.comes(t, returned)
				thread.unlocks(t, lock)
				d.requireFree(t, name)
			}
		}
	})
}

func TestExclusion_EveryLevelKeepsTheOtherLanguageOut(t *testing.T) {
	t.Parallel()
	d := single(t)
	java, locks := d.redisson(t), d.locks(t)
	thread, g := java.thread(), newActor(t)
	name := redistest.Key(t)
	lock, m := java.lock("plain", name), locks.Mutex(name)

	thread.locks(t, lock)
	thread.locks(t, lock)
	state, err := m.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, state.Count)
	require.Regexp(t, `^[0-9a-f-]{36}:\d+$`, state.Owner)
	require.Greater(t, state.TTL, 20*time.Second)
	thread.unlocks(t, lock)
	require.False(t, g.tries(t, m), "Java still has a level")
	thread.unlocks(t, lock)

	g.locks(t, m)
	g.locks(t, m)
	require.Zero(t, valueOf[int](t, thread.call(t, "getHoldCount", lock)), "a level of Go's is not Java's")
	require.False(t, valueOf[bool](t, thread.call(t, "isHeldByCurrentThread", lock)))
	require.Greater(t, valueOf[int](t, thread.call(t, "remainTimeToLive", lock)), 20_000)
	g.unlocks(t, m)
	require.False(t, thread.tries(t, lock), "Go still has a level")
	g.unlocks(t, m)
	require.True(t, thread.tries(t, lock))
	thread.unlocks(t, lock)
	d.requireFree(t, name)
}

func TestExclusion_UnlockOfTheOtherLanguagesHoldIsRefused(t *testing.T) {
	t.Parallel()
	d := single(t)
	java, locks := d.redisson(t), d.locks(t)
	thread, g := java.thread(), newActor(t)
	name := redistest.Key(t)
	lock, m := java.lock("plain", name), locks.Mutex(name)

	g.locks(t, m)
	require.ErrorContains(t, thread.call(t, "unlock", lock).err(), "IllegalMonitorStateException")
	g.unlocks(t, m)

	thread.locks(t, lock)
	require.ErrorIs(t, outcomeOf(t, g.begin(m.Unlock)), relock.ErrNotHeld)
	thread.unlocks(t, lock)
	d.requireFree(t, name)
}

func TestExclusion_FixedLeaseEndsForBothLanguages(t *testing.T) {
	t.Parallel()
	const lease = 500 * time.Millisecond
	onEach(t, func(t *testing.T, d *deployment) {
		java, locks := d.redisson(t), d.locks(t)
		thread, g := java.thread(), newActor(t)
		name := redistest.Key(t)
		lock := java.lock("plain", name)
		m, fixed := locks.Mutex(name), locks.Mutex(name, relock.WithTTL(lease), relock.WithoutRenewal())

		thread.locks(t, lock, leaseTime(lease))
		g.locks(t, m) // without a message: the lease of Java's hold has run out
		require.ErrorContains(t, thread.call(t, "unlock", lock).err(), "IllegalMonitorStateException")
		require.Equal(t, 1, stateOf(t, m).Count, "Java's late unlock took Go's lock away")
		g.unlocks(t, m)

		g.locks(t, fixed)
		hold := g.context(t, fixed)
		require.True(t, thread.tries(t, lock, waitTime(soonEnough)), "Go's fixed lease did not end")
		require.ErrorIs(t, ends(t, hold), relock.ErrLost)
		require.ErrorIs(t, outcomeOf(t, g.begin(fixed.Unlock)), relock.ErrLost)
		require.Equal(t, 1, stateOf(t, m).Count, "Go's late unlock took Java's lock away")
		thread.unlocks(t, lock)
		d.requireFree(t, name)
	})
}

func TestExclusion_WatchdogOfEitherLanguageKeepsTheLock(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	d := single(t)
	java := sharedPeer(t).opened(t, d, ttl)
	locks := d.locks(t, relock.WithTTL(ttl))
	thread, g := java.thread(), newActor(t)
	ofJava, ofGo := redistest.Key(t), redistest.Key(t)

	thread.locks(t, java.lock("plain", ofJava))
	g.locks(t, locks.Mutex(ofGo))
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(2 * ttl); time.Now().Before(end); <-look.C {
		require.False(t, g.tries(t, locks.Mutex(ofJava)), "Java did not renew its lock")
		require.False(t, thread.tries(t, java.lock("plain", ofGo)), "Go did not renew its lock")
	}
	thread.unlocks(t, java.lock("plain", ofJava))
	g.unlocks(t, locks.Mutex(ofGo))
	d.requireFree(t, ofJava, ofGo)
}

func stateOf(t *testing.T, m *relock.Mutex) relock.State {
	t.Helper()
	state, err := m.State(t.Context())
	require.NoError(t, err)
	return state
}
