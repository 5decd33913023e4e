package quorum

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/undo"
)

// Quorum is the protocol of a plain lock on several masters. Each command is sent to all of them, as in the
// plain protocol. The answer of a majority is the answer.
//
// Why two owners cannot both have a majority: two majorities have a node in common. That node refuses the
// second owner for as long as it has the field of the first. Each node of the first owner's majority has
// that field for a whole lease, which begins when the node executes the command. The local deadline counts
// from before any node was asked, so it comes before that lease ends. And no command takes the field away
// before the deadline:
//
//   - A command under another name does not touch it. ForceUnlock does, on purpose.
//   - A command under the same name that was sent for an earlier hold does not exist: as soon as a node has
//     not answered all that was sent under a name, the name is retired, and nothing is acquired by it again.
//   - A command of the hold itself takes it away only after the hold has ended here.
//
// So it does not matter in which order commands reach a node, or whether they do. The worst effect of a delayed copy
// of an acquisition: it takes a node for a lease, without a hold. Then other owners have one vote less.
type Quorum struct {
	env Env

	// nodes, and the undos of each, are in the order that the user gave. New makes them; they never change.
	nodes []*node
	undos []*undo.Queue

	census census

	// longest is the longest lease that was ever asked for, in nanoseconds. It is raised (leases) before
	// the command is sent that asks for it. So it covers a copy that is executed without an answer.
	longest atomic.Int64
}

// Env is what a quorum needs of its client.
type Env struct {
	Now        clock.Clock
	Patience   time.Duration   // with one copy of a command
	Background context.Context // of work that no caller waits for
	Go         func(func())    // in a goroutine that the client waits for
	Closed     func() bool
	Retire     func(field string) // retires the identity of field

	// Failure makes the error for the user from the errors of the nodes.
	Failure func(Failure) error
}

// New returns the protocol on these nodes, with their names for people.
func New(env Env, execs []*redisexec.Executor, names []string) *Quorum {
	q := &Quorum{env: env}
	undoEnv := undo.Env{Now: env.Now, Go: env.Go, Ctx: env.Background}
	for i, exec := range execs {
		n := &node{env: &q.env, plain: protocol.NewPlain(exec, false), at: i, name: names[i], server: newServer(), last: make(map[string]chan struct{})}
		n.undos = undo.New(undoEnv, n.settle)
		q.nodes, q.undos = append(q.nodes, n), append(q.undos, n.undos)
	}
	return q
}

// Backlog returns, for each node, the names to be released there in the background. The client adds
// what it gives up to all of them. The quorum adds what single nodes have missed.
func (q *Quorum) Backlog() []*undo.Queue { return q.undos }

var _ protocol.Protocol = (*Quorum)(nil)

// Usual returns how long the slowest node has usually taken to answer, with room for it to be slower: at least a quarter
// of a patience, because this process may be busy, and one patience at most.
func (q *Quorum) Usual() time.Duration {
	usual := q.env.Patience / 4
	for _, n := range q.nodes {
		usual = max(usual, 2*time.Duration(n.took.Load()))
	}
	return min(usual, q.env.Patience)
}

// majority is how many nodes have to agree: more than half, so that two majorities share a node.
func (q *Quorum) majority() int { return len(q.nodes)/2 + 1 } // mutant: quorum-half-is-enough

// leases notes that a lease is asked for.
func (q *Quorum) leases(lease time.Duration) {
	for {
		longest := q.longest.Load()
		if int64(lease) <= longest || q.longest.CompareAndSwap(longest, int64(lease)) {
			return
		}
	}
}

// until is when every lease that was asked for has run out. An undo is given up then: a name that a node
// still had has expired there.
func (q *Quorum) until() clock.Instant {
	return q.env.Now().After(time.Duration(q.longest.Load()))
}
