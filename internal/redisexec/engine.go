package redisexec

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/goroutine"
)

// How a copy of a command is sent. The first row that fits counts:
//
//	a script that replicas have to confirm           one of the confirmers (replicas.go)
//	the node is not known                            the application's client, which routes it
//	the first copy, alone                            the pipeline of the current lane, by the caller (lone.go)
//	after NOSCRIPT                                   as the copy that was answered so
//	the first copy, and every second one             the current lane: a new one after a silence (lane.go)
//	the third, the fifth and so on                   the shared lane, in case that no connection can be opened: its
//	                                                 pipeline and the application's pool in turns. The third goes by
//	                                                 the lane if these have been silent, or would dial
//
// A lane has a pipeline, or, unpipelined, sends each command on a connection of the application's pool.
//
// An engine is open until its node has left the Cluster, or the node or the executor is closed. Then it is dropped for good,
// by callers or goroutines of the executor, under the mutex of the executor.
//
// Invariants:
//   - A node has at most one engine in the map, and a dropped engine is not used again.
//   - Commands of one pipeline are sent in the order of their submission. Other routes have no order (see late).
//
// What can come late: a command whose caller got the engine just before it was dropped, or the lane just before it was closed.
// It is sent by another route, at once (Executor.reroute) or as the next copy (engine.complete).

// engine has the routes for commands to one Redis process.
type engine struct {
	exec *Executor
	// node is the application's client of it.
	node *redis.Client

	lane   atomic.Pointer[lane] // the current one; it changes under the mutex of the executor
	shared *lane                // the first one
	lanes  map[*lane]bool       // of our own that are not closed; guarded by the executor
	fresh  atomic.Int64         // lanes that were opened since any has answered

	underWay atomic.Int64 // commands that are waited for

	server *server

	// waits has room for as many scripts as may wait for replicas at a time. Each takes its room before it is sent. Renewals may
	// also take room in renewals.
	waits, renewals chan struct{}
	// confirmers are the connections that they go on; nil before the first, and after one that
	// went wrong. It is guarded by the executor.
	confirmers *confirmers
}

// send sends cmd and waits for its answer, or until its caller stops waiting.
func (g *engine) send(c *try, cmd *call) answer {
	g.underWay.Add(1)
	defer g.underWay.Add(-1)
	l := g.exec.laneOf(g, c.n)
	switch {
	case c.way.lane != nil:
		return g.on(c.way, c, cmd)
	case c.n > 1 && c.n%2 == 1:
		pooled := g.shared.rdb.PoolStats().IdleConns > 0
		piped := g.shared.pipe != nil && (c.piped == (c.n%4 == 1) || !pooled)
		if c.n > 3 || !l.ours || pooled || piped && !c.piped {
			return g.on(way{g.shared, piped}, c, cmd)
		}
	}
	return g.on(way{l, l.pipe != nil}, c, cmd)
}

// way is how a copy gets to Redis: by the pipeline of a lane, or on a connection of its pool to itself.
type way struct {
	lane  *lane
	piped bool
}

// on sends cmd that way.
func (g *engine) on(w way, c *try, cmd *call) (a answer) {
	l, wait := w.lane, c.wait
	if d := l.pace(c.patience); c.patience > 0 && d > c.patience {
		var cancel context.CancelFunc
		wait, cancel = g.exec.limits.within(c.ctx, c.e.atMost(c.ctx, d))
		defer cancel()
	}
	if w.piped {
		a = g.submit(c, wait, l, cmd)
	} else {
		answers, began := l.answers.Load(), time.Now()
		a = g.exec.process(c.ctx, wait, g.server, l.rdb, cmd)
		g.settle(c.ctx, l, answers, began, &a)
	}
	g.complete(w, &a)
	return a
}

// alone sends a command on the goroutine of its caller, if there is no other on the current lane. sent: there was none.
func (g *engine) alone(c *try, s *Script, keys, args []any) (a answer, sent bool) {
	l, began := g.lane.Load(), time.Now()
	if l.pipe == nil || l.suspect.Load() || l.isOver(g.exec.Now) {
		return a, false
	}
	wait := c.patience
	if d := l.pace(wait); d > wait {
		wait = c.e.atMost(c.ctx, d)
	}
	end, watch := endOf(c.ctx, began.Add(wait))
	w := l.pipe.reserve(end)
	if w == nil {
		return a, false
	}
	answers := l.answers.Load()
	a = w.ask(c.ctx, watch, newCall(c.ctx, s, g.server.scripts.lacks(s, c.sent), keys, args))
	if a.pending != nil {
		a.err = overAt(c.ctx, end, c.patience)
	}
	g.settle(c.ctx, l, answers, began, &a)
	g.complete(way{l, true}, &a)
	a.server = g.server
	return a, true
}

// complete completes the answer to a command that went that way.
func (g *engine) complete(w way, a *answer) {
	l := w.lane
	if a.way = w; a.pending != nil {
		pending := a.pending
		a.pending = func(ctx context.Context) answer {
			a := pending(ctx)
			a.way, a.server = w, g.server
			return a
		}
	}
	switch {
	case a.err == nil, a.pending != nil:
	case redis.IsReadOnlyError(a.err):
		// The address led to another server, or to a master that is none any more, when the connection was opened.
		// go-redis closes a connection on which a write was refused, but not the connection of a full-duplex pipeline.
		l.suspect.Store(true)
	case errors.Is(a.err, redis.ErrClosed) && (l.ours || g.lane.Load() != l):
		a.err = errNotSent // the lane was closed, not the client
	case unsent(a.err):
		g.exec.barred(g, l)
	}
}

