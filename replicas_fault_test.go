package relock

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

func TestALockThatWaitsForReplicasEndsWithItsContext(t *testing.T) {
	b := newReplicaBench(t, 1, WithReplicas(1, 5*time.Second))
	b.pause()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m, other := b.locks.Mutex(b.key), newActor(t)
	waiting := other.lock(ctx, m)
	eventually(t, "granted by the master", func() bool { return len(onRedis(t, b.master, b.key)) == 1 })
	began := time.Now()
	cancel()
	require.ErrorIs(t, outcomeOf(t, waiting), context.Canceled)
	b.awaitFree(b.key)
	require.Less(t, time.Since(began), 3*time.Second, "the WAIT is not waited for")
}

func TestALockWhoseWaitFailsIsRefused(t *testing.T) {
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
			b := newReplicaBench(t, 1, WithReplicas(1, 4*time.Second))
			fail.rule(b.relay)
			err := b.locks.Mutex(b.key).Lock(t.Context())
			require.ErrorIs(t, err, ErrNotReplicated)
			require.ErrorContains(t, err, fail.why)
			require.Equal(t, 1, b.relay.Executed(runsOf(protocol.AcquireScript)), "the script was answered")
			b.awaitFree(b.key)
		})
	}
}

// Neither reply comes: the attempt is in doubt, and repeated under the same name.
func TestAPairWithoutAnAnswerIsSentAgain(t *testing.T) {
	b := newReplicaBench(t, 1, WithReplicas(1, 4*time.Second))
	b.relay.DropReply(runsOf(protocol.AcquireScript))
	id := b.locks.ID()
	m := b.locks.Mutex(b.key)
	requireLocked(t, m)
	require.NotEqual(t, id, b.locks.ID())
	requireOnRedis(t, b.master, b.key, fmt.Sprintf("%s:%s", id, m.owner()), 1)
	requireUnlocked(t, m)
	b.awaitFree(b.key)
}

// A master that was frozen executes what it was sent meanwhile when somebody else is master.
func TestAMasterThatWasReplacedGrantsNothing(t *testing.T) {
	b := newReplicaBench(t, 1, WithReplicas(1, 500*time.Millisecond))
	m, other := b.locks.Mutex(b.key), newActor(t)
	b.locked(m)
	requireUnlocked(t, m) // connections are there
	b.relay.ResetLog()
	require.NoError(t, b.Master.Pause())
	late := other.lock(t.Context(), m)
	eventually(t, "sent", func() bool { return b.relay.Count(runsOf(protocol.AcquireScript)) > 0 })
	require.NoError(t, b.Promote(t.Context(), b.Replicas[0]))
	rival := locksOn(t, b.Replicas[0].Client(t)).Mutex(b.key)
	requireLocked(t, rival)
	require.NoError(t, b.Master.Resume())
	require.ErrorIs(t, outcomeOf(t, late), ErrNotReplicated)
	require.Equal(t, 1, rival.HoldCount())

	require.ErrorIs(t, m.Lock(t.Context()), ErrNotReplicated, "nor does it later")
}

// However long the application keeps all of its connections.
func TestALockWithReplicasTakesNoConnectionOfTheApplications(t *testing.T) {
	b := newReplicaBench(t, 1)
	rdb := redis.NewClient(&redis.Options{Addr: b.relay.Addr, PoolSize: 2, PoolTimeout: 10 * time.Second})
	t.Cleanup(func() { _ = rdb.Close() })
	pops := make(chan error, 2)
	for range cap(pops) {
		go func() { pops <- rdb.BLPop(t.Context(), time.Minute, b.key+":work").Err() }()
	}
	eventually(t, "used up", func() bool { return b.relay.Count(redistest.Named("BLPOP")) == cap(pops) })
	locks := locksOn(t, rdb, WithReplicas(1, 300*time.Millisecond), WithTTL(2*time.Second), WithHooks(b.events.hooks()))
	m := locks.Mutex(b.key)
	b.locked(m)
	hold := m.Context(t.Context())
	b.awaitEvent("renewed", 5) // more than a lease
	require.NoError(t, hold.Err())
	requireUnlocked(t, m)
	b.locked(m)
	requireUnlocked(t, m)
	require.Zero(t, rdb.PoolStats().WaitCount, "nothing queued for a connection")

	require.NoError(t, locks.Close())
	for range cap(pops) {
		require.NoError(t, b.master.LPush(t.Context(), b.key+":work", "done").Err())
	}
	for range cap(pops) {
		require.NoError(t, receives(t, pops))
	}
	require.NoError(t, rdb.Close())
	eventually(t, "no connection is left", func() bool { return b.relay.Conns() == 0 })
}

