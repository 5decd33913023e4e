package redisexec

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/lockerr"
)

// Replicas is how many replicas have to confirm the writes of a script, and how long to wait for
// them. The zero value asks for none.
type Replicas struct {
	N       int           // how many
	Timeout time.Duration // whole milliseconds
}

// waitLag is how much later than asked Redis may end a WAIT: it checks ten times a second.
const waitLag = 100 * time.Millisecond

// patience is the time for the replicas, which is added to the time of a script. Without it a copy whose replicas
// are slow would be given up, and its outcome would be unknown without need.
func (r Replicas) patience() time.Duration {
	if r.N == 0 {
		return 0
	}
	return r.Timeout + waitLag
}

// And returns what satisfies both: the Locks of a hold may ask for different numbers, and one WAIT is sent.
func (r Replicas) And(other Replicas) Replicas {
	return Replicas{N: max(r.N, other.N), Timeout: max(r.Timeout, other.Timeout)}
}

// Within returns r with a timeout of at most d, but never 0: to Redis, that would be no timeout.
func (r Replicas) Within(d time.Duration) Replicas {
	r.Timeout = max(time.Millisecond, min(r.Timeout, d.Truncate(time.Millisecond)))
	return r
}

// Before returns r with a timeout that leaves time for the answer before ctx ends.
func (r Replicas) Before(ctx context.Context) Replicas {
	if end, bounded := ctx.Deadline(); bounded {
		return r.Within(time.Until(end) / 2)
	}
	return r
}

// shortfall is the error of a WAIT that acks replicas confirmed, or that failed.
func (r Replicas) shortfall(acks int, failure error) error {
	err := fmt.Errorf("%w: %d of %d replicas confirmed the write within %v; INFO replication on the master shows which replicas are connected and how far they lag",
		lockerr.ErrNotReplicated, acks, r.N, r.Timeout)
	if failure != nil {
		err = fmt.Errorf("%w; WAIT failed: %w", err, failure)
	}
	return err
}

// ConfirmedBy returns e for a script whose writes r have to confirm.
func (e CallOptions) ConfirmedBy(r Replicas) CallOptions {
	e.Replicas = r
	e.Patience += r.patience()
	return e
}

// CanWait returns why rdb does not support WithReplicas.
func CanWait(rdb redis.UniversalClient) error {
	switch rdb.(type) {
	case *redis.Client, *redis.ClusterClient:
		return nil
	}
	return fmt.Errorf("%w: WithReplicas needs a *redis.Client or *redis.ClusterClient, not a %T: a script and its WAIT need one connection to the key's master",
		lockerr.ErrUnsupported, rdb)
}

// masterOf returns the client of the node that serves key. On a Cluster it may have to load
// the slot map first, and blocks for that long: callers that must not check mapped before.
func (x *Executor) masterOf(ctx context.Context, key string) (*redis.Client, error) {
	switch rdb := x.rdb.(type) {
	case *redis.Client:
		return rdb, nil
	case *redis.ClusterClient:
		node, err := rdb.MasterForKey(ctx, key)
		if err == nil {
			x.mapped.Store(true)
		}
		return node, err
	default:
		return nil, errNoNode
	}
}

var errNoNode = errors.New("the Redis client does not report which node serves the key")

