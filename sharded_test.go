package relock_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// onlyMessages makes waiters sleep longer than tests last, if no message comes: so does the
// lease of the lock that they wait for.
var onlyMessages = []relock.ClientOption{relock.WithShardedPubSub(), relock.WithTTL(2 * time.Minute), relock.WithSafetyPoll(time.Minute)}

// sharded is a Cluster with one client that holds locks, and one that waits for them.
type sharded struct {
	t       *testing.T
	cluster *redistest.Cluster
	holder  *relock.Client
	waiter  *relock.Client
	holds   *locktest.Actor
	waits   *locktest.Actor
}

func newSharded(t *testing.T, cluster *redistest.Cluster) *sharded {
	t.Helper()
	return &sharded{
		t: t, cluster: cluster,
		holder: relock.LocksOn(t, cluster.Client(t), onlyMessages...), holds: locktest.NewActor(t),
		waiter: relock.LocksOn(t, cluster.Client(t), onlyMessages...), waits: locktest.NewActor(t),
	}
}

// contest is a lock that is held by one client and waited for by the other.
type contest struct {
	*sharded
	name   string
	passed <-chan error
}

// contend returns when a message about name would reach the waiter.
func (s *sharded) contend(name string) *contest {
	s.t.Helper()
	s.holds.Locks(s.t, s.holder.Mutex(name))
	c := &contest{sharded: s, name: name, passed: s.waits.Lock(s.t.Context(), s.waiter.Mutex(name))}
	relock.AwaitListening(s.t, s.waiter, name)
	return c
}

// pass requires that the release of the lock wakes the waiter, and that no lock is left.
func (c *contest) pass() {
	c.t.Helper()
	c.holds.Unlocks(c.t, c.holder.Mutex(c.name))
	released := time.Now()
	require.NoError(c.t, locktest.OutcomeOf(c.t, c.passed))
	c.t.Logf("%s was passed on in %v", c.name, time.Since(released))
	c.waits.Unlocks(c.t, c.waiter.Mutex(c.name))
}

// shardListeners is the number of connections that listen for sharded messages about name
// on a node.
func shardListeners(t *testing.T, node *redistest.Server, name string) int {
	t.Helper()
	channel := locktest.ChannelOf(name)
	n, err := node.Client(t).PubSubShardNumSub(t.Context(), channel).Result()
	require.NoError(t, err)
	return int(n[channel])
}

func (s *sharded) masterOf(name string) *redistest.Server {
	s.t.Helper()
	master, err := s.cluster.Master(s.t.Context(), name)
	require.NoError(s.t, err)
	return master
}

// requireNoListeners requires that the nodes are rid of all pub/sub connections in time.
func (s *sharded) requireNoListeners() {
	s.t.Helper()
	for _, node := range s.cluster.Nodes {
		rdb := node.Client(s.t)
		redistest.Eventually(s.t, "no pub/sub connection", func() bool {
			list, err := rdb.Do(s.t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
			return err == nil && list == "" && len(rdb.PubSubShardChannels(s.t.Context(), "*").Val()) == 0
		})
	}
}

func TestShardedPubSub_WakesWaiters(t *testing.T) {
	t.Parallel()
	redistest.RequireVersion(t, 7)
	s := newSharded(t, redistest.NewCluster(t))
	t.Run("wakes the waiters of names in several slots at once", s.wakesManySlots)
	t.Run("wakes the waiters of several names together", s.wakesMultiMutex)
	t.Run("is what Java publishes", s.receivesJavas)
	t.Run("follows a failover in agreement", s.followsFailover)
	t.Run("follows a slot to another master", s.followsMigration)
	t.Run("excludes those who use the other kind", s.excludesUnsharded)
	t.Run("follows a promotion after a crash", s.followsCrash)
}

// within returns s for a subtest.
func (s *sharded) within(t *testing.T) *sharded {
	t.Helper()
	c := *s
	c.t, c.holds, c.waits = t, locktest.NewActor(t), locktest.NewActor(t)
	return &c
}

func (s *sharded) wakesManySlots(t *testing.T) {
	s = s.within(t)
	masters := map[*redistest.Server]int{}
	var contests []*contest
	for i := range 12 {
		c := *s
		c.holds, c.waits = locktest.NewActor(t), locktest.NewActor(t)
		name := fmt.Sprintf("%s-%d", redistest.Key(t), i)
		contests = append(contests, c.contend(name))
		master := s.masterOf(name)
		masters[master]++
		require.Equal(t, 1, shardListeners(t, master, name))
		require.Zero(t, locktest.Listeners(t, master.Client(t), name))
	}
	for master := range masters {
		list, err := master.Client(t).Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(list, "\n"), "one connection to a master, whatever the slots")
	}
	for _, c := range contests {
		c.pass()
	}
	s.requireNoListeners()
}

