package quorum

import (
	"sync"
	"sync/atomic"

	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/undo"
)

// node is one master of a quorum. It does what a single Redis does, with one difference: calls do not wait
// for it. A command to it may be in flight after its call has returned.
//
// Even so a node gets the commands of one name in the order of the calls, because each name has a queue here.
// Each command is sent when the previous one was answered or given up. Otherwise a release could overtake
// the acquisition that is still in flight. It would find nothing, and the acquisition would then take the node
// for a hold that has ended.
type node struct {
	env   *Env
	plain *protocol.Plain
	at    int    // which of the nodes it is
	name  string // for people: its address
	undos *undo.Queue
	took  atomic.Int64 // how long its last answer took, in nanoseconds; 0: it never answered
	server

	mu sync.Mutex
	// last is closed, for each name, when the last command in its line is settled. enqueue sets it, and
	// pass removes it if no other command came behind. So it is empty while nothing is under way.
	last map[string]chan struct{}
}

// turn is the place of one command in the lines of its names: a hand-over, and a keep, have two.
type turn struct {
	node    *node
	names   []string
	before  []chan struct{} // closed when the command before it is settled: one for each line that is not empty
	settled chan struct{}   // closed by pass
}

// enqueue gives a command its turn, behind all that were given one before. It does not block. A command gets
// its places in all of its lines under one mutex, so no two commands can wait for each other.
// The caller has to call pass, whatever happens: else the later commands of these names never go.
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

// await waits for the commands before it. No context ends that wait, but it is bounded: each of those commands
// sends a few copies at most, or none any more when the result of its ballot is known.
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

// settle sends an undo to this node, and reports whether nothing is left to do about it. It is called by the
// queue of undos, in a goroutine of its own. It waits for the commands of the name that are under way, and
// then for two copies. After a failure the queue calls it again, later.
func (n *node) settle(u undo.Name) bool {
	t := n.enqueue([]string{u.Field})
	defer t.pass()
	t.await()
	// Only here, behind the acquisition, is it known whether that was executed.
	if u.Keys.Absent.Contains(n.at) {
		return true
	}
	var out redisexec.Outcome
	if e := (redisexec.CallOptions{Attempts: 2}); u.Unobserved {
		_, out = n.plain.ReleaseQuietly(n.env.Background, e, u.Keys, u.Field)
	} else {
		p := protocol.KeepingUntil(n.plain, n.env.Now, u.KeepUntil)
		_, out = p.Release(n.env.Background, e, u.Keys, u.Field, make([]int, len(u.Keys.Keys)))
	}
	// When the client is being closed one try has to do: a minority that does not answer must not keep Close.
	return out.Err == nil || redisexec.ForGood(out.Err) || n.env.Closed()
}