// confirm sends a script and, behind it on the same connection, a WAIT for replicas, and
// waits for both answers, or for ctx. An engine would send the WAIT on another connection,
// where it would not cover the script.
func (x *Executor) confirm(c *try, key string, cmd *call) answer {
	e := c.e
	// Only the context bounds an answer there, and it is not to do so before the answer is useless.
	ctx, cancel := context.WithTimeout(c.ctx, max(x.longest(), e.Patience))
	var settled atomic.Bool // either it is on its way, or it was given up before
	a := x.outside(c.wait, func() answer {
		defer cancel()
		node, err := x.masterOf(ctx, key)
		if err != nil {
			return answer{err: noNil(err)}
		}
		// pair sets settled when it sends, and the caller sets it when it gives up. So the later one finds out
		// what the other has done.
		a := x.pair(ctx, node, e, cmd, &settled)
		addr, ahead := redirection(ctx, a.err)
		cluster, ok := x.rdb.(*redis.ClusterClient)
		if addr == "" || !ok {
			return a
		}
		// Followed here, and once: go-redis would follow with the script alone. That is the same copy: the first node
		// has refused it, so settled is not asked again.
		if node = nodeAt(ctx, cluster, addr); node == nil {
			return answer{err: fmt.Errorf("%w: %w", errNotSent, a.err)}
		}
		return x.pair(ctx, node, e, newCopy(ctx, cmd), new(atomic.Bool), ahead...)
	})
	// The time ended during the wait for the map of the Cluster, or for a free connection: nothing was sent.
	if a.err != nil && settled.CompareAndSwap(false, true) {
		a.pending = nil
		cancel()
		a.err = fmt.Errorf("%w: %w", errNotSent, a.err)
	}
	if a.server == nil {
		a.server = x.serverOf(ctx, key)
	}
	return a
}

// pair is one EVALSHA or EVAL with its WAIT, and the commands before them. It is sent only if
// it can set settled.
func (x *Executor) pair(ctx context.Context, node *redis.Client, o CallOptions, cmd *call, settled *atomic.Bool, ahead ...*call) answer {
	e := x.engineAt(node)
	if e == nil {
		return answer{err: redis.ErrClosed}
	}
	// So many wait at a time at most. The others wait here, where nothing was sent and ctx ends the wait.
	var renewals chan struct{}
	if o.Renews {
		renewals = e.renewals
	}
	select {
	case e.waits <- struct{}{}:
		defer func() { <-e.waits }()
	case renewals <- struct{}{}:
		defer func() { <-renewals }()
	case <-ctx.Done():
		return answer{err: ctx.Err(), server: e.server}
	}
	if !settled.CompareAndSwap(false, true) {
		return answer{err: ctx.Err(), server: e.server}
	}
	c := x.confirmersOf(e)
	// e was dropped meanwhile: another copy finds the engine that took its place.
	if c == nil {
		return answer{err: errNotSent, server: e.server}
	}
	failed := true // by a panic
	defer func() { x.leave(e, c, failed) }()
	a := c.send(ctx, o.Replicas, cmd, ahead)
	a.server = e.server
	failed = suspect(a)
	return a
}

// serverOf returns the server of a command for key. Before the map of a Cluster is loaded, it is the one of the whole Cluster.
func (x *Executor) serverOf(ctx context.Context, key string) *server {
	if e := x.engineOf(ctx, key); e != nil {
		return e.server
	}
	return x.anywhere
}

// redirection returns the address that an error points to, if it does, and the command that this node
// needs first.
func redirection(ctx context.Context, err error) (addr string, ahead []*call) {
	if addr, ok := redis.IsMovedError(err); ok {
		return addr, nil
	}
	if addr, ok := redis.IsAskError(err); ok {
		return addr, []*call{{Cmd: *redis.NewCmd(ctx, "asking")}}
	}
	return "", nil
}

// bracketed is the address of a host, which may be an IPv6 address, as one dials it.
func bracketed(addr string) string {
	end := max(0, strings.LastIndexByte(addr, ':'))
	host, port := addr[:end], strings.TrimPrefix(addr[end:], ":")
	return net.JoinHostPort(strings.Trim(host, "[]"), port)
}

// nodeAt returns the client of the node at addr, after a fresh look at the Cluster's map;
// nil if it is not there.
func nodeAt(ctx context.Context, cluster *redis.ClusterClient, addr string) *redis.Client {
	var found atomic.Pointer[redis.Client]
	_ = cluster.ForEachShard(ctx, func(_ context.Context, node *redis.Client) error {
		// addr is as the server writes it, without brackets. go-redis may use another address for that server.
		if o := node.Options(); o.NodeAddress == addr || o.Addr == bracketed(addr) {
			found.Store(node)
		}
		return nil
	})
	return found.Load()
}
