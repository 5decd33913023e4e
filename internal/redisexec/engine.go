package redisexec

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/lockerr"
)

// An engine is in one of these states:
//
//	piped        It has a pipeline. Commands that come together go through it.
//	unpipelined  It has none, because none is wanted or can be had. Each command has a connection of its own.
//	demoted      A replica has answered, so the pipeline is being closed, or is closed (ended). Commands go on
//	             connections of the pool for pipelines, one by one.
//	dropped      It is in the executor's map no more, and is closed in the background.
//
//	engineAt --> piped --demote: READONLY--> demoted --promote: Redis has written again, ended--> piped
//	any --drop: the node has left, or is closed; or Close of the executor--> dropped
//
// Callers, and goroutines of the executor, move it, under the mutex of the executor.
//
// Invariants:
//   - A node has one engine at most in the map, and nothing leads back to one that was dropped.
//   - Commands of one pipeline are sent in the order in which they were submitted. By other routes they have no
//     order (see late).
//   - One command at most goes directly. When it began no other was waited for.
//
// What can come late: a command that has got the engine just before it was demoted or dropped. The pipeline does
// not take it any more. It is sent another way, at once (Executor.dispatch) or as the next copy (submitTo).

// engine is how commands get to one Redis process: through a pipeline, or directly if there
// is only one; without a pipeline on connections of the pool, each by itself.
type engine struct {
	exec *Executor
	// node is the application's client of it.
	node *redis.Client
	// plain is the client with our time-outs: a clone that shares the pools, must not be
	// closed, and has none of the original's process hooks.
	plain *redis.Client
	// direct is another, whose time-outs end with the context at the latest.
	direct *redis.Client
	// pipe is nil if there is none, and while the engine is demoted.
	pipe atomic.Pointer[pipeline]
	// demoted says that a replica has answered: see demote. ended says then that the pipeline it
	// answered through is closed: go-redis would return the same again before. It is guarded by
	// the executor.
	demoted atomic.Bool
	ended   bool

	// underWay counts the commands that are waited for; the direct one is the only one when
	// it begins.
	underWay atomic.Int64
	// line is held while a command goes directly, and for good when the engine is closed.
	line sync.Mutex

	// answers counts what Redis has answered through the pipe.
	answers atomic.Uint64

	server *server

	// waits has room for as many scripts as may wait for replicas at a time. Each takes its room before it is sent.
	waits chan struct{}
	// confirmers are the connections that they go on; nil before the first, and after one that
	// went wrong. It is guarded by the executor.
	confirmers *confirmers

	// warmed is when a connection was last asked of the pool, to have one there, in nanoseconds.
	warmed atomic.Int64
}

// send sends cmd and waits for its answer, or for ctx.
//
// A command that comes alone goes directly: on a connection of the application's pool, which
// its caller's goroutine writes to and reads from. To wake those of the pipeline, and to be
// woken by them, takes as long again where system calls are dear. It cannot be given up before
// its time, so nothing else may end ctx.
func (g *engine) send(ctx context.Context, e CallOptions, cmd *call) answer {
	alone := g.underWay.Add(1) == 1
	defer g.underWay.Add(-1)
	// With a ctx that may be cancelled this goroutine would be caught in a read that goes on after that.
	if bound, byTime := ctx.(*limit); byTime && alone && e.Avoid != pooled {
		a, sent := g.sendDirectly(bound, cmd)
		if sent || bound.Err() != nil { // the pipeline would send it all the same
			a.server = g.server
			return a
		}
		// go-redis may have written an error into the first.
		cmd = newCopy(ctx, cmd)
	}
	a := g.submitTo(ctx, e, cmd)
	a.server = g.server
	return a
}

// sendDirectly is send for a command that comes alone; false: there is no connection for it.
func (g *engine) sendDirectly(ctx *limit, cmd *call) (a answer, sent bool) {
	if !g.line.TryLock() {
		// Another command is there, or the engine is closed.
		return answer{err: errNotSent}, false
	}
	defer g.line.Unlock()
	if !g.connected() {
		return answer{err: errNotSent}, false
	}
	err := g.direct.Process(ctx, cmd)
	return answerTo(cmd, err), !unsent(err)
}

