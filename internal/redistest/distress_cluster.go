package redistest

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// ClusterDistresses are the states of one slot of a Cluster. A lock has two names there, so that while the slot moves one
// of them can be on each node.
var ClusterDistresses = map[string]*Distress{
	"a slot of nobody": {
		Contains: "CLUSTERDOWN", Means: Transient, Refuses: RefusesScripts,
		Strike: func(p *Patient) { p.cluster(p.Source, "delslots", p.slot()) },
		Heal:   func(p *Patient) { p.cluster(p.Source, "addslots", p.slot()) },
	},
	"a slot that moves": {
		Contains: "TRYAGAIN", Means: Transient, Refuses: RefusesScripts, Passes: true,
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
	for _, node := range cluster.Nodes { // an earlier test may have promoted a replica
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

// slot is the slot of all names.
func (p *Patient) slot() int { return int(p.Rdb.ClusterKeySlot(p.tb.Context(), p.Names("")[0]).Val()) }

// cluster runs a CLUSTER command on a node.
func (p *Patient) cluster(on *redis.Client, args ...any) string {
	p.tb.Helper()
	reply, err := on.Do(p.tb.Context(), append([]any{"cluster"}, args...)...).Text()
	must(p.tb, err, args...)
	return reply
}

// BeginMove begins the move of the slot from Source to Target.
func (p *Patient) BeginMove() {
	p.tb.Helper()
	p.cluster(p.Target, "setslot", p.slot(), "importing", p.cluster(p.Source, "myid"))
	p.cluster(p.Source, "setslot", p.slot(), "migrating", p.cluster(p.Target, "myid"))
}

// moving is held while a node sends keys to another one. The sender serves no other command until the receiver has the
// keys, so two nodes that send keys to each other would block until both give up. It is also held from when a node gets a
// slot until all nodes have the new map: if two nodes take slots from each other at once, each may list the other as the
// owner.
var moving sync.Mutex

// Move moves the existing keys of the slot.
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

// EndMove moves the rest of the slot, and makes Target serve it.
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

// A Misrouting is a request to a node of a Cluster by a client of that node only.
type Misrouting struct {
	Contains string
	Means    Meaning
	Ask      func(p *Patient) (*redis.Client, []string) // returns the node, and the names of the lock
	After    func(p *Patient)
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