func (s *sharded) wakesMultiMutex(t *testing.T) {
	s = s.within(t)
	tag := "{" + redistest.Key(t) + "}"
	names := []string{tag + "1", tag + "2"}
	for _, held := range names {
		s.holds.Locks(t, s.holder.Mutex(held))
		both := s.waiter.MultiMutex(names)
		passed := s.waits.Lock(t.Context(), both)
		relock.AwaitListening(t, s.waiter, held)
		redistest.Eventually(t, "listening to both", func() bool {
			return shardListeners(t, s.masterOf(held), names[0])+shardListeners(t, s.masterOf(held), names[1]) == 2
		})
		s.holds.Unlocks(t, s.holder.Mutex(held))
		require.NoError(t, locktest.OutcomeOf(t, passed))
		s.waits.Unlocks(t, both)
	}
}

// Redisson publishes on the same channel, by SPUBLISH on a Cluster of this version.
func (s *sharded) receivesJavas(t *testing.T) {
	s = s.within(t)
	name := redistest.Key(t)
	rdb := s.cluster.Client(t)
	require.NoError(t, rdb.HSet(t.Context(), name, "6a1c9d5e-0000-4000-8000-000000000000:1", 1).Err())
	require.NoError(t, rdb.PExpire(t.Context(), name, time.Minute).Err())
	passed := s.waits.Lock(t.Context(), s.waiter.Mutex(name))
	relock.AwaitListening(t, s.waiter, name)
	require.NoError(t, rdb.Del(t.Context(), name).Err())
	require.NoError(t, rdb.SPublish(t.Context(), "redisson_lock__channel:{"+name+"}", "0").Err())
	require.NoError(t, locktest.OutcomeOf(t, passed))
	s.waits.Unlocks(t, s.waiter.Mutex(name))
}

func (s *sharded) followsFailover(t *testing.T) {
	s = s.within(t)
	c := s.contend(redistest.Key(t))
	fresh, err := s.cluster.Failover(t.Context(), c.name)
	require.NoError(t, err)
	redistest.Eventually(t, "listening on the new master", func() bool { return shardListeners(t, fresh, c.name) == 1 })
	relock.AwaitListening(t, s.waiter, c.name)
	c.pass()
}

func (s *sharded) followsMigration(t *testing.T) {
	s = s.within(t)
	c := s.contend(redistest.Key(t))
	from, to := s.masterOf(c.name), s.otherMaster(c.name)
	migrate(t, s.cluster, c.name, from, to)
	redistest.Eventually(t, "listening on the slot's new master", func() bool { return shardListeners(t, to, c.name) == 1 })
	relock.AwaitListening(t, s.waiter, c.name)
	require.Zero(t, shardListeners(t, from, c.name))
	c.pass()
}

// otherMaster returns a master that does not serve name.
func (s *sharded) otherMaster(name string) *redistest.Server {
	s.t.Helper()
	for i := 0; ; i++ {
		if master := s.masterOf(fmt.Sprint(i)); master != s.masterOf(name) {
			return master
		}
	}
}

