package relock

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redistest"
)

// A TryLock is in the queue only while it takes over a lock that lingers. With an entry it would wait.
func TestMutexTurn_TryTakesOverNoEntry(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		key := redistest.Key(t)
		locktest.HeldByAnother(t, rdb, key, time.Minute)
		m := LocksOn(t, rdb).Mutex(key)
		ctx, giveUp := context.WithCancel(t.Context())
		defer giveUp()
		waiting := locktest.NewActor(t).Lock(ctx, m)
		locktest.AwaitFairQueue(t, rdb, key, 1)

		try := newHold(m.session, m.kind, keys.Owner{Fixed: "try"}, m.target, &m.settings, false)
		require.True(t, try.register())
		defer try.unregister()
		ticket := try.queueEntries[0].ticket
		require.False(t, ticket.Join())
		giveUp()
		require.ErrorIs(t, locktest.OutcomeOf(t, waiting), context.Canceled)
		locktest.AwaitFairQueue(t, rdb, key, 0)
		state, _ := ticket.State()
		require.Equal(t, queue.Turn, state, "it has the turn")
		require.Nil(t, try.inherited)
		try.leave()
		require.NoError(t, rdb.Del(t.Context(), key).Err())
	})
}
