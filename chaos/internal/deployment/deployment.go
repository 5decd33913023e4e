// Package deployment runs Redis in every shape that the locks are used on: one server, a
// Cluster, sentinels, a quorum of masters, with clocks of their own if they are wanted.
//
// It knows nothing of locks, of the processes that use them, or of faults: it starts servers
// and answers what kind has to do with which server. Its users break the servers themselves.
// The files:
//
//   - kind.go: the kinds that there are, and how a client connects to each
//   - deployment.go: servers are started, and closed
//   - command.go: commands to one server, past everything that stands between it and clients
//   - failover.go: which server is master of a key, and how that changes
//   - clock.go: a clock that can be set, by a library that a server is started with
package deployment

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/redistest"
)

// masters is how many there are of a quorum: two may be missing.
const masters = 5

// skew is how far the clocks of two neighbours are apart in a SkewedQuorum.
const skew = 20 * time.Second

// Deployment is what Redis runs on.
type Deployment struct {
	Kind    Kind
	Servers []*redistest.Server // those that keep data: masters and replicas

	cluster    *redistest.Cluster
	sentinel   *redistest.Sentinel
	clocks     []*clock  // of Skewed and SkewedQuorum, one for each server
	failedOver time.Time // when Failover had a replica take over last
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
		// The page cache outlives a server that is killed. To sync each write would only have it stand still
		// when the disk of this machine is busy, as under a fault that no one has noted.
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

// serveAt is serve by a clock that is so far ahead.
func (d *Deployment) serveAt(ahead time.Duration) error {
	c, err := newClock()
	if err != nil {
		return err
	}
	d.clocks = append(d.clocks, c)
	return errors.Join(c.shift(ahead), c.with(func() error { return d.serve() }))
}

// Close stops all servers, and removes what they have left.
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

// Reached are the servers that clients connect to: sentinels, too.
func (d *Deployment) Reached() []*redistest.Server {
	if d.sentinel != nil {
		return append(d.Servers[:len(d.Servers):len(d.Servers)], d.sentinel.Sentinels...)
	}
	return d.Servers
}

// Entrances are the addresses that a client is given, for [Connect].
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

// AwaitReady waits until the deployment is as good as new.
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
