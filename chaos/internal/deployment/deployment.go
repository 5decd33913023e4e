// Package deployment runs Redis in every shape that the locks are used on: one server, a
// Cluster, sentinels, a quorum of masters, with clocks of their own if they are wanted.
//
// It is independent of locks, of the processes that use them, and of faults: its users break the servers themselves.
// The files:
//
//   - kind.go: the kinds of deployments, and how a client connects to each
//   - deployment.go: starting and closing servers
//   - command.go: commands to one server, without the relays between it and the clients
//   - failover.go: the master of a key, and how it changes
//   - clock.go: a clock that can be set, by a library that is loaded into a server
package deployment

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/redistest"
)

// masters is the number of masters in a quorum. Two of them may fail.
const masters = 5

// skew is how far the clocks of two neighbours are apart in a SkewedQuorum.
const skew = 20 * time.Second

// Deployment is what Redis runs on.
type Deployment struct {
	Kind    Kind
	Servers []*redistest.Server // the servers with data: masters and replicas

	cluster    *redistest.Cluster
	sentinel   *redistest.Sentinel
	clocks     []*clock  // of Skewed and SkewedQuorum, one for each server
	failedOver time.Time // when Failover last promoted a replica
}

// Start starts a deployment. The error is [ErrNoCompiler] if the kind has clocks that can be
// set, and that is not possible here.
func Start(k Kind) (*Deployment, error) {
	d := &Deployment{Kind: k}
	var err error
	switch k {
	case Cluster:
		if d.cluster, err = redistest.StartCluster(); err == nil {
			d.Servers = d.cluster.Nodes
		}
	case Sentinel:
		if d.sentinel, err = redistest.StartSentinel(); err == nil {
			d.Servers = d.sentinel.Nodes
		}
	case Persistent:
		// The page cache outlives a server that is killed. To sync each write would only make the server block while the
		// disk of this machine is busy, like a fault that is not in the history.
		err = d.serve("--appendonly", "yes", "--appendfsync", "no")
	case Skewed:
		err = d.serveAt(0)
	case Quorum:
		for range masters {
			err = errors.Join(err, d.serve())
		}
	case SkewedQuorum:
		for i := range masters {
			err = errors.Join(err, d.serveAt(time.Duration(i-masters/2)*skew))
		}
	default:
		err = d.serve()
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("deployment %s: %w", k, err)
	}
	return d, nil
}

// serve starts one server.
func (d *Deployment) serve(args ...string) error {
	s, err := redistest.StartServer("", args...)
	if err == nil {
		d.Servers = append(d.Servers, s)
	}
	return err
}

// serveAt is serve with a clock that is ahead by the given time.
func (d *Deployment) serveAt(ahead time.Duration) error {
	c, err := newClock()
	if err != nil {
		return err
	}
	d.clocks = append(d.clocks, c)
	return errors.Join(c.shift(ahead), c.with(func() error { return d.serve() }))
}

// Close stops all servers, and removes their files.
func (d *Deployment) Close() {
	switch {
	case d.cluster != nil:
		d.cluster.Close()
	case d.sentinel != nil:
		d.sentinel.Close()
	default:
		for _, s := range d.Servers {
			s.Close()
		}
	}
	for _, c := range d.clocks {
		c.close()
	}
}

// Reached returns the servers to which clients connect, including sentinels.
func (d *Deployment) Reached() []*redistest.Server {
	if d.sentinel != nil {
		return append(d.Servers[:len(d.Servers):len(d.Servers)], d.sentinel.Sentinels...)
	}
	return d.Servers
}

// Entrances returns the addresses in the configuration of a client, for [Connect].
func (d *Deployment) Entrances() []string {
	servers := d.Servers
	if d.sentinel != nil {
		servers = d.sentinel.Sentinels
	}
	addrs := make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = s.Addr
	}
	return addrs
}

// AwaitReady waits until the deployment is complete and healthy.
func (d *Deployment) AwaitReady(ctx context.Context) error {
	switch {
	case d.cluster != nil:
		return d.cluster.AwaitReady(ctx)
	case d.sentinel != nil:
		return d.sentinel.AwaitReady(ctx)
	}
	var err error
	for _, s := range d.Servers {
		err = errors.Join(err, d.Do(ctx, s, "ping"))
	}
	return err
}

// SetClock sets the clock of all servers to ahead of the true time.
func (d *Deployment) SetClock(ahead time.Duration) error {
	var err error
	for _, c := range d.clocks {
		err = errors.Join(err, c.shift(ahead))
	}
	return err
}
