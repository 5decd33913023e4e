// Package target is the Redis that the command uses: one server, one behind Sentinel, a Cluster, or several
// of them as a quorum.
//
//   - url.go reads the URLs.
//   - target.go has the connections; settings.go what the URLs do not say of them: TLS and a time-out.
package target

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

// Target is one Redis, or a quorum of them.
type Target struct{ Nodes []*Node }

// Node is one Redis of a target: the only one, or one of a quorum.
type Node struct {
	Name  string // for people: its address, without a password
	Kind  Kind
	Redis redis.UniversalClient

	timeout time.Duration // for an answer, if not zero
}

// Kind is how a node is reached.
type Kind string

// The kinds of nodes.
const (
	Server   Kind = "server"
	Sentinel Kind = "sentinel"
	Cluster  Kind = "cluster"
)

// Open returns the Redis that these URLs lead to, several as a quorum. It sends nothing.
func Open(urls []string, s Settings) (*Target, error) {
	if err := s.load(urls); err != nil {
		return nil, err
	}
	t := &Target{}
	seen := make(map[string]bool)
	for _, text := range urls {
		n, err := openNode(text, s)
		if err != nil {
			t.close()
			return nil, err
		}
		t.Nodes = append(t.Nodes, n)
		if seen[n.Name] {
			t.close()
			return nil, fmt.Errorf("%s is given twice: it would have two votes in the quorum", n.Name)
		}
		seen[n.Name] = true
	}
	return t, nil
}

// Quorum reports whether there are several nodes.
func (t *Target) Quorum() bool { return len(t.Nodes) > 1 }

// Majority is how many nodes have to agree.
func (t *Target) Majority() int { return len(t.Nodes)/2 + 1 }

// Locks returns a client of the library on t, to be closed.
func (t *Target) Locks(opts ...relock.ClientOption) (*relock.Client, error) {
	if !t.Quorum() {
		return relock.New(t.Nodes[0].Redis, opts...)
	}
	rdbs := make([]redis.UniversalClient, len(t.Nodes))
	for i, n := range t.Nodes {
		rdbs[i] = n.Redis
	}
	return relock.NewQuorum(rdbs, opts...)
}

// close closes all clients.
func (t *Target) close() {
	for _, n := range t.Nodes {
		_ = n.Redis.Close()
	}
}

// EachMaster calls f for each server that has locks, until one fails: all masters of a Cluster, one after another, or
// the only one.
func (n *Node) EachMaster(ctx context.Context, f func(context.Context, *redis.Client) error) error {
	masters, err := n.masters(ctx)
	for _, rdb := range masters {
		if err = f(ctx, rdb); err != nil {
			break
		}
	}
	return err
}

// masters returns the servers that have locks.
func (n *Node) masters(ctx context.Context) (all []*redis.Client, err error) {
	switch rdb := n.Redis.(type) {
	case *redis.ClusterClient:
		ctx, cancel := n.limited(ctx) // nodes are asked for the others one after another
		defer cancel()
		var mu sync.Mutex
		err = rdb.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, master)
			return nil
		})
		return all, limit(n.timeout).explain(ctx, err)
	case *redis.Client:
		return []*redis.Client{rdb}, nil
	default:
		return nil, fmt.Errorf("a %T has no masters", rdb)
	}
}

// limited returns ctx with the time that one answer may take.
func (n *Node) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if n.timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, n.timeout)
}
