package quorum

import (
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/undo"
)

// Quorum is the protocol of a plain lock on several masters. Each command of the plain protocol is sent to all of them,
// and the answer of a majority is the answer.
//
// Why two owners cannot both have a majority: two majorities have a node in common. That node refuses the second owner
// while it has the field of the first owner. Each node of the first owner's majority has that field for a whole lease,
// which begins when the node executes the command. The local deadline counts from before any node was asked, so it comes
// before that lease ends. And no command removes the field before the deadline:
//
//   - A command under another name does not change the field. The exception is ForceUnlock, on purpose.
//   - No command of an earlier hold has the same name: if a node does not answer every copy that was sent under a name,
//     the name is retired, and no later hold uses it.
//   - A command of the hold itself removes the field only after the hold has ended here.
//
// So it does not matter in which order commands reach a node, or whether they do. A delayed copy of an acquisition can at
// worst take a node for a lease, without a hold. Then other owners have one vote less.
type Quorum struct {
	env Env

	// nodes, and the undos of each, are in the order that the user gave. New sets them, and they never change.
	nodes []*node
	undos []*undo.Queue

	census census

	// longest is the longest lease that was ever requested, in nanoseconds. It is raised (by leases) before the request
	// is sent. So it covers a copy that is executed without an answer.
	longest atomic.Int64
}

// Env is what a quorum has of its client.
type Env struct {
	goroutine.Life
	Patience time.Duration      // for one copy of a command
	Retire   func(field string) // retires the identity of field

	// Failure returns the error for the user, from the errors of the nodes.
	Failure func(Failure) error
}

// New returns the protocol on these nodes. names are for people.
func New(env Env, execs []*redisexec.Executor, names []string) *Quorum {
	q := &Quorum{env: env}
	for i, exec := range execs {
		n := &node{env: &q.env, plain: protocol.NewPlain(exec, false), at: i, name: names[i], server: newServer(), last: make(map[string]chan struct{})}
		n.undos = undo.New(env.Life, n.settle)
		q.nodes, q.undos = append(q.nodes, n), append(q.undos, n.undos)
	}
	return q
}

// Backlog returns, for each node, the queue of names to be released there in the background. The client adds the names
// that it gives up to all queues. The quorum adds a command that a single node has missed to the queue of that node.
func (q *Quorum) Backlog() []*undo.Queue { return q.undos }

var _ protocol.Protocol = (*Quorum)(nil)

// Usual returns how long the slowest node usually takes to answer, doubled, because it may be slower next time. It is at
// least a quarter of the patience, because this process may be busy, and at most the patience.
func (q *Quorum) Usual() time.Duration {
	usual := q.env.Patience / 4
	for _, n := range q.nodes {
		usual = max(usual, 2*time.Duration(n.took.Load()))
	}
	return min(usual, q.env.Patience)
}

// majority returns how many nodes have to agree: more than half, so that two majorities share a node.
func (q *Quorum) majority() int { return len(q.nodes)/2 + 1 } // mutant: quorum-half-is-enough

// leases records that a lease is requested.
func (q *Quorum) leases(lease time.Duration) {
	for {
		longest := q.longest.Load()
		if int64(lease) <= longest || q.longest.CompareAndSwap(longest, int64(lease)) {
			return
		}
	}
}

// until returns when every requested lease will have ended. An undo is given up then, because the name has expired on
// every node.
func (q *Quorum) until() clock.Instant {
	return q.env.Now().After(time.Duration(q.longest.Load()))
}
