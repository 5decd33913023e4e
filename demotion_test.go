package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// throughThePipeline has the client talk to the server, by its pipeline if it has one.
func throughThePipeline(t *testing.T, c *relock.Client, rdb *redis.Client) {
	t.Helper()
	m := c.Mutex(redistest.Key(t))
	locktest.RequireLocked(t, m) // with a context that may end
	locktest.RequireUnlocked(t, m)
	if !redistest.WithoutPipelining() {
		require.Zero(t, rdb.PoolStats().TotalConns)
	}
}

func TestDemotion_MasterThatBecameAReplicaIsLeft(t *testing.T) {
	t.Parallel()
	s, events := redistest.NewTwoServers(t), &chronicle{}
	rdb := s.Client()
	c := relock.LocksOn(t, rdb, relock.WithHooks(events.Hooks()))
	throughThePipeline(t, c, rdb)
	s.Failover(false)
	m := c.Mutex(redistest.Key(t), relock.WithRenewInterval(20*time.Millisecond))
	redistest.Eventually(t, "a lock", func() bool { return m.Lock(t.Context()) == nil })
	renewed := len(events.Of("renewed"))
	redistest.Eventually(t, "renewed", func() bool { return len(events.Of("renewed")) >= renewed+3 })
	failed := len(events.Of("renew failed"))
	redistest.Eventually(t, "renewed on", func() bool { return len(events.Of("renewed")) >= renewed+10 })
	require.Len(t, events.Of("renew failed"), failed, "it still asks the replica")
	locktest.RequireUnlocked(t, m)
	locktest.RequireFree(t, s.Next.Client(t), m.Name())
}

// A former master has nothing of what its successor has granted. That is not to be taken for a loss.
func TestDemotion_IsolatedFormerMasterTakesNothingAway(t *testing.T) {
	t.Parallel()
	for _, k := range lockKinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			s, events := redistest.NewTwoServers(t), &chronicle{}
			rdb := s.Client()
			c := relock.LocksOn(t, rdb, relock.WithHooks(events.Hooks()))
			throughThePipeline(t, c, rdb)
			s.Failover(true)
			redistest.Eventually(t, "go-redis has left it", func() bool { return rdb.Set(t.Context(), "mine", 1, 0).Err() == nil })
			m := k.mutex(c, redistest.Key(t), relock.WithRenewInterval(20*time.Millisecond))
			redistest.Eventually(t, "a lock", func() bool { return m.Lock(context.Background()) == nil }) // past the pipeline
			renewed := len(events.Of("renewed"))
			redistest.Eventually(t, "renewed", func() bool { return len(events.Of("renewed")) >= renewed+3 || len(events.Of("lost")) > 0 })
			locktest.RequireLocked(t, m)
			locktest.RequireUnlocked(t, m)
			locktest.RequireUnlocked(t, m)
			require.Empty(t, events.Of("lost"))
			require.Zero(t, s.Next.Client(t).Exists(t.Context(), m.Keys().Keys...).Val())
		})
	}
}

// After a failover that the old master survives, the connection for messages is as good as
// ever, but leads to where nobody publishes any more, until Sentinel has notified the old master
// of the new one. Polls that find the lock free detect that.
func TestDemotion_WaiterLeavesALivingFormerMaster(t *testing.T) {
	t.Parallel()
	sentinel := redistest.NewSentinel(t)
	opts := []relock.ClientOption{relock.WithTTL(2 * time.Minute), relock.WithSafetyPoll(time.Minute)}
	holder, waiter := relock.LocksOn(t, sentinel.Client(t), opts...), relock.LocksOn(t, sentinel.Client(t), opts...)
	holds, waits, sleeps := locktest.NewActor(t), locktest.NewActor(t), locktest.NewActor(t)
	old, err := sentinel.Master(t.Context())
	require.NoError(t, err)
	for _, order := range []string{"-replicaof", "-slaveof"} { // it is never notified
		require.NoError(t, old.Client(t).Do(t.Context(), "ACL", "SETUSER", "default", order).Err())
	}

	before, after := redistest.Key(t), redistest.Key(t)
	holds.Locks(t, holder.Mutex(before))
	held := sleeps.Lock(t.Context(), waiter.Mutex(before)) // keeps the connection
	relock.AwaitListening(t, waiter, before)
	fresh, err := sentinel.Failover(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, locktest.Listeners(t, old.Client(t), before))
	for _, c := range []*relock.Client{holder, waiter} {
		probe := c.Mutex(redistest.Key(t), relock.WithOwner("probe"))
		redistest.Eventually(t, "commands to go to the new master", func() bool {
			held, err := probe.TryLock(t.Context())
			if err != nil || !held {
				return false
			}
			there := fresh.Client(t).Exists(t.Context(), probe.Name()).Val() == 1
			return probe.Unlock() == nil && there
		})
	}

	polls := waiter.Mutex(after, relock.WithSafetyPoll(200*time.Millisecond))
	redistest.Eventually(t, "listening on the new master", func() bool {
		holds.Locks(t, holder.Mutex(after))
		passed := waits.Lock(t.Context(), polls)
		relock.AwaitListening(t, waiter, after)
		holds.Unlocks(t, holder.Mutex(after))
		require.NoError(t, locktest.OutcomeOf(t, passed))
		waits.Unlocks(t, polls)
		return locktest.Listeners(t, fresh.Client(t), before) == 1
	})
	relock.AwaitListening(t, waiter, before)
	holds.Unlocks(t, holder.Mutex(before))
	require.NoError(t, locktest.OutcomeOf(t, held), "notified by a message")
	sleeps.Unlocks(t, waiter.Mutex(before))
	require.Contains(t, old.Client(t).Info(t.Context(), "replication").Val(), "role:master")
}