// What waits for replicas that do not answer is bounded, and nothing is left behind by what had
// to wait for its turn.
func TestHowManyWaitForReplicasAtATimeIsBounded(t *testing.T) {
	b := newReplicaBench(t, 1)
	rdb := redis.NewClient(&redis.Options{Addr: b.relay.Addr, PoolSize: 2, PoolTimeout: 10 * time.Second})
	t.Cleanup(func() { _ = rdb.Close() })
	locks := locksOn(t, rdb, WithReplicas(1, 5*time.Second))
	require.NoError(t, rdb.Ping(t.Context()).Err())
	b.pause()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var first []<-chan error
	var keys []string
	for i := range 8 { // with so small a pool
		keys = append(keys, fmt.Sprintf("%s-%d", b.key, i))
		first = append(first, newActor(t).lock(ctx, locks.Mutex(keys[i])))
	}
	eventually(t, "they wait", func() bool { return b.relay.Count(waits) == len(first) })
	id := locks.ID()
	brief, end := context.WithCancel(t.Context())
	defer end()
	last := newActor(t).lock(brief, locks.Mutex(b.key))
	goesOn(t, last)
	require.EqualValues(t, 1, rdb.PoolStats().TotalConns, "none of the application's")
	end()
	require.ErrorIs(t, outcomeOf(t, last), context.Canceled)
	require.Equal(t, id, locks.ID(), "what was not sent is in no doubt")
	require.Equal(t, len(first), b.relay.Count(waits))
	cancel()
	for _, result := range first {
		require.ErrorIs(t, outcomeOf(t, result), context.Canceled)
	}
	b.awaitFree(append(keys, b.key)...)
}

func TestReplicasBehindSentinel(t *testing.T) {
	t.Parallel()
	set := redistest.NewSentinel(t)
	m := locksOn(t, set.Client(t), WithReplicas(2, 4*time.Second)).Mutex(redistest.Key(t))
	requireLocked(t, m)
	for _, replica := range set.Nodes[1:] {
		require.Len(t, onRedis(t, replica.Client(t), m.Name()), 1, "it was confirmed")
	}
	requireUnlocked(t, m)
}

func TestReplicasOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	ctx := t.Context()
	rdb := cluster.Client(t)
	c := locksOn(t, rdb, WithReplicas(1, 4*time.Second))
	confirmed := func(m *Mutex) {
		t.Helper()
		replica, err := cluster.Replica(ctx, m.Name())
		require.NoError(t, err)
		direct := replica.Client(t)
		require.NoError(t, direct.ReadOnly(ctx).Err())
		require.Positive(t, keysIn(t, direct, m.Name()))
	}

	t.Run("from the first command on", func(t *testing.T) {
		m := c.Mutex(redistest.Key(t))
		requireLocked(t, m)
		confirmed(m)
		requireUnlocked(t, m)
	})
	t.Run("after MOVED", func(t *testing.T) {
		m := c.Mutex(redistest.Key(t))
		requireLocked(t, m)
		requireUnlocked(t, m)
		old, err := cluster.Master(ctx, m.Name())
		require.NoError(t, err)
		_, err = cluster.Failover(ctx, m.Name())
		require.NoError(t, err)
		require.NoError(t, cluster.AwaitReady(ctx))
		id := c.ID()
		requireLocked(t, m)
		confirmed(m)
		require.Equal(t, id, c.ID(), "nothing was in doubt")
		stats, err := old.Client(t).Info(ctx, "errorstats").Result()
		require.NoError(t, err)
		require.Contains(t, stats, "errorstat_MOVED", "the client knew before")
		requireUnlocked(t, m)
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
		requireLocked(t, m)
		require.EqualValues(t, 1, keysIn(t, target, m.Name()), "it went to the target")
		require.Zero(t, keysIn(t, source, m.Name()))
		requireUnlocked(t, m)
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
