package tests

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

func TestReplicas_WaitingLockEndsWithItsContext(t *testing.T) {
	b := newReplicaBench(t, 1, relock.WithReplicas(1, 5*time.Second))
	b.pause()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m, other := b.locks.Mutex(b.key), locktest.NewActor(t)
	waiting := other.Lock(ctx, m)
	redistest.Eventually(t, "granted by the master", func() bool { return len(locktest.OnRedis(t, b.master, b.key)) == 1 })
	began := time.Now()
	cancel()
	require.ErrorIs(t, locktest.OutcomeOf(t, waiting), context.Canceled)
	b.awaitFree(b.key)
	require.Less(t, time.Since(began), 3*time.Second, "the WAIT is not waited for")
}

func TestReplicas_FailedWaitRefusesTheLock(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]struct {
		why  string
		rule func(*redistest.Relay)
	}{
		"its reply is lost": {"EOF", func(r *redistest.Relay) { r.DropReply(waits) }},
		"it is not allowed": {"NOPERM", func(r *redistest.Relay) {
			r.ReplyWith("-NOPERM this user has no permissions to run the 'wait' command\r\n", waits)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newReplicaBench(t, 1, relock.WithReplicas(1, 4*time.Second))
			fail.rule(b.relay)
			err := b.locks.Mutex(b.key).Lock(t.Context())
			require.ErrorIs(t, err, relock.ErrNotReplicated)
			require.ErrorContains(t, err, fail.why)
			require.Equal(t, 1, b.relay.Executed(locktest.RunsOf(protocol.AcquireScript)), "the script was answered")
			b.awaitFree(b.key)
		})
	}
}

// As a newcomer's: it is no outage, which would be waited for.
func TestReplicas_RefusedWaitEndsALockThatHasWaited(t *testing.T) {
	b := newReplicaBench(t, 1, relock.WithReplicas(1, 4*time.Second))
	m := b.locks.MultiMutex([]string{b.key, b.key + "-2"})
	holder := locksOn(t, b.master).Mutex(b.key)
	locktest.RequireLocked(t, holder)
	waiting := locktest.NewActor(t).Lock(t.Context(), m)
	redistest.Eventually(t, "it waits", func() bool { return b.master.ZCard(t.Context(), keys.LineOf(b.key).Queue).Val() == 1 })
	b.relay.ReplyWith("-NOPERM this user has no permissions to run the 'wait' command\r\n", waits).Always()
	locktest.RequireUnlocked(t, holder)
	err := locktest.OutcomeOf(t, waiting)
	require.ErrorIs(t, err, relock.ErrNotReplicated)
	require.ErrorContains(t, err, "NOPERM")
	b.awaitFree(b.key, b.key+"-2")
}

// Neither reply comes: the attempt is in doubt, and repeated under the same name.
func TestReplicas_UnansweredPairIsSentAgain(t *testing.T) {
	b := newReplicaBench(t, 1, relock.WithReplicas(1, 4*time.Second))
	b.relay.DropReply(locktest.RunsOf(protocol.AcquireScript))
	id := b.locks.ID()
	m := b.locks.Mutex(b.key)
	locktest.RequireLocked(t, m)
	require.NotEqual(t, id, b.locks.ID())
	locktest.RequireOnRedis(t, b.master, b.key, fmt.Sprintf("%s:%d", id, goroutine.ID()), 1)
	locktest.RequireUnlocked(t, m)
	b.awaitFree(b.key)
}

// A master that was frozen executes what it was sent meanwhile when another server is master.
func TestReplicas_ReplacedMasterGrantsNothing(t *testing.T) {
	b := newReplicaBench(t, 1, relock.WithReplicas(1, 500*time.Millisecond))
	m, other := b.locks.Mutex(b.key), locktest.NewActor(t)
	b.locked(m)
	locktest.RequireUnlocked(t, m) // connections are there
	heir := b.Replicas[0].Client(t)
	redistest.Eventually(t, "the release is replicated", func() bool { return heir.Exists(t.Context(), b.key).Val() == 0 })
	b.relay.ResetLog()
	require.NoError(t, b.Master.Pause())
	late := other.Lock(t.Context(), m)
	redistest.Eventually(t, "sent", func() bool { return b.relay.Count(locktest.RunsOf(protocol.AcquireScript)) > 0 })
	require.NoError(t, b.Promote(t.Context(), b.Replicas[0]))
	rival := locksOn(t, heir).Mutex(b.key)
	locktest.RequireLocked(t, rival)
	require.NoError(t, b.Master.Resume())
	require.ErrorIs(t, locktest.OutcomeOf(t, late), relock.ErrNotReplicated)
	require.Equal(t, 1, rival.HoldCount())

	require.ErrorIs(t, m.Lock(t.Context()), relock.ErrNotReplicated, "nor does it later")
}

