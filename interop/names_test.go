package interop

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

func TestNames_PrefixIsPartOfTheNameInJava(t *testing.T) {
	d := single(t)
	java, locks := d.redisson(t), d.locks(t, relock.WithPrefix("orders:"))
	thread, g := java.thread(), newActor(t)
	name := redistest.Key(t)
	lock, m := java.lock("plain", "orders:"+name), locks.Mutex(name)

	thread.locks(t, lock)
	coming := g.waits(t, m)
	thread.unlocks(t, lock)
	require.NoError(t, outcomeOf(t, coming))
	returned := thread.waits(t, lock)
	g.unlocks(t, m)
	thread.comes(t, returned)
	thread.unlocks(t, lock)
	d.requireFree(t, "orders:"+name)
}

func TestNames_DifferentOnesDoNotMeet(t *testing.T) {
	onEach(t, func(t *testing.T, d *deployment) {
		java, locks := d.redisson(t), d.locks(t)
		thread, g := java.thread(), newActor(t)
		for _, name := range namesOf(t) {
			other := name + ":other"
			g.locks(t, locks.Mutex(name))
			require.True(t, thread.tries(t, java.lock("plain", other)))
			thread.unlocks(t, java.lock("plain", other))
			g.unlocks(t, locks.Mutex(name))
			d.requireFree(t, name, other)
		}
	})
}