// migrate moves the slot of a key, and the key, while both masters are in use.
func migrate(t *testing.T, cluster *redistest.Cluster, key string, from, to *redistest.Server) {
	t.Helper()
	ctx := t.Context()
	source, sink := from.Client(t), to.Client(t)
	slot := source.ClusterKeySlot(ctx, key).Val()
	sourceID, sinkID := source.ClusterMyID(ctx).Val(), sink.ClusterMyID(ctx).Val()
	require.NoError(t, sink.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", sourceID).Err())
	require.NoError(t, source.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", sinkID).Err())
	host, port, err := net.SplitHostPort(to.Addr)
	require.NoError(t, err)
	for _, key := range source.ClusterGetKeysInSlot(ctx, int(slot), 100).Val() { // the keys of the line, too
		require.NoError(t, source.Migrate(ctx, host, port, key, 0, 5*time.Second).Err())
	}
	for _, node := range []*redis.Client{sink, source} {
		require.NoError(t, node.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", sinkID).Err())
	}
	require.NoError(t, cluster.AwaitMaster(ctx, key, to))
}

func (s *sharded) excludesUnsharded(t *testing.T) {
	s = s.within(t)
	unsharded := relock.LocksOn(t, s.cluster.Client(t), relock.WithTTL(2*time.Minute))
	name := redistest.Key(t)
	s.holds.Locks(t, unsharded.Mutex(name))
	m := s.waiter.Mutex(name, relock.WithSafetyPoll(100*time.Millisecond))
	require.False(t, s.waits.Tries(t, m))
	passed := s.waits.Lock(t.Context(), m)
	relock.AwaitListening(t, s.waiter, name)
	locktest.GoesOn(t, passed)
	s.holds.Unlocks(t, unsharded.Mutex(name))
	require.NoError(t, locktest.OutcomeOf(t, passed), "a poll finds out")
	require.False(t, s.holds.Tries(t, unsharded.Mutex(name)))
	s.waits.Unlocks(t, m)
}

func (s *sharded) followsCrash(t *testing.T) {
	s = s.within(t)
	c := s.contend(redistest.Key(t))
	master := s.masterOf(c.name)
	replica, err := s.cluster.Replica(t.Context(), c.name)
	require.NoError(t, err)
	there, here := master.Client(t), replica.Client(t)
	redistest.Eventually(t, "the lock on the replica", func() bool {
		return here.DBSize(t.Context()).Val() == there.DBSize(t.Context()).Val()
	})
	master.Kill()
	require.NoError(t, s.cluster.AwaitMaster(t.Context(), c.name, replica))
	redistest.Eventually(t, "listening on the promoted replica", func() bool { return shardListeners(t, replica, c.name) == 1 })
	relock.AwaitListening(t, s.waiter, c.name)
	c.pass()
}

// A connection that receives nothing any more is replaced when polls find out what messages should have
// reported, on a Cluster whose nodes are all behind relays.
func TestShardedPubSub_SilentConnectionOfAShardIsReplaced(t *testing.T) {
	t.Parallel()
	redistest.RequireVersion(t, 7)
	s := newSharded(t, redistest.NewCluster(t))
	relays := map[string]*redistest.Relay{}
	for _, node := range s.cluster.Nodes {
		relays[node.Addr] = redistest.NewRelay(t, node.Addr)
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: s.cluster.Addrs(),
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, relays[addr].Addr)
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	s.waiter = relock.LocksOn(t, rdb, onlyMessages...)

	tag := "{" + redistest.Key(t) + "}"
	sleeper := s.contend(tag + "sleeps")
	polled := *s
	polled.holds, polled.waits = locktest.NewActor(t), locktest.NewActor(t)
	m := s.waiter.Mutex(tag+"polls", relock.WithSafetyPoll(100*time.Millisecond))
	polled.holds.Locks(t, s.holder.Mutex(m.Name()))
	passed := polled.waits.Lock(t.Context(), m)
	relock.AwaitListening(t, s.waiter, m.Name())
	// Unsubscribed, the channel would test the connection too.
	defer s.waiter.Subscribe(m.Keys().Channels[0], func() {}).Close()

	relay := relays[s.masterOf(tag).Addr]
	subscriptions := relay.Count(redistest.Named("SSUBSCRIBE"))
	relay.BlackHoleCurrent()
	polled.holds.Unlocks(t, s.holder.Mutex(m.Name()))
	require.NoError(t, locktest.OutcomeOf(t, passed))
	polled.waits.Unlocks(t, m)
	redistest.Eventually(t, "subscribed again", func() bool { return relay.Count(redistest.Named("SSUBSCRIBE")) > subscriptions })
	relock.AwaitListening(t, s.waiter, sleeper.name)
	sleeper.pass()
}

// newLoneNode returns a Cluster of one node, and a client of a user that the rules allow.
func newLoneNode(t *testing.T, rules []any, args ...string) (admin *redis.Client, limited *redis.ClusterClient) {
	t.Helper()
	server := redistest.NewServer(t, append([]string{"--cluster-enabled", "yes"}, args...)...)
	admin = server.Client(t)
	require.NoError(t, admin.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	user := append([]any{"ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all"}, rules...)
	require.NoError(t, admin.Do(t.Context(), user...).Err())
	redistest.Eventually(t, "the Cluster to be ok", func() bool {
		return strings.Contains(admin.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
	})
	limited = redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{server.Addr}, Username: "limited", Password: "secret",
	})
	t.Cleanup(func() { _ = limited.Close() })
	return admin, limited
}

func TestShardedPubSub_WaitersPollWhereItIsUnavailable(t *testing.T) {
	t.Parallel()
	unknown := []string{"--rename-command", "SSUBSCRIBE", "", "--rename-command", "SPUBLISH", ""}
	if redistest.Version() < 7 {
		unknown = nil // as it is
	}
	for _, test := range []struct {
		name  string
		rules []any
		args  []string
		since int // the major version of Redis that takes these
	}{
		{name: "no permission to subscribe", rules: []any{"-ssubscribe"}, since: 7},
		{name: "no permission to publish", rules: []any{"-spublish"}, since: 7},
		{name: "no permission for the channel", rules: []any{"resetchannels"}},
		{name: "a server without it", args: unknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			redistest.RequireVersion(t, test.since)
			admin, limited := newLoneNode(t, test.rules, test.args...)
			opts := []relock.ClientOption{relock.WithShardedPubSub(), relock.WithTTL(time.Minute), relock.WithSafetyPoll(300 * time.Millisecond)}
			holder, waiter := relock.LocksOn(t, limited, opts...), relock.LocksOn(t, limited, opts...)
			holds, waits := locktest.NewActor(t), locktest.NewActor(t)
			name := redistest.Key(t)
			holds.Locks(t, holder.Mutex(name))
			passed := waits.Lock(t.Context(), waiter.Mutex(name))
			relock.AwaitWaiters(t, waiter, name, 1)
			locktest.GoesOn(t, passed)
			holds.Unlocks(t, holder.Mutex(name))
			require.NoError(t, locktest.OutcomeOf(t, passed))
			waits.Unlocks(t, waiter.Mutex(name))
			locktest.RequireFree(t, admin, name)
		})
	}
}

func TestShardedPubSub_WorksWithAClusterThatHasNone(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{redistest.Mini(t).Addr}})
	t.Cleanup(func() { _ = rdb.Close() })
	c, other := relock.LocksOn(t, rdb, relock.WithShardedPubSub()), relock.LocksOn(t, rdb, relock.WithShardedPubSub())
	m, name := locktest.NewActor(t), redistest.Key(t)
	m.Locks(t, c.Mutex(name))
	waits := locktest.NewActor(t)
	passed := waits.Lock(t.Context(), other.Mutex(name))
	locktest.GoesOn(t, passed)
	m.Unlocks(t, c.Mutex(name))
	require.NoError(t, locktest.OutcomeOf(t, passed))
	waits.Unlocks(t, other.Mutex(name))
}

func TestShardedPubSub_NeedsACluster(t *testing.T) {
	single := redistest.Mini(t).Client(t)
	_, err := relock.New(single, relock.WithShardedPubSub())
	require.ErrorIs(t, err, relock.ErrUnsupported)
	require.ErrorContains(t, err, "WithShardedPubSub needs a *redis.ClusterClient, not a *redis.Client")
}

func TestFairReplicas_GrantsStayWithinTheirShard(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	a, b := relock.LocksOn(t, cluster.Client(t), onlyMessages...), relock.LocksOn(t, cluster.Client(t), onlyMessages...)
	rdb, key, holder := cluster.Client(t), redistest.Key(t), locktest.NewActor(t)
	holder.Locks(t, a.FairMutex(key))
	var r locktest.Roll
	all := locktest.QueueUp(t, rdb, key, 8, &r, a.FairMutex(key), b.FairMutex(key))
	began := time.Now()
	holder.Unlocks(t, a.FairMutex(key))
	all.Wait()
	require.Less(t, time.Since(began), locktest.LongestPlace.EntryPoll(), "a waiter had to ask")
	require.Equal(t, locktest.UpTo(8), r.Names)
	locktest.RequireFairFree(t, rdb, key)
}
