package deployment

import (
	"context"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/redistest"
)

// Kind is a kind of deployment of Redis.
type Kind string

// The kinds. -scenario list shows their values.
const (
	Standalone   Kind = "standalone" // one server that writes nothing to disk
	Persistent   Kind = "aof"        // one server that writes each command to a file before it answers
	Skewed       Kind = "clock"      // one server whose clock can be set
	Cluster      Kind = "cluster"    // three masters with a replica each
	Sentinel     Kind = "sentinel"   // a master with two replicas and three sentinels
	Quorum       Kind = "quorum"     // five independent masters that write nothing to disk
	SkewedQuorum Kind = "clocks"     // a quorum whose clocks are far apart
)

// Votes reports whether locks on this kind are locks on a quorum.
func (k Kind) Votes() bool { return k == Quorum || k == SkewedQuorum }

// Dialer opens a connection to a server; nil is go-redis' own.
type Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// Connect returns a client of a deployment of kind k, which has the given entrances: for a
// quorum, a client of the first. A poolSize of 0 is go-redis' default.
func Connect(k Kind, entrances []string, dial Dialer, poolSize int) redis.UniversalClient {
	switch k {
	case Cluster:
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: entrances, Dialer: dial, PoolSize: poolSize})
	case Sentinel:
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: redistest.MasterName, SentinelAddrs: entrances, Dialer: dial, PoolSize: poolSize,
		})
	default:
		return redis.NewClient(&redis.Options{Addr: entrances[0], Dialer: dial, PoolSize: poolSize})
	}
}
