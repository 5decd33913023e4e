package redistest

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// ClusterDistresses are those of one slot of a Cluster. The names of a lock are two, so that
// a slot on the move can have one here and one there.
var ClusterDistresses = map[string]*Distress{
	"a slot of nobody": {
		Says: "CLUSTERDOWN", Means: Transient, Refuses: RefusesScripts,
		Strike: func(p *Patient) { p.cluster(p.Source, "delslots", p.slot()) },
		Heal:   func(p *Patient) { p.cluster(p.Source, "addslots", p.slot()) },
	},
	"a slot that moves": {
		Says: "TRYAGAIN", Means: Transient, Refuses: RefusesScripts, Passes: true,
		Strike: func(p *Patient) {
			p.BeginMove()
			p.Move(p.Names("kept")[1], p.Names("ended")[1], p.Names("queued")[1])
		},
		Heal: (*Patient).EndMove,
	},
}

// NewWard returns a slot of a Cluster as a patient.
func NewWard(tb testing.TB, cluster *Cluster) *Patient {
	tb.Helper()
	tag := "{" + Key(tb) + "}"
	p := &Patient{
		tb: tb, nodes: cluster, Rdb: cluster.Client(tb), Admin: cluster.Client(tb),
		Names: func(purpose string) []string { return []string{tag + purpose + ":a", tag + purpose + ":b"} },
	}
	master, err := cluster.Master(tb.Context(), tag)
	must(tb, err)
	for _, node := range cluster.Nodes { // a test before may have had a replica promoted
		rdb := node.Client(tb)
		switch {
		case node == master:
			p.Source = rdb
		case strings.Contains(rdb.Info(tb.Context(), "replication").Val(), "role:master"):
			p.Target = rdb
		}
	}
	if p.Source == nil || p.Target == nil {
		tb.Fatal("not two masters")
	}
	return p
}

// slot is that of all names.
func (p *Patient) slot() int { return int(p.Rdb.ClusterKeySlot(p.tb.Context(), p.Names("")[0]).Val()) }

// cluster runs a CLUSTER command on a node.
func (p *Patient) cluster(on *redis.Client, args ...any) string {
	p.tb.Helper()
	reply, err := on.Do(p.tb.Context(), append([]any{"cluster"}, args...)...).Text()
	must(p.tb, err, args...)
	return reply
}

// BeginMove has the slot on its way from Source to Target.
func (p *Patient) BeginMove() {
	p.tb.Helper()
	p.cluster(p.Target, "setslot", p.slot(), "importing", p.cluster(p.Source, "myid"))
	p.cluster(p.Source, "setslot", p.slot(), "migrating", p.cluster(p.Target, "myid"))
}

// moving is held while a node sends keys to another one: it serves nobody until that has taken them, and
// two that send each other some would stand still until both give up. It is held, too, from when a node takes a
// slot until all know of it: of two that take slots from each other at once, each may think that the other has one.
var moving sync.Mutex

// Move moves those keys of the slot that exist.
func (p *Patient) Move(keys ...string) {
	p.tb.Helper()
	moving.Lock()
	defer moving.Unlock()
	host, port, err := net.SplitHostPort(p.Target.Options().Addr)
	must(p.tb, err)
	for _, key := range keys {
		must(p.tb, p.Source.Migrate(p.tb.Context(), host, port, key, 0, SoonEnough).Err())
	}
}

// EndMove moves the rest of the slot, and has Target serve it.
func (p *Patient) EndMove() {
	p.tb.Helper()
	keys, err := p.Source.ClusterGetKeysInSlot(p.tb.Context(), p.slot(), 1000).Result()
	must(p.tb, err)
	p.Move(keys...)
	moving.Lock()
	defer moving.Unlock()
	to := p.cluster(p.Target, "myid")
	p.cluster(p.Target, "setslot", p.slot(), "node", to)
	p.cluster(p.Source, "setslot", p.slot(), "node", to)
	Eventually(p.tb, "all nodes have the same map", func() bool { return p.nodes.haveOneMap(p.tb.Context()) })
}

// A Misrouting is a request to a node of a Cluster by a client that knows this node only.
type Misrouting struct {
	Says  string
	Means Meaning
	Ask   func(p *Patient) (*redis.Client, []string) // where for the lock of which names
	After func(p *Patient)
}

// Misroutings by name.
var Misroutings = map[string]Misrouting{
	"a slot of another node": {"MOVED", Refused, func(p *Patient) (*redis.Client, []string) {
		return p.Target, p.Names("free")[:1]
	}, func(*Patient) {}},
	"a key that has moved ahead of its slot": {"ASK", Refused, func(p *Patient) (*redis.Client, []string) {
		p.BeginMove()
		return p.Source, p.Names("free")[:1]
	}, (*Patient).EndMove},
	"keys of two slots": {"CROSSSLOT", Forbidden, func(p *Patient) (*redis.Client, []string) {
		return p.Source, []string{p.Names("free")[0], "elsewhere"}
	}, func(*Patient) {}},
}
