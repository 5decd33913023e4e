package deployment

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/redistest"
)

// Master returns the server that keeps the key. Of a quorum, all do: it is the first.
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

// FailoverIn is how long to wait before the next Failover of a Cluster: a master does not vote
// for the replica of the same one again within two node timeouts.
func (d *Deployment) FailoverIn() time.Duration {
	return time.Until(d.failedOver.Add(2500 * time.Millisecond))
}

// Failover has a replica take over from the master of key, which is alive, and returns the
// replica. In a Cluster the two agree on it, and nothing is lost. Sentinels do not ask the
// master: it goes on taking writes, which are lost, until it is told.
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

// AwaitSuccessor waits until another server than old, which is down, is master of key.
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

// AwaitMaster waits until all nodes of a Cluster know that master keeps the key.
func (d *Deployment) AwaitMaster(ctx context.Context, key string, master *redistest.Server) error {
	return d.cluster.AwaitMaster(ctx, key, master)
}
