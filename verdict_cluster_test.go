package relock

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// clusterDistresses are those of one slot of a Cluster. The names of a lock are two, so that
// a slot on the move can have one here and one there.
var clusterDistresses = map[string]*distress{
	"a slot of nobody": {
		says: "CLUSTERDOWN", want: redisexec.Transient, refuses: everything,
		strike: func(p *patient) { p.cluster(p.source, "delslots", p.slot()) },
		heal:   func(p *patient) { p.cluster(p.source, "addslots", p.slot()) },
	},
	"a slot that moves": {
		says: "TRYAGAIN", want: redisexec.Transient, refuses: everything, passes: true,
		strike: func(p *patient) {
			p.beginMove()
			p.move(p.names("kept")[1], p.names("ended")[1], p.names("queued")[1])
		},
		heal: (*patient).endMove,
	},
}

// ward is a Cluster, one slot of which is a patient.
func ward(t *testing.T, cluster *redistest.Cluster) *patient {
	t.Helper()
	tag := "{" + redistest.Key(t) + "}"
	p := &patient{
		t: t, rdb: cluster.Client(t), admin: cluster.Client(t),
		names: func(purpose string) []string { return []string{tag + purpose + ":a", tag + purpose + ":b"} },
	}
	master, err := cluster.Master(t.Context(), tag)
	require.NoError(t, err)
	for _, node := range cluster.Nodes { // a test before may have had a replica promoted
		rdb := node.Client(t)
		switch {
		case node == master:
			p.source = rdb
		case strings.Contains(rdb.Info(t.Context(), "replication").Val(), "role:master"):
			p.target = rdb
		}
	}
	require.NotNil(t, p.source)
	require.NotNil(t, p.target)
	return p
}

// slot is that of all names.
func (p *patient) slot() int { return int(p.rdb.ClusterKeySlot(p.t.Context(), p.names("")[0]).Val()) }

// cluster runs a CLUSTER command on a node.
func (p *patient) cluster(on *redis.Client, args ...any) string {
	p.t.Helper()
	reply, err := on.Do(p.t.Context(), append([]any{"cluster"}, args...)...).Text()
	require.NoError(p.t, err, args)
	return reply
}

func (p *patient) beginMove() {
	p.t.Helper()
	p.cluster(p.target, "setslot", p.slot(), "importing", p.cluster(p.source, "myid"))
	p.cluster(p.source, "setslot", p.slot(), "migrating", p.cluster(p.target, "myid"))
}

// move moves those keys of the slot that exist.
func (p *patient) move(keys ...string) {
	p.t.Helper()
	host, port, err := net.SplitHostPort(p.target.Options().Addr)
	require.NoError(p.t, err)
	for _, key := range keys {
		require.NoError(p.t, p.source.Migrate(p.t.Context(), host, port, key, 0, faultPatience).Err())
	}
}

func (p *patient) endMove() {
	p.t.Helper()
	keys, err := p.source.ClusterGetKeysInSlot(p.t.Context(), p.slot(), 1000).Result()
	require.NoError(p.t, err)
	p.move(keys...)
	to := p.cluster(p.target, "myid")
	p.cluster(p.target, "setslot", p.slot(), "node", to)
	p.cluster(p.source, "setslot", p.slot(), "node", to)
}

func TestAClusterInDistress(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	for name, d := range clusterDistresses {
		t.Run(name, func(t *testing.T) { newCourse(t, d, ward(t, cluster)).run() })
	}
	t.Run("a lock follows its slot while that moves", func(t *testing.T) {
		testFollowing(t, ward(t, cluster))
	})
	for name, c := range misrouted {
		t.Run(name, func(t *testing.T) { c.run(t, ward(t, cluster)) })
	}
}

// testFollowing locks, renews, enters again and unlocks while the key is here, there and on
// the way.
func testFollowing(t *testing.T, p *patient) {
	t.Helper()
	renewed := make(chan Event, 4096)
	locks := locksOn(t, p.rdb)
	m := locks.Mutex(p.names("moved")[0], WithRenewInterval(20*time.Millisecond),
		WithHooks(Hooks{Renewed: func(e Event) { renewed <- e }}))
	other := locks.Mutex(p.names("other")[0])
	id := locks.ID()
	use := func() {
		requireLocked(t, m)
		for len(renewed) > 0 {
			<-renewed
		}
		receives(t, renewed)
		requireLocked(t, other)
		requireUnlocked(t, other)
	}
	use()
	hold := m.Context(t.Context())
	for _, step := range []func(){p.beginMove, func() { p.move(m.Name()) }, p.endMove} {
		step()
		use()
	}
	require.NoError(t, hold.Err())
	requireOnRedis(t, p.admin, m.Name(), fieldOf(locks), 4)
	for range 3 {
		requireUnlocked(t, m)
	}
	require.Equal(t, id, locks.ID(), "nothing was in doubt")
	requireUnlocked(t, m) // may cancel a renewal, and leave that in doubt
	requireFree(t, p.admin, m.Name())
	requireFree(t, p.admin, other.Name())
}

// misrouting is a request to a node of a Cluster by a client that knows this node only.
type misrouting struct {
	says  string
	want  redisexec.Verdict
	ask   func(p *patient) (*redis.Client, []string) // where for the lock of which names
	after func(p *patient)
}

var misrouted = map[string]misrouting{
	"a slot of another node": {"MOVED", redisexec.Refused, func(p *patient) (*redis.Client, []string) {
		return p.target, p.names("free")[:1]
	}, func(*patient) {}},
	"a key that has moved ahead of its slot": {"ASK", redisexec.Refused, func(p *patient) (*redis.Client, []string) {
		p.beginMove()
		return p.source, p.names("free")[:1]
	}, (*patient).endMove},
	"keys of two slots": {"CROSSSLOT", redisexec.Forbidden, func(p *patient) (*redis.Client, []string) {
		return p.source, []string{p.names("free")[0], "elsewhere"}
	}, func(*patient) {}},
}

func (c *misrouting) run(t *testing.T, p *patient) {
	t.Helper()
	rdb, names := c.ask(p)
	locks := locksOn(t, rdb)
	m, id := locks.MultiMutex(names, WithFencing()), locks.ID()
	_, out := plainOn(t, rdb).Acquire(t.Context(), once, m.target, me, &m.settings.Terms)
	require.ErrorContains(t, out.Err, c.says)
	require.Equal(t, c.want, redisexec.Judge(out.Err))
	require.False(t, out.Ambiguous)
	_, err := m.TryLock(t.Context())
	for _, err := range []error{err, m.Lock(t.Context())} {
		require.ErrorContains(t, err, c.says)
		require.ErrorContains(t, err, m.Name())
	}
	require.Equal(t, id, locks.ID(), "nothing was in doubt")
	c.after(p)
	for _, key := range append(m.target.Keys, m.target.Counters...) {
		requireFree(t, p.admin, key)
	}
	if c.want != redisexec.Forbidden {
		held, err := locksOn(t, p.rdb).MultiMutex(names).TryLock(context.Background())
		require.NoError(t, err)
		require.True(t, held, "a client that knows the Cluster gets it")
	}
}
