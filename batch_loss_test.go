package relock

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// The key is deleted while one owner holds and another follows. The first is notified of the loss, and locks
// again at once, by another kind of lock of the same name. What undoes the lost holds comes after that.
func TestBatch_OwnerLocksByANewNameAfterALoss(t *testing.T) {
	type ways struct {
		lock   func(context.Context) error
		unlock func() error
	}
	for name, of := range map[string]func(c *Client, key string) ways{
		"FairMutex": func(c *Client, key string) ways { m := c.FairMutex(key); return ways{m.Lock, m.Unlock} },
		"RLock":     func(c *Client, key string) ways { m := c.RWMutex(key); return ways{m.RLock, m.RUnlock} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := redistest.Mini(t)
			rdb, key := backend.Client(t), redistest.Key(t)
			c := LocksOn(t, rdb)
			m, first, second := c.Mutex(key), locktest.NewActor(t), locktest.NewActor(t)
			first.Locks(t, m)
			before := holdOfActor(t, first, m)
			require.True(t, before.slot.take(t.Context()), "no rename is sent yet")
			next := second.Lock(t.Context(), m)
			AwaitWaiters(t, c, key, 1)
			unlocked := first.Begin(m.Unlock)
			require.NoError(t, locktest.OutcomeOf(t, next))
			follower := holdOfActor(t, second, m)
			require.NoError(t, rdb.Del(t.Context(), key).Err())

			// When the rename has been sent, the follower stands still: its loss is not settled before the first owner has
			// locked again.
			stands := sync.OnceFunc(follower.mu.Lock)
			backend.Miniredis.Server().SetPreHook(func(_ *server.Peer, _ string, args ...string) bool {
				if slices.Contains(args, protocol.RenameScript.Source()) {
					stands()
				}
				return false
			})
			before.slot.free()
			lost, again := locktest.OutcomeOf(t, unlocked), of(c, key)
			err := locktest.OutcomeOf(t, first.Begin(func() error { return again.lock(t.Context()) }))
			follower.mu.Unlock()
			require.ErrorIs(t, lost, ErrLost)
			require.NoError(t, err)

			require.ErrorIs(t, second.Call(m.Unlock), ErrLost)
			redistest.Eventually(t, "the lost holds to be undone", func() bool { return Settled(c) })
			require.NotEmpty(t, locktest.OnRedis(t, rdb, key), "what was locked since is held")
			require.NoError(t, first.Call(again.unlock))
		})
	}
}

// holdOfActor is the hold that an actor has of m.
func holdOfActor(t *testing.T, a *locktest.Actor, m *Mutex) (h *hold) {
	t.Helper()
	_ = a.Call(func() error {
		h = holdOf(m)
		return nil
	})
	require.NotNil(t, h)
	return h
}
