package quorum

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
)

// One server has one vote. Two addresses may lead to the same server: a name and a number, a proxy, two names of one
// Sentinel, a copied line of a configuration. With two votes it would outvote others, and its failure would cost two
// votes.
//
//	stranger  No answer of the node counts. After an answer it is asked for the run id of its server.
//	met       The server differs from those that were met, or does not report its run id. Its answers count.
//	twin      The server is one of those. Its answers do not count, and no lock is acquired on the quorum. It is asked
//	          again after its next answer.
//
//	stranger, twin --meet--> met, or twin
//	met --it does not answer when another node is met--> stranger
//
// So a node is asked once in the life of a client, unless another node is met much later: a server gets another run id
// when it is started, and after a failover an address may lead to another server. The current servers of the
// nodes count.

// server is the server of a node.
type server struct {
	met  atomic.Bool
	twin atomic.Pointer[twins] // the other node, if this one is its twin; else nil

	// meeting has room for the one call that asks. The others wait for that one.
	meeting chan struct{}

	// What follows is guarded by the census.
	id   string        // the last run id; "" if the server does not report it
	said clock.Instant // from before it was asked for the run id
}

func newServer() server { return server{meeting: make(chan struct{}, 1)} }

// census compares the nodes, one after another.
type census struct {
	mu sync.Mutex

	// begun: a lock was acquired or refused, after a wait for nodes that are not met.
	begun atomic.Bool
}

// twins is the error that a server has two votes.
type twins struct{ one, other, id string }

func (e *twins) Error() string {
	return fmt.Sprintf("%v: %s and %s are the same Redis server (run_id %s), which would have two votes: give NewQuorum each server once",
		lockerr.ErrInvalidOption, e.one, e.other, e.id)
}

func (*twins) Unwrap() error { return lockerr.ErrInvalidOption }

// meet returns nil if the answers of n count, which has just answered a question about the lock at key. It blocks for
// the patience with one command at most, if n is not met.
func (q *Quorum) meet(n *node, key string) error {
	if n.met.Load() || len(q.nodes) == 1 {
		return nil
	}
	n.meeting <- struct{}{}
	defer func() { <-n.meeting }()
	if n.met.Load() { // another call has asked meanwhile
		return nil
	}
	// Run ids that the others reported at about the same time are recent enough.
	var asked sync.WaitGroup
	for _, other := range q.outdated(n) {
		asked.Go(func() {
			if q.ask(other, key) != nil {
				other.met.Store(false)
			}
		})
	}
	err := q.ask(n, key)
	asked.Wait()
	if err != nil {
		return err
	}
	return q.compare(n)
}

// outdated returns the nodes that were met, but long before n.
func (q *Quorum) outdated(n *node) (others []*node) {
	q.census.mu.Lock()
	defer q.census.mu.Unlock()
	now := q.env.Now()
	for _, other := range q.nodes {
		if other != n && other.met.Load() && now.Since(other.said) > q.env.Patience {
			others = append(others, other)
		}
	}
	return others
}

// ask asks n which server it is.
func (q *Quorum) ask(n *node, key string) error {
	id, out := n.plain.Server(q.env.Background, redisexec.CallOptions{Attempts: 1}, key)
	if out.Err != nil {
		return out.Err
	}
	q.census.mu.Lock()
	defer q.census.mu.Unlock()
	n.id, n.said = id, out.Sent
	return nil
}

// compare marks n as met, unless its server is that of another node. If two come at the same time, one is met.
func (q *Quorum) compare(n *node) error {
	q.census.mu.Lock()
	defer q.census.mu.Unlock()
	for _, other := range q.nodes {
		if other != n && other.met.Load() && n.id != "" && n.id == other.id {
			both := &twins{one: other.name, other: n.name, id: n.id}
			n.twin.Store(both)
			return both
		}
	}
	n.twin.Store(nil)
	n.met.Store(true)
	return nil
}

// twins returns the error of a quorum in which a server has two votes; nil: none was found.
func (q *Quorum) twins() error {
	for _, n := range q.nodes {
		if both := n.twin.Load(); both != nil {
			return both
		}
	}
	return nil
}

// suspects reports whether a lock has to wait a moment also for nodes that its majority does not need. It has to at the
// first acquisition, when no node was compared yet, and while there are twins, because they may have been separated.
func (q *Quorum) suspects() bool {
	return !q.census.begun.Load() && !q.census.begun.Swap(true) || q.twins() != nil
}