// settle records on l how a command ended that was sent at began, or that it was not answered in time. A command that was
// given up earlier, because ctx ended, does not make l suspect, because the undo has to follow it on the same lane.
func (g *engine) settle(ctx context.Context, l *lane, answers uint64, began time.Time, a *answer) {
	switch {
	case a.pending != nil:
		if left := g.exec.Patience - time.Since(began); ctx.Err() != nil && left > 0 {
			time.AfterFunc(left, func() { l.unanswered(answers) })
		} else {
			l.unanswered(answers)
		}
		pending := a.pending
		a.pending = func(until context.Context) answer {
			a := pending(until)
			if a.pending == nil {
				g.settle(ctx, l, answers, began, &a)
			}
			return a
		}
	case a.err == nil || Replied(a.err):
		g.answered(l, time.Since(began))
	case isTimeout(a.err):
		l.unanswered(answers)
	}
}

// submit sends cmd through the pipeline of l. While other commands are answered on it, the wait for cmd continues. When many
// holds are renewed at once on a slow machine, a second copy of each renewal would make it slower still.
func (g *engine) submit(c *try, wait context.Context, l *lane, cmd *call) (a answer) {
	began := time.Now()
	l.pipe.submit(cmd)
	cancel := context.CancelFunc(func() {})
	for {
		// Read before the wait: an answer to any command that comes during it shows that the lane is alive.
		answers := l.answers.Load()
		a = cmd.answer(wait)
		cancel()
		if a.pending != nil && c.ctx.Err() == nil && c.patience > 0 && l.answers.Load() != answers {
			wait, cancel = g.exec.limits.within(c.ctx, c.patience)
			continue
		}
		g.settle(c.ctx, l, answers, began, &a)
		return a
	}
}

// errorOf returns the error of cmd, which was sent together with others. err is their first error, because go-redis does not
// return every failure to send to each of the commands.
func errorOf(cmd *call, err error) error {
	if cmd.Val() == nil && cmd.Err() == nil {
		return err
	}
	return cmd.Err()
}

// answerTo returns the answer to cmd, which ended with err.
func answerTo(cmd *call, err error) answer {
	if err == nil {
		return answer{value: cmd.Val()}
	}
	if err = noNil(err); !cmd.asked.Load() && judge(err) == unknown { // as a Limiter's, or an error of a TLS handshake
		err = fmt.Errorf("%w: %w", errNotSent, err)
	}
	return answer{err: err}
}

// close ends the lanes. It blocks for as long as go-redis takes to close.
func (g *engine) close() {
	var err error
	defer goroutine.Recover(&err)
	g.exec.closeConfirmers(g)
	g.exec.mu.Lock()
	lanes := slices.Collect(maps.Keys(g.lanes))
	clear(g.lanes)
	g.exec.mu.Unlock()
	for _, l := range lanes {
		l.close()
	}
	g.shared.close()
}

// engineOf returns the engine for the master of key, nil if only the client itself can
// route the command.
func (x *Executor) engineOf(ctx context.Context, key string) *engine {
	// To load the map takes a round trip, and longer if nodes are silent. The application's client does that while
	// it sends the command, which can be given up meanwhile.
	if _, cluster := x.rdb.(*redis.ClusterClient); cluster && !x.mapped.Load() {
		return nil
	}
	node, err := x.masterOf(ctx, key)
	if err != nil {
		return nil
	}
	return x.engineAt(node)
}

// engineAt returns the engine of a node, which it makes at the first call; nil: the executor is closed.
func (x *Executor) engineAt(node *redis.Client) *engine {
	if e := x.latest.Load(); e != nil && e.node == node {
		return e
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.engines[node]
	if e == nil && !x.closed {
		e = &engine{
			exec:   x,
			node:   node,
			lanes:  make(map[*lane]bool),
			server: serverOf(node),
			waits:  make(chan struct{}, mostConfirmers(node)),

			renewals: make(chan struct{}, minConfirmers),
		}
		e.shared = x.openSharedLane(e)
		e.lane.Store(e.shared)
		x.engines[node] = e
		x.dropDeparted()
	}
	x.latest.Store(e)
	return e
}

// dropDeparted ends the engines of nodes that have left the Cluster, in the background, because no command would show that
// they have left. mu is held.
func (x *Executor) dropDeparted() {
	cluster, ok := x.rdb.(*redis.ClusterClient)
	if !ok || len(x.engines) == 1 {
		return
	}
	known := slices.Collect(maps.Values(x.engines))
	x.goAside(func() {
		var nodes sync.Map // that are there
		ctx, cancel := context.WithTimeout(x.life, x.Patience)
		defer cancel()
		if err := cluster.ForEachShard(ctx, func(_ context.Context, node *redis.Client) error {
			nodes.Store(node, true)
			return nil
		}); err != nil {
			return
		}
		for _, e := range known {
			if _, there := nodes.Load(e.node); !there {
				x.drop(e)
			}
		}
	})
}

// drop ends an engine whose node is closed, or has left. Calls that have it go on until they fail, and are sent
// another way then. If the node comes back, the next command makes a new engine.
func (x *Executor) drop(closed *engine) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.engines[closed.node] == closed {
		delete(x.engines, closed.node)
		x.latest.Store(nil)
		x.goAside(closed.close)
	}
}
