package doctor

import (
	"context"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/cmd/relock/internal/target"
)

// facts are what INFO says.
type facts map[string]string

func (f facts) number(name string) int64 {
	n, _ := strconv.ParseInt(f[name], 10, 64)
	return n
}

// info looks at what INFO says. CONFIG would say more, but managed services refuse it.
func (e *Exam) info(ctx context.Context, n *target.Node, rdb *redis.Client) {
	text, err := rdb.Info(ctx).Result()
	if err != nil {
		e.note(Warning, "info", remedy(err, "allow +info, or connect as another user"), "cannot be read: %v", err)
		return
	}
	f := make(facts)
	for _, line := range strings.Split(text, "\r\n") {
		if name, value, found := strings.Cut(line, ":"); found {
			f[name] = value
		}
	}
	e.version(f)
	e.role(f, n)
	if f["redis_mode"] == "sentinel" {
		return // it has no locks to lose
	}
	e.memory(f)
	e.persistence(f)
	e.replicas(f, n)
}

// version looks at which server it is.
func (e *Exam) version(f facts) {
	major, _, _ := strings.Cut(f["redis_version"], ".")
	number, _ := strconv.Atoi(major)
	switch {
	case f["garnet_version"] != "":
		e.note(Broken, "version", "use Redis or Valkey", "Garnet %s, which by default does not run scripts atomically", f["garnet_version"])
	case f["dragonfly_version"] != "":
		e.note(Warning, "version", "", "Dragonfly %s: untested", f["dragonfly_version"])
	case f["valkey_version"] != "":
		e.note(Fine, "version", "", "Valkey %s", f["valkey_version"])
	case number < 5:
		e.note(Broken, "version", "use Redis 5 or later", "Redis %s, which rejects a write after TIME in a script", f["redis_version"])
	default:
		e.note(Fine, "version", "", "Redis %s", f["redis_version"])
	}
}

// role looks at whether it takes writes.
func (e *Exam) role(f facts, n *target.Node) {
	switch {
	case f["redis_mode"] == "sentinel":
		e.note(Broken, "role", "use redis-sentinel://HOST/MASTER", "a Sentinel, which cannot hold locks")
	case f["role"] == "slave":
		e.note(Broken, "role", "use the address of the master, or of its Sentinels", "a replica of %s:%s: locks are held on masters", f["master_host"], f["master_port"])
	case f["cluster_enabled"] == "1" && n.Kind == target.Server:
		e.note(Broken, "role", "use redis-cluster://", "a node of a Cluster, which serves only some names")
	case f["loading"] == "1":
		e.note(Broken, "role", "try again later", "the server is still loading its data")
	default:
		e.note(Fine, "role", "", "master")
	}
}

// memory looks at whether locks can be evicted, or refused.
func (e *Exam) memory(f facts) {
	policy, most, used, evicted := f["maxmemory_policy"], f.number("maxmemory"), f.number("used_memory"), f.number("evicted_keys")
	const advice = "set maxmemory-policy noeviction: if a lock is evicted, two owners can hold it"
	switch {
	case policy == "":
		e.note(Warning, "memory", "check that maxmemory-policy is noeviction", "INFO does not contain the eviction policy")
	case policy == "noeviction":
		e.note(Fine, "memory", "", "nothing is evicted")
	case most > 0 && evicted > 0:
		e.note(Broken, "memory", advice, "maxmemory-policy %s: Redis has evicted %d keys, and may evict locks", policy, evicted)
	case most > 0:
		e.note(Warning, "memory", advice, "maxmemory-policy %s: a full Redis may evict locks", policy)
	default:
		e.note(Warning, "memory", advice, "maxmemory-policy %s: Redis would evict locks if maxmemory were set", policy)
	}
	if most > 0 && used > most/10*9 {
		e.note(Warning, "memory", "raise maxmemory, or remove keys: a full Redis rejects new locks", "%d%% of maxmemory is used", used*100/most)
	}
}

// persistence looks at what a crash forgets.
func (e *Exam) persistence(f facts) {
	aof := f["aof_enabled"] == "1"
	switch {
	case aof && f["aof_last_write_status"] == "err":
		e.note(Broken, "persistence", "look at the server's disk", "the append-only file cannot be written, so Redis rejects writes")
	case f["rdb_last_bgsave_status"] == "err":
		e.note(Warning, "persistence", "look at the server's disk", "the last save failed, so Redis may reject writes (stop-writes-on-bgsave-error)")
	case e.Target.Quorum() && !aof:
		e.note(Warning, "persistence", "set appendonly yes and appendfsync always, or restart a crashed node only after the longest TTL",
			"a node that starts again has forgotten its votes, and two can hold a lock")
	case e.Target.Quorum():
		e.note(Fine, "persistence", "", "appendonly; check that appendfsync is always")
	case aof:
		e.note(Fine, "persistence", "", "appendonly")
	default:
		e.note(Fine, "persistence", "", "a restart loses some or all locks: holders notice at their next renewal")
	}
}

// replicas looks at who would take over.
func (e *Exam) replicas(f facts, n *target.Node) {
	count := f.number("connected_slaves")
	behind := 0
	for i := range count {
		if about := f["slave"+strconv.FormatInt(i, 10)]; !strings.Contains(about, "state=online") {
			behind++
		}
	}
	switch {
	case e.Target.Quorum() && count > 0:
		e.note(Warning, "replicas", "run quorum nodes without replicas", "%d: a failover could lose votes", count)
	case e.Target.Quorum():
		e.note(Fine, "replicas", "", "none, as a quorum requires")
	case n.Kind != target.Server && count == 0:
		e.note(Warning, "replicas", "start one", "none: nothing can take over")
	case behind > 0:
		e.note(Warning, "replicas", "", "%d of %d lag behind", behind, count)
	case count > 0:
		e.note(Fine, "replicas", "", "%d, up to date; a failover can still lose the last writes (WithReplicas in Go)", count)
	default:
		e.note(Fine, "replicas", "", "none")
	}
}
