package quorum

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
)

// One server has one vote. Two addresses may lead to the same server: a host name and its IP address, a proxy, two names
// of one Sentinel, a line of the configuration that was copied. With two votes the server would outvote others, and its
// failure would cost two votes.
//
//	unmet  The answers of the node do not count. After an answer it is asked for the run id of its server.
//	met    The server is not the server of another met node, or does not report its run id. The answers count.
//	twin   The server is the server of another met node. The answers do not count, and no lock is acquired on the
//	       quorum. The node is asked again after its next answer.
//
//	unmet, twin --meet--> met, or twin
//	met --it does not answer when another node is met--> unmet
//
// So a node is asked once in the life of a client. If another node is met much later, it is asked again, because a server
// gets another run id when it is started, and after a failover an address may lead to another server.

// server is the server of a node.
type server struct {
	met  atomic.Bool
	twin atomic.Pointer[twins] // the other node, if this one is its twin; else nil

	// meeting has room for the one call that asks. Other calls wait until it is empty.
	meeting chan struct{}

	// The census guards the fields below.
	id      string        // the last run id; "" if the server does not report it
	askedAt clock.Instant // before it was asked for the run id
}

func newServer() server { return server{meeting: make(chan struct{}, 1)} }

// census compares the nodes, one after another.
type census struct {
	mu sync.Mutex

	// begun: a lock was acquired or refused, after a wait for nodes that were not met.
	begun atomic.Bool
}

// twins is the error of a server with two votes.
type twins struct{ one, other, id string }

func (e *twins) Error() string {
	return fmt.Sprintf("%v: %s and %s are the same Redis server (run_id %s), which would have two votes: give NewQuorum each server once",
		lockerr.ErrInvalidOption, e.one, e.other, e.id)
}

func (*twins) Unwrap() error { return lockerr.ErrInvalidOption }

// meet returns nil if the answers of n count. n has just answered a question about the lock at key. If n is not met, meet
// blocks for the patience of one command at most.
func (q *Quorum) meet(n *node, key string) error {
	if n.met.Load() || len(q.nodes) == 1 {
		return nil
	}
	n.meeting <- struct{}{}
	defer func() { <-n.meeting }()
	if n.met.Load() { // another call has asked meanwhile
		return nil
	}
	// Run ids that other nodes reported at about the same time are recent enough.
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

// outdated returns the nodes that were met long before n.
func (q *Quorum) outdated(n *node) (others []*node) {
	q.census.mu.Lock()
	defer q.census.mu.Unlock()
	now := q.env.Now()
	for _, other := range q.nodes {
		if other != n && other.met.Load() && now.Since(other.askedAt) > q.env.Patience {
			others = append(others, other)
		}
	}
	return others
}

// ask asks n for the run id of its server.
func (q *Quorum) ask(n *node, key string) error {
	id, out := n.plain.Server(q.env.Ctx, redisexec.CallOptions{Attempts: 1}, key)
	if out.Err != nil {
		return out.Err
	}
	q.census.mu.Lock()
	defer q.census.mu.Unlock()
	n.id, n.askedAt = id, out.Sent
	return nil
}

// compare marks n as met, unless another met node has the same server. If two such nodes come at the same time, one of
// them is met.
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

// twins returns the error of a server with two votes, or nil.
func (q *Quorum) twins() error {
	for _, n := range q.nodes {
		if both := n.twin.Load(); both != nil {
			return both
		}
	}
	return nil
}

// suspects reports whether an acquisition has to wait a moment for nodes that its majority does not need. It has to wait
// at the first acquisition, before any comparison, and while there are twins, because they may have been separated.
func (q *Quorum) suspects() bool {
	return !q.census.begun.Load() && !q.census.begun.Swap(true) || q.twins() != nil
}
