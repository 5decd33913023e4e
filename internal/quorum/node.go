package quorum

import (
	"sync"
	"sync/atomic"

	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/undo"
)

// node is one master of a quorum. It differs from a single Redis in one point: calls do not wait for it. A command to it
// may be in flight after its call has returned.
//
// Still, a node gets the commands of one name in the order of the calls, because each name has a queue here. A command is
// sent when the previous one is answered or given up. Otherwise a release could overtake an acquisition that is in
// flight. The release would find nothing, and then the acquisition would take the node for a hold that has ended.
type node struct {
	env   *Env
	plain *protocol.Plain
	at    int    // which of the nodes it is
	name  string // for people: its address
	undos *undo.Queue
	took  atomic.Int64 // the time until its last answer, in nanoseconds; 0: it never answered
	server

	mu sync.Mutex
	// last has a channel for each name, which is closed when the last command in the queue of the name is settled. enqueue
	// sets it, and pass removes it if no other command follows. So last is empty while no command is in flight.
	last map[string]chan struct{}
}

// turn is the position of one command in the queues of its names. A hand-over, and a command that leaves a placeholder,
// have two names.
type turn struct {
	node    *node
	names   []string
	before  []chan struct{} // one for each queue that is not empty, closed when the command before this one is settled
	settled chan struct{}   // closed by pass
}

// enqueue appends a command to the queues of its names. It does not block. It uses one mutex for all of these queues, so
// no two commands can wait for each other. The caller has to call pass in every case, or later commands of these names
// are never sent.
func (n *node) enqueue(names []string) *turn {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := &turn{node: n, names: names, settled: make(chan struct{})}
	for _, name := range names {
		if before := n.last[name]; before != nil {
			t.before = append(t.before, before)
		}
		n.last[name] = t.settled
	}
	return t
}

// await waits for the commands before it. No context ends this wait, but it is bounded: each of those commands sends only
// a few copies, and no more copies when the result of its ballot is known.
func (t *turn) await() {
	for _, before := range t.before {
		<-before
	}
}

// pass lets the next command of each name go.
func (t *turn) pass() {
	t.node.mu.Lock()
	for _, name := range t.names {
		if t.node.last[name] == t.settled {
			delete(t.node.last, name)
		}
	}
	t.node.mu.Unlock()
	close(t.settled)
}

// settle sends an undo to this node, and reports whether the undo is complete. The queue of undos calls it in a goroutine
// of its own. settle waits for the commands of the name that are in flight, and then for two copies of the undo. After a
// failure the queue calls it again, later.
func (n *node) settle(u undo.Name) bool {
	t := n.enqueue([]string{u.Field})
	defer t.pass()
	t.await()
	// Here the acquisition is settled, so it is known whether it was executed.
	if u.Keys.Absent.Contains(n.at) {
		return true
	}
	var out redisexec.Outcome
	if e := (redisexec.CallOptions{Attempts: 2}); u.Unobserved {
		_, out = n.plain.ReleaseQuietly(n.env.Ctx, e, u.Keys, u.Field)
	} else {
		none := make([]int, len(u.Keys.Keys))
		_, out = protocol.ReleaseUntil(n.env.Ctx, n.plain, e, u.Keys, u.Field, none, n.env.Now, u.PlaceholderUntil)
	}
	// While the client is being closed, one try is enough: a silent minority must not delay Close.
	return out.Err == nil || redisexec.ForGood(out.Err) || goroutine.Closed(n.env.Closing)
}