// However long the application keeps all of its connections.
func TestReplicas_LockTakesNoConnectionOfTheApplication(t *testing.T) {
	b := newReplicaBench(t, 1)
	rdb := redis.NewClient(&redis.Options{Addr: b.relay.Addr, PoolSize: 2, PoolTimeout: 10 * time.Second})
	t.Cleanup(func() { _ = rdb.Close() })
	pops := make(chan error, 2)
	for range cap(pops) {
		go func() { pops <- rdb.BLPop(t.Context(), time.Minute, b.key+":work").Err() }()
	}
	redistest.Eventually(t, "used up", func() bool { return b.relay.Count(redistest.Named("BLPOP")) == cap(pops) })
	locks := locksOn(t, rdb, relock.WithReplicas(1, 300*time.Millisecond), relock.WithTTL(2*time.Second), relock.WithHooks(b.events.Hooks()))
	m := locks.Mutex(b.key)
	b.locked(m)
	hold := m.Context(t.Context())
	b.awaitEvent("renewed", 5) // more than a lease
	require.NoError(t, hold.Err())
	locktest.RequireUnlocked(t, m)
	b.locked(m)
	locktest.RequireUnlocked(t, m)
	require.Zero(t, rdb.PoolStats().WaitCount, "nothing queued for a connection")

	require.NoError(t, locks.Close())
	for range cap(pops) {
		require.NoError(t, b.master.LPush(t.Context(), b.key+":work", "done").Err())
	}
	for range cap(pops) {
		require.NoError(t, redistest.Receive(t, pops))
	}
	require.NoError(t, rdb.Close())
	redistest.Eventually(t, "no connection is left", func() bool { return b.relay.Conns() == 0 })
}

// What waits for replicas that do not answer is bounded, and nothing is left behind by what had
// to wait for its turn.
func TestReplicas_ConcurrentWaitsAreBounded(t *testing.T) {
	b := newReplicaBench(t, 1)
	rdb := redis.NewClient(&redis.Options{Addr: b.relay.Addr, PoolSize: 2, PoolTimeout: 10 * time.Second})
	t.Cleanup(func() { _ = rdb.Close() })
	locks := locksOn(t, rdb, relock.WithReplicas(1, 5*time.Second))
	require.NoError(t, rdb.Ping(t.Context()).Err())
	b.pause()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var first []<-chan error
	var keys []string
	for i := range 8 { // with so small a pool
		keys = append(keys, fmt.Sprintf("%s-%d", b.key, i))
		first = append(first, locktest.NewActor(t).Lock(ctx, locks.Mutex(keys[i])))
	}
	redistest.Eventually(t, "they wait", func() bool { return b.relay.Count(waits) == len(first) })
	id := locks.ID()
	brief, end := context.WithCancel(t.Context())
	defer end()
	last := locktest.NewActor(t).Lock(brief, locks.Mutex(b.key))
	locktest.GoesOn(t, last)
	require.EqualValues(t, 1, rdb.PoolStats().TotalConns, "none of the application's")
	end()
	require.ErrorIs(t, locktest.OutcomeOf(t, last), context.Canceled)
	require.Equal(t, id, locks.ID(), "what was not sent is in no doubt")
	require.Equal(t, len(first), b.relay.Count(waits))
	cancel()
	for _, result := range first {
		require.ErrorIs(t, locktest.OutcomeOf(t, result), context.Canceled)
	}
	b.awaitFree(append(keys, b.key)...)
}

func TestReplicas_RenewalsDoNotWaitBehindNewLocks(t *testing.T) {
	b := newReplicaBench(t, 1, relock.WithTTL(time.Minute), relock.WithReplicas(1, 10*time.Second))
	b.locked(b.locks.Mutex(b.key, relock.WithRenewInterval(time.Second)))
	idle := b.locks.Mutex(b.key + "-again")
	b.locked(idle)
	b.pause()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all []<-chan error
	for i := range 100 {
		all = append(all, locktest.NewActor(t).Lock(ctx, b.locks.Mutex(fmt.Sprintf("%s-%d", b.key, i))))
	}
	redistest.Eventually(t, "it is sent", func() bool { return b.relay.Count(locktest.RunsOf(protocol.RenewScript)) > 0 })
	again, end := context.WithTimeout(ctx, time.Second)
	defer end()
	require.Error(t, idle.Lock(again))
	require.Positive(t, b.relay.Count(locktest.RunsOf(protocol.ReenterScript)), "nor does a re-entry")
	for _, result := range all {
		require.Empty(t, result, "it waits for the replicas, or for room")
	}
	cancel()
	for _, result := range all {
		require.ErrorIs(t, locktest.OutcomeOf(t, result), context.Canceled)
	}
	b.resume()
	_ = b.locks.Mutex(b.key).Unlock() // replicas need not confirm that
	_ = idle.Unlock()
	b.awaitFree(b.key)
}

