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

// Quorum is the protocol of a plain lock on several masters: each question is put to all of
// them, in the words of the plain protocol, and what most answer is the answer.
//
// Why two owners cannot both have a majority: two majorities have a node in common, on which
// the second was refused for as long as the first had its field there. Every node of the
// first has it for a lease from when the first was asked, or later, and so until after
// the local deadline, which is counted from before any of them was asked. Nothing that was
// sent under another name can take it away; under its own name nothing can that came before,
// because a name is retired, and not acquired under again, as soon as a node has not
// answered all that was sent under it. What its own hold sends takes it away only after the
// hold has ended here.
//
// So it does not matter in which order commands reach a node, or if they do: the worst that
// a late copy of an acquisition can do is to take a node for a lease that no one holds,
// which is one vote less for others.
type Quorum struct {
	env   Env
	nodes []*node
	undos []*undo.Queue // of the nodes

	// longest is the longest lease that was ever asked for.
	longest atomic.Int64
}

// Env is what a quorum needs of its client.
type Env struct {
	Now        clock.Clock
	Patience   time.Duration   // with one copy of a command
	Background context.Context // of what no caller waits for
	Go         func(func())    // in a goroutine that the client waits for
	Closed     func() bool
	Retire     func(field string) // has nothing acquired any more under the identity of field
	Failure    func(Failure) error
}

// New returns the protocol on these nodes, which are called by their names.
func New(env Env, execs []*redisexec.Executor, names []string) *Quorum {
	q := &Quorum{env: env}
	undoEnv := undo.Env{Now: env.Now, Go: env.Go, Ctx: env.Background}
	for i, exec := range execs {
		n := &node{env: &q.env, plain: protocol.NewPlain(exec, false), at: i, name: names[i], last: make(map[string]chan struct{})}
		n.undos = undo.New(undoEnv, n.settle)
		q.nodes, q.undos = append(q.nodes, n), append(q.undos, n.undos)
	}
	return q
}

// Backlog returns, node by node, the names that are to be released there in the background.
func (q *Quorum) Backlog() []*undo.Queue { return q.undos }

var _ protocol.Protocol = (*Quorum)(nil)

// majority is how many nodes have to agree.
func (q *Quorum) majority() int { return len(q.nodes)/2 + 1 }

// leases notes that a lease is asked for.
func (q *Quorum) leases(lease time.Duration) {
	for {
		longest := q.longest.Load()
		if int64(lease) <= longest || q.longest.CompareAndSwap(longest, int64(lease)) {
			return
		}
	}
}

// until is by when every lease that was asked for has run out.
func (q *Quorum) until() clock.Instant {
	return q.env.Now().After(time.Duration(q.longest.Load()))
}
