package deployment

import (
	"context"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/redistest"
)

// Kind is a kind of deployment of Redis.
type Kind string

// The kinds that there are. Their values are shown by -scenario list.
const (
	Standalone   Kind = "standalone" // one server that keeps nothing on disk
	Persistent   Kind = "aof"        // one that has written every command to a file when it answers
	Skewed       Kind = "clock"      // one whose clock can be set
	Cluster      Kind = "cluster"    // three masters with a replica each
	Sentinel     Kind = "sentinel"   // a master with two replicas and three sentinels
	Quorum       Kind = "quorum"     // five independent masters that keep nothing on disk
	SkewedQuorum Kind = "clocks"     // such a quorum whose clocks are far apart
)

// Votes reports whether locks of the kind are those of a quorum.
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
