package interop

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
)

func TestTokens_RiseAcrossBothLanguages(t *testing.T) {
	onEach(t, func(t *testing.T, d *deployment) {
		java, locks, rdb := d.redisson(t), d.locks(t, relock.WithSharedFencing()), d.client(t)
		thread, g := java.thread(), newActor(t)
		for _, name := range namesOf(t) {
			lock, m := java.lock("fenced", name), locks.Mutex(name)
			last := int64(0)
			rises := func(token int64) {
				t.Helper()
				require.Greater(t, token, last)
				last = token
			}
			for range 10 {
				g.locks(t, m)
				rises(tokenOf(t, g, m))
				require.Equal(t, last, valueOf[int64](t, thread.call(t, "getToken", lock)))
				g.unlocks(t, m)

				rises(valueOf[int64](t, thread.call(t, "lockAndGetToken", lock)))
				rises(valueOf[int64](t, thread.call(t, "lockAndGetToken", lock))) // Java counts levels, too
				require.Equal(t, last, stateOf(t, m).FencingToken)
				thread.unlocks(t, lock)
				thread.unlocks(t, lock)
			}
			require.Equal(t, time.Duration(-1), rdb.PTTL(t.Context(), counterOf(name)).Val(), "the counter expires")
			require.NoError(t, rdb.Del(t.Context(), counterOf(name)).Err())
			d.requireFree(t, name)
		}
	})
}

// WithFencing does not make a counter of Java's expire; one of its own does.
func TestTokens_CounterOfJavaNeverExpires(t *testing.T) {
	d := single(t)
	java, locks, rdb := d.redisson(t), d.locks(t, relock.WithFencing()), d.client(t)
	thread, g := java.thread(), newActor(t)
	names := namesOf(t)

	lock, m := java.lock("fenced", names[0]), locks.Mutex(names[0])
	require.Equal(t, int64(1), valueOf[int64](t, thread.call(t, "lockAndGetToken", lock)))
	thread.unlocks(t, lock)
	g.locks(t, m)
	require.Greater(t, tokenOf(t, g, m), int64(1))
	g.unlocks(t, m)
	require.Equal(t, time.Duration(-1), rdb.PTTL(t.Context(), counterOf(names[0])).Val())

	lock, m = java.lock("fenced", names[1]), locks.Mutex(names[1])
	g.locks(t, m)
	token := tokenOf(t, g, m)
	g.unlocks(t, m)
	require.Greater(t, valueOf[int64](t, thread.call(t, "lockAndGetToken", lock)), token)
	thread.unlocks(t, lock)
	require.Greater(t, rdb.PTTL(t.Context(), counterOf(names[1])).Val(), 23*time.Hour)
	require.NoError(t, rdb.Del(t.Context(), counterOf(names[0]), counterOf(names[1])).Err())
}

// tokenOf returns the token of the actor's hold.
func tokenOf(t *testing.T, g *actor, m *relock.Mutex) (token int64) {
	t.Helper()
	require.NoError(t, outcomeOf(t, g.begin(func() error {
		token = m.FencingToken()
		return nil
	})))
	return token
}
