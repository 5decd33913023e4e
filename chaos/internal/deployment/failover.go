package deployment

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/redistest"
)

// Master returns the master of the key. In a quorum every server is one, and Master returns the first.
func (d *Deployment) Master(ctx context.Context, key string) (*redistest.Server, error) {
	switch {
	case d.cluster != nil:
		return d.cluster.Master(ctx, key)
	case d.sentinel != nil:
		return d.sentinel.Master(ctx)
	}
	return d.Servers[0], nil
}

// Replicas are the servers that replicate the master of key.
func (d *Deployment) Replicas(ctx context.Context, key string, master *redistest.Server) ([]*redistest.Server, error) {
	if d.cluster != nil {
		s, err := d.cluster.Replica(ctx, key)
		return []*redistest.Server{s}, err
	}
	var replicas []*redistest.Server
	for _, s := range d.Servers {
		if s != master {
			replicas = append(replicas, s)
		}
	}
	return replicas, nil
}

// FailoverIn returns how long to wait before the next Failover of a Cluster: within two node timeouts, masters do not vote
// again for a replica of the same master.
func (d *Deployment) FailoverIn() time.Duration {
	return time.Until(d.failedOver.Add(2500 * time.Millisecond))
}

// Failover promotes a replica of the master of key, which is alive, and returns the replica. In a Cluster the two agree on
// it, and nothing is lost. Sentinels do not ask the master: until it is notified, it accepts writes, which are lost.
func (d *Deployment) Failover(ctx context.Context, key string) (*redistest.Server, error) {
	if d.sentinel != nil {
		return d.sentinel.Failover(ctx)
	}
	master, err := d.cluster.Failover(ctx, key)
	if err == nil {
		d.failedOver = time.Now()
	}
	return master, err
}

// AwaitSuccessor waits until a server other than old, which is down, is the master of key.
func (d *Deployment) AwaitSuccessor(ctx context.Context, key string, old *redistest.Server) (*redistest.Server, error) {
	if d.sentinel != nil {
		return d.sentinel.AwaitFailover(ctx, old)
	}
	replica, err := d.cluster.Replica(ctx, key)
	if err != nil {
		return nil, err
	}
	return replica, d.AwaitMaster(ctx, key, replica)
}

// AwaitMaster waits until master is the master of the key according to all nodes of a Cluster.
func (d *Deployment) AwaitMaster(ctx context.Context, key string, master *redistest.Server) error {
	return d.cluster.AwaitMaster(ctx, key, master)
}
