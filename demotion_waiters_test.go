package relock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// After a failover that the old master survives, the connection for messages is as good as
// ever, but leads to where nobody publishes any more, until Sentinel has told the old master
// about the new one. Polls that find the lock free are what tells.
func TestAWaiterLeavesAFormerMasterThatLivesOn(t *testing.T) {
	t.Parallel()
	sentinel := redistest.NewSentinel(t)
	opts := []ClientOption{WithTTL(2 * time.Minute), WithSafetyPoll(time.Minute)}
	holder, waiter := locksOn(t, sentinel.Client(t), opts...), locksOn(t, sentinel.Client(t), opts...)
	holds, waits, sleeps := newActor(t), newActor(t), newActor(t)
	old, err := sentinel.Master(t.Context())
	require.NoError(t, err)
	for _, order := range []string{"-replicaof", "-slaveof"} { // it never gets to know
		require.NoError(t, old.Client(t).Do(t.Context(), "ACL", "SETUSER", "default", order).Err())
	}

	before, after := redistest.Key(t), redistest.Key(t)
	holds.locks(t, holder.Mutex(before))
	held := sleeps.lock(t.Context(), waiter.Mutex(before)) // keeps the connection
	awaitListening(t, waiter.session, before)
	fresh, err := sentinel.Failover(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, listeners(t, old.Client(t), before))
	for _, c := range []*Client{holder, waiter} {
		probe := c.Mutex(redistest.Key(t), WithOwner("probe"))
		eventually(t, "commands to go to the new master", func() bool {
			held, err := probe.TryLock(t.Context())
			if err != nil || !held {
				return false
			}
			there := fresh.Client(t).Exists(t.Context(), probe.Name()).Val() == 1
			return probe.Unlock() == nil && there
		})
	}

	polls := waiter.Mutex(after, WithSafetyPoll(50*time.Millisecond))
	eventually(t, "listening on the new master", func() bool {
		holds.locks(t, holder.Mutex(after))
		passed := waits.lock(t.Context(), polls)
		awaitListening(t, waiter.session, after)
		holds.unlocks(t, holder.Mutex(after))
		require.NoError(t, outcomeOf(t, passed))
		waits.unlocks(t, polls)
		return listeners(t, fresh.Client(t), before) == 1
	})
	awaitListening(t, waiter.session, before)
	holds.unlocks(t, holder.Mutex(before))
	require.NoError(t, outcomeOf(t, held), "told by a message")
	sleeps.unlocks(t, waiter.Mutex(before))
	require.Contains(t, old.Client(t).Info(t.Context(), "replication").Val(), "role:master")
}
