package redisexec

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// confirmers are connections of the library to one Redis process, for scripts that replicas confirm. Each script needs a
// connection of its own while its WAIT runs. All connections of the application's pool may be in use for a long time, and a
// renewal cannot wait for them.
//
// They do not follow a failover, as the application's pool does. So if something goes
// wrong on one of them, or too few replicas confirm, new ones are made for later scripts. The old
// ones are closed when the last script that uses them has ended.
type confirmers struct {
	rdb   *redis.Client
	users int // scripts in flight on them; guarded by the executor
}

// minConfirmers is how many there may be at a time, at least, by the size of the application's pool.
const minConfirmers = 8

// mostConfirmers is how many scripts may wait for the replicas of node at a time, without the room for renewals: half the number
// of the application's connections, so that the number of connections does not double.
func mostConfirmers(node *redis.Client) int {
	return max(minConfirmers, node.Options().PoolSize/2)
}

// newConfirmers opens nothing yet. The connections are like those of node, except that only the context of the
// caller bounds an answer: WAIT answers when its own time is over, which may be later than any read time-out.
func newConfirmers(node *redis.Client) *confirmers {
	o := ownOptions(node.Options(), mostConfirmers(node)+minConfirmers, min(node.Options().ReadTimeout, 0))
	o.ContextTimeoutEnabled = true
	return &confirmers{rdb: redis.NewClient(o)}
}

// send sends a script and its WAIT, and what has to go ahead of them.
func (c *confirmers) send(ctx context.Context, r Replicas, cmd *call, ahead []*call) answer {
	conn := c.rdb.Conn()
	defer func() { _ = conn.Close() }()
	wait := &call{Cmd: *redis.NewCmd(ctx, "wait", r.N, r.Timeout.Milliseconds())}
	_, err := conn.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, cmd := range append(ahead, cmd, wait) {
			_ = p.Process(ctx, cmd)
		}
		return nil
	})
	value, err := cmd.Val(), errorOf(cmd, err)
	if err != nil && value == nil { // if the script is refused, its WAIT may still succeed
		return answerTo(cmd, err)
	}
	// A value and an error: the script was answered, and then the connection failed.
	acks, err := wait.Int()
	if err != nil || acks < r.N {
		return answer{value: value, unconfirmed: r.shortfall(acks, err)}
	}
	return answer{value: value}
}

// suspect reports whether an answer may have come from the wrong server, or from none.
func suspect(a answer) bool {
	return a.unconfirmed != nil || a.err != nil && (informativeness(a.err) != explainsAll || redis.IsReadOnlyError(a.err))
}

// confirmersOf returns the confirmers of an engine, for one more user; nil if the engine was closed.
func (x *Executor) confirmersOf(e *engine) *confirmers {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.engines[e.node] != e {
		return nil // the engine has closed its own already: no one would close these
	}
	if e.confirmers == nil {
		e.confirmers = newConfirmers(e.node)
	}
	e.confirmers.users++
	return e.confirmers
}

// leave ends a use of c. After a failure, later scripts use others, and the last user of c closes it: after closeConfirmers
// once more, which does nothing. To close it at once would interrupt the other users, and leave their outcome unknown.
func (x *Executor) leave(e *engine, c *confirmers, failed bool) {
	x.mu.Lock()
	c.users--
	if failed && e.confirmers == c {
		e.confirmers = nil
	}
	over := e.confirmers != c && c.users == 0
	x.mu.Unlock()
	if over {
		_ = c.rdb.Close()
	}
}

// closeConfirmers closes the confirmers of an engine that was closed. Scripts in flight on them fail.
func (x *Executor) closeConfirmers(e *engine) {
	x.mu.Lock()
	c := e.confirmers
	e.confirmers = nil
	x.mu.Unlock()
	if c != nil {
		_ = c.rdb.Close()
	}
}
