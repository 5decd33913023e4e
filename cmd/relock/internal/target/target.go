// Package target is the Redis that the command was told to use: one server, one behind
// Sentinel, a Cluster, or several of them as a quorum.
//
//   - url.go reads the URLs.
//   - target.go has the connections.
package target

import (
	"context"
	"errors"
	"fmt"

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
func Open(urls []string) (*Target, error) {
	t := &Target{}
	seen := make(map[string]bool)
	for _, text := range urls {
		n, err := openNode(text)
		if err != nil {
			t.Close()
			return nil, err
		}
		t.Nodes = append(t.Nodes, n)
		if seen[n.Name] {
			t.Close()
			return nil, fmt.Errorf("%s is there twice: it would have two votes of a quorum", n.Name)
		}
		seen[n.Name] = true
	}
	return t, nil
}

// Quorum reports whether there are several nodes.
func (t *Target) Quorum() bool { return len(t.Nodes) > 1 }

// Majority is how many nodes have to agree.
func (t *Target) Majority() int { return len(t.Nodes)/2 + 1 }

// Locks returns a client of the library on t, to be closed before t.
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

// Hurry has each node of a Cluster dialed once, for those who look: one after another they would be tried for a
// minute if all are down. It is to be called before anything is sent.
func (t *Target) Hurry() {
	for _, n := range t.Nodes {
		if rdb, is := n.Redis.(*redis.ClusterClient); is {
			rdb.Options().DialerRetries = 1
		}
	}
}

// Close closes all connections.
func (t *Target) Close() error {
	var errs []error
	for _, n := range t.Nodes {
		errs = append(errs, n.Redis.Close())
	}
	return errors.Join(errs...)
}

// EachMaster calls f for each server that has locks: all masters of a Cluster, one after another, or
// the only one.
func (n *Node) EachMaster(ctx context.Context, f func(context.Context, *redis.Client) error) error {
	switch rdb := n.Redis.(type) {
	case *redis.ClusterClient:
		turn := make(chan struct{}, 1)
		return rdb.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
			turn <- struct{}{}
			defer func() { <-turn }()
			return f(ctx, master)
		})
	case *redis.Client:
		return f(ctx, rdb)
	default:
		return fmt.Errorf("a %T has no masters", rdb)
	}
}