// errorOf is the error of cmd, which was sent with others, whose first error is err: not
// everything that keeps all of them from being sent is told to each.
func errorOf(cmd *call, err error) error {
	if cmd.Val() == nil && cmd.Err() == nil {
		return err
	}
	return cmd.Err()
}

// connected reports whether the pool has a connection to spare: where they are in use, locks
// do not queue for one. If it has none at all one may be opened, but not while a command waits if
// there is the pipeline, which has answered: new connections may be refused, or never come about.
// Then one is opened beside that, for the next command.
func (g *engine) connected() bool {
	s := g.plain.PoolStats()
	switch {
	case s.PendingRequests > 0:
		return false
	case s.TotalConns > 0:
		return s.IdleConns > 0
	// The first command: the pipeline would have to dial as well.
	case g.answers.Load() == 0:
		return true
	}
	g.warm()
	return false
}

// warmPause is how long a pool that has no connection is left alone after one was asked of it.
const warmPause = time.Second

// warm has the pool open a connection. What it is opened with may be refused: it is there then.
func (g *engine) warm() {
	// One of those that come at the same time does it.
	last, now := g.warmed.Load(), time.Now().UnixNano()
	if now-last < int64(warmPause) || !g.warmed.CompareAndSwap(last, now) {
		return
	}
	g.exec.aside(func() {
		ctx, cancel := context.WithTimeout(g.exec.life, g.exec.Patience)
		defer cancel()
		_ = g.plain.Process(ctx, &call{Cmd: redis.NewCmd(ctx, "ping")})
	})
}

// answerTo is the answer to cmd, which has ended with err.
func answerTo(cmd *call, err error) answer {
	if err != nil {
		return answer{err: err}
	}
	return answer{value: cmd.Val()}
}

// close ends the pipeline, and waits for the command on the line; no other gets on it any more. It blocks for as
// long as that command does, which its time-outs bound, and for as long as go-redis takes to close.
func (g *engine) close() {
	var err error
	defer guard.Recover(&err)
	g.exec.closeConfirmers(g)
	g.line.Lock()
	if pipe := g.pipe.Load(); pipe != nil {
		pipe.close()
	}
}

// submitTo is submit to the pipeline that there is. Without one, cmd goes on a connection of its own.
func (g *engine) submitTo(ctx context.Context, e CallOptions, cmd *call) answer {
	pipe := g.pipe.Load()
	if pipe == nil {
		return g.sendUnpipelined(ctx, e, cmd)
	}
	a := g.submit(ctx, e, pipe, cmd)
	// The pipeline was closed because of the demotion, not for good: another copy can be sent.
	if errors.Is(a.err, redis.ErrClosed) && g.demoted.Load() {
		a.err = errNotSent
	}
	return a
}

// sendUnpipelined is send for a command that does not come alone, where there is no pipeline. What
// nothing but the clock ends is written and read by its caller's goroutine.
func (g *engine) sendUnpipelined(ctx context.Context, e CallOptions, cmd *call) answer {
	if _, byTime := ctx.(*limit); !byTime || e.Avoid != anyRoute {
		return g.exec.process(ctx, g, e, cmd)
	}
	return g.exec.inside(func() answer { return answerTo(cmd, g.direct.Process(ctx, cmd)) })
}