func TestReplicas_WorkBehindSentinel(t *testing.T) {
	t.Parallel()
	set := redistest.NewSentinel(t)
	m := locksOn(t, set.Client(t), relock.WithReplicas(2, 4*time.Second)).Mutex(redistest.Key(t))
	locktest.RequireLocked(t, m)
	for _, replica := range set.Nodes[1:] {
		require.Len(t, locktest.OnRedis(t, replica.Client(t), m.Name()), 1, "it was confirmed")
	}
	locktest.RequireUnlocked(t, m)
}

func TestReplicas_WorkOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	ctx := t.Context()
	rdb := cluster.Client(t)
	c := locksOn(t, rdb, relock.WithReplicas(1, 4*time.Second))
	confirmed := func(m *relock.Mutex) {
		t.Helper()
		replica, err := cluster.Replica(ctx, m.Name())
		require.NoError(t, err)
		direct := replica.Client(t)
		require.NoError(t, direct.ReadOnly(ctx).Err())
		require.Positive(t, keysIn(t, direct, m.Name()))
	}

	t.Run("from the first command on", func(t *testing.T) {
		m := c.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		confirmed(m)
		locktest.RequireUnlocked(t, m)
	})
	t.Run("after MOVED", func(t *testing.T) {
		m := c.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		locktest.RequireUnlocked(t, m)
		old, err := cluster.Master(ctx, m.Name())
		require.NoError(t, err)
		_, err = cluster.Failover(ctx, m.Name())
		require.NoError(t, err)
		require.NoError(t, cluster.AwaitReady(ctx))
		id := c.ID()
		locktest.RequireLocked(t, m)
		confirmed(m)
		require.Equal(t, id, c.ID(), "nothing was in doubt")
		stats, err := old.Client(t).Info(ctx, "errorstats").Result()
		require.NoError(t, err)
		require.Contains(t, stats, "errorstat_MOVED", "the client had the new map of slots before")
		locktest.RequireUnlocked(t, m)
	})
	t.Run("after ASK", func(t *testing.T) {
		m := c.Mutex(redistest.Key(t))
		slot := rdb.ClusterKeySlot(ctx, m.Name()).Val()
		from, err := cluster.Master(ctx, m.Name())
		require.NoError(t, err)
		to := otherMaster(t, cluster, from)
		source, target := from.Client(t), to.Client(t)
		setSlot := func(node *redis.Client, state string, peer *redis.Client) {
			require.NoError(t, node.Do(ctx, "cluster", "setslot", slot, state, peer.Do(ctx, "cluster", "myid").Val()).Err())
		}
		setSlot(target, "importing", source)
		setSlot(source, "migrating", target)
		locktest.RequireLocked(t, m)
		require.EqualValues(t, 1, keysIn(t, target, m.Name()), "it went to the target")
		require.Zero(t, keysIn(t, source, m.Name()))
		locktest.RequireUnlocked(t, m)
		require.Zero(t, keysIn(t, target, m.Name()))
	})
}

// keysIn is how many keys a node has in the slot of key.
func keysIn(t *testing.T, node *redis.Client, key string) int64 {
	t.Helper()
	slot, err := node.ClusterKeySlot(t.Context(), key).Result()
	require.NoError(t, err)
	n, err := node.ClusterCountKeysInSlot(t.Context(), int(slot)).Result()
	require.NoError(t, err)
	return n
}

// otherMaster returns a master that is not this one.
func otherMaster(t *testing.T, c *redistest.Cluster, not *redistest.Server) *redistest.Server {
	t.Helper()
	i := slices.IndexFunc(c.Nodes, func(node *redistest.Server) bool {
		role, err := node.Client(t).Do(t.Context(), "role").Slice()
		return err == nil && role[0] == "master" && node != not
	})
	require.GreaterOrEqual(t, i, 0)
	return c.Nodes[i]
}
