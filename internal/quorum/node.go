package quorum

import (
	"sync"
	"sync/atomic"

	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/undo"
)

// node is one master of a quorum. What happens on it is what happens on a single Redis,
// but that calls do not wait for it: a command may be under way when its call has returned.
// Commands under one name are executed in the order of the calls all the same: each is sent
// when the one before it was answered, or given up.
type node struct {
	env   *Env
	plain *protocol.Plain
	at    int    // which of the nodes it is
	name  string // for people: its address
	undos *undo.Queue
	took  atomic.Int64 // how long the last answer of its took, in nanoseconds

	mu   sync.Mutex
	last map[string]chan struct{} // by name: closed when the last command in line is settled
}

// turn is the place of one command among those of its names.
type turn struct {
	node    *node
	names   []string
	before  []chan struct{}
	settled chan struct{}
}

// enqueue gives a command its turn.
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

// await waits for those before, each of which ends when its patience is spent.
func (t *turn) await() {
	for _, before := range t.before {
		<-before
	}
}

// pass lets the next in line go.
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

// settle is how an undo is settled on this node. When the client is being closed one try
// has to do: a minority that does not answer must not keep it.
func (n *node) settle(u undo.Name) bool {
	t := n.enqueue([]string{u.Field})
	defer t.pass()
	t.await()
	if u.Keys.Absent.Contains(n.at) {
		return true
	}
	var out redisexec.Outcome
	if e := (redisexec.CallOptions{Attempts: 1}); u.Unobserved {
		_, out = n.plain.ReleaseQuietly(n.env.Background, e, u.Keys, u.Field)
	} else {
		p := protocol.KeepingUntil(n.plain, n.env.Now, u.KeepUntil)
		_, out = p.Release(n.env.Background, e, u.Keys, u.Field, make([]int, len(u.Keys.Keys)))
	}
	return out.Err == nil || redisexec.ForGood(out.Err) || n.env.Closed()
}

// Busy reports whether a command about a name is under way to node i.
func (q *Quorum) Busy(i int) bool {
	n := q.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.last) > 0
}