// submit sends cmd through pipe and waits for its answer, or for ctx. If e has more
// patience with an engine that is busy, one that has answered nothing at all for as long as
// e's usual patience is given up before: a connection may be stuck.
//
// A busy engine will come to cmd. When many holds are renewed at once on a slow machine, a
// second copy of each, on a connection of its own, would make that slower still.
func (g *engine) submit(ctx context.Context, e CallOptions, pipe *pipeline, cmd *call) answer {
	queued := pipe.submit(ctx, cmd, g.underWay.Load())
	for {
		// Read before the wait: an answer to any command that comes during it shows that the engine is alive.
		seen := g.answers.Load()
		waiting, cancel := ctx, context.CancelFunc(func() {})
		if e.MaxPatience > e.Patience {
			waiting, cancel = context.WithTimeout(ctx, e.Patience)
		}
		err := queued.wait(waiting)
		silent := waiting.Err() != nil
		cancel()
		switch {
		case err == nil:
			g.answers.Add(1)
			return answer{value: cmd.Val()}
		case !silent:
			return answer{err: err}
		case ctx.Err() != nil:
			return answer{err: ctx.Err()}
		case g.answers.Load() == seen:
			return answer{err: lockerr.NoAnswerWithin(e.Patience)}
		}
	}
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
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.engines[node]
	if e == nil && !x.closed {
		// The read time-out alone ends the wait for a connection that is stuck: until then it keeps all behind it.
		timeout := x.Patience
		if own := node.Options().ReadTimeout; own > 0 {
			timeout = min(timeout, own)
		}
		e = &engine{
			exec:   x,
			node:   node,
			plain:  node.WithTimeout(timeout),
			direct: node.WithTimeout(timeout),
			server: serverOf(node),
			waits:  make(chan struct{}, mostConfirmers(node)),
		}
		e.direct.Options().ContextTimeoutEnabled = true // a copy: nothing else has seen them
		e.open()
		x.engines[node] = e
		x.dropDeparted()
	}
	return e
}

// dropDeparted ends the engines of nodes that have left the Cluster, in the background: no
// command goes to them from which it would show. mu is held.
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

// open gives an engine a pipeline, if there is to be one and it can be had. Plain commands do.
func (g *engine) open() {
	if !g.exec.Unpipelined {
		g.pipe.Store(openPipeline(g.plain))
	}
}

// demote ends the pipeline of an engine that a replica has answered: the address led to another
// server, or to a master that is none any more, when its connection was opened. go-redis closes
// a connection on which a write was refused, but that of a full-duplex pipeline goes back to the
// pool of pipelines. Until Redis writes again, commands take theirs from that pool one by one.
func (x *Executor) demote(g *engine) {
	x.mu.Lock()
	defer x.mu.Unlock()
	pipe := g.pipe.Load()
	// It never had one, or another command was before this one.
	if x.closed || pipe == nil {
		return
	}
	g.demoted.Store(true)
	g.pipe.Store(nil)
	x.goAside(func() {
		pipe.close()
		x.mu.Lock()
		defer x.mu.Unlock()
		g.ended = true
	})
}

// promote gives a demoted engine a pipeline again, when it is rid of the former one.
func (x *Executor) promote(g *engine) {
	x.mu.Lock()
	defer x.mu.Unlock()
	// Until it has ended, go-redis would return the pipeline that is being closed.
	if x.closed || !g.ended {
		return
	}
	if x.engines[g.node] == g { // else it has been dropped
		g.open()
		g.ended = false
		g.demoted.Store(false)
	}
}

// processDemoted sends cmd through a demoted engine.
func (x *Executor) processDemoted(ctx context.Context, g *engine, cmd *call) error {
	err := g.processApart(ctx, cmd)
	if err == nil {
		x.promote(g)
	}
	return err
}

// processApart sends cmd on a connection of the pool that go-redis keeps for pipelines.
func (g *engine) processApart(ctx context.Context, cmd *call) error {
	_, err := g.plain.Pipelined(ctx, func(p redis.Pipeliner) error { return p.Process(ctx, cmd) })
	return errorOf(cmd, err)
}

// drop ends an engine whose node is closed, or has left. Calls that have it go on until they fail, and are sent
// another way then. If the node comes back, the next command makes a new engine.
func (x *Executor) drop(closed *engine) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.engines[closed.node] == closed {
		delete(x.engines, closed.node)
		x.goAside(closed.close)
	}
}
