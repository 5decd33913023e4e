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

	"github.com/relock-go/relock/internal/guard"
)

// An engine is in one of these states:
//
//	open     Commands that come together go by its current lane, through the pipeline of that; unpipelined, each on a
//	         connection of its own. One that comes alone goes directly.
//	dropped  It is in the executor's map no more, and is closed in the background.
//
//	engineAt --> open --drop: the node has left, or is closed; or Close of the executor--> dropped
//
// Callers, and goroutines of the executor, move it, under the mutex of the executor.
//
// Invariants:
//   - A node has one engine at most in the map, and nothing leads back to one that was dropped.
//   - Commands of one pipeline are sent in the order in which they were submitted. By other routes they have no
//     order (see late).
//   - One command at most goes directly. When it began no other was waited for.
//
// What can come late: a command that has got the engine just before it was dropped, or its lane just before that
// was closed. It is sent another way, at once (Executor.dispatch) or as the next copy (engine.on).

// engine is how commands get to one Redis process: by a lane, or directly if there is only one.
type engine struct {
	exec *Executor
	// node is the application's client of it.
	node *redis.Client
	// direct is a clone of it whose time-outs end with the context at the latest.
	direct *redis.Client

	lane   atomic.Pointer[lane] // the current one; it changes under the mutex of the executor
	shared *lane                // that of the application's pools
	lanes  map[*lane]bool       // of our own that are not closed; guarded by the executor
	fresh  atomic.Int64         // lanes that were opened since any has answered

	// undated says that connections have no deadlines. So nothing would end a read of a command that goes directly.
	undated bool
	// slow says that a command was not answered quickly. A command that goes directly cannot be
	// given up before its connection is, so none goes directly until a connection of the pool has answered quickly.
	slow atomic.Bool

	// underWay counts the commands that are waited for; the direct one is the only one when
	// it begins.
	underWay atomic.Int64
	// line is held while a command goes directly, and for good when the engine is closed.
	line sync.Mutex

	server *server

	// waits has room for as many scripts as may wait for replicas at a time. Each takes its room before it is sent.
	waits chan struct{}
	// confirmers are the connections that they go on; nil before the first, and after one that
	// went wrong. It is guarded by the executor.
	confirmers *confirmers

	// warmed is when a connection was last asked of the pool, to have one there, in nanoseconds. warming says that
	// it has not answered yet.
	warmed  atomic.Int64
	warming atomic.Bool
}

// send sends cmd and waits for its answer, or until its caller stops waiting.
//
// A command that comes alone goes directly: on a connection of the application's pool, which
// its caller's goroutine writes to and reads from. To wake those of the pipeline, and to be
// woken by them, takes as long again where system calls are dear. It cannot be given up before
// its time, so nothing else may end the wait. Only a first copy goes so, and only where Redis answers quickly: its
// connection is closed when its time is over, and nothing of the answer is left.
func (g *engine) send(c try, cmd *call) answer {
	alone := g.underWay.Add(1) == 1
	defer g.underWay.Add(-1)
	l := g.exec.laneOf(g, c.n)
	// With a context that may be cancelled this goroutine would be caught in a read that goes on after that.
	if bound, byTime := c.wait.(*limit); byTime && !g.undated && c.n == 1 && c.way.lane == nil && (alone || l.pipe == nil) {
		switch connected, first := g.connected(l); {
		case connected && l.pipe == nil:
			return g.exec.inside(func() answer { return g.sendDirectly(bound, l, cmd) })
		case connected && g.line.TryLock(): // else another command is there, or the engine is closed
			defer g.line.Unlock()
			if a := g.sendDirectly(bound, l, cmd); !unsent(a.err) || bound.Err() != nil { // else it is sent all the same
				return a
			}
			cmd = newCopy(c.ctx, cmd) // go-redis may have written an error into the first
		case first: // so that the next one finds a connection there
			if a := g.on(way{g.shared, false}, c, cmd); !unsent(a.err) || c.wait.Err() != nil {
				return a
			}
			cmd = newCopy(c.ctx, cmd)
		}
	}
	pooled := c.n > 1 && g.shared.rdb.PoolStats().IdleConns > 0
	switch {
	case c.way.lane != nil:
		return g.on(c.way, c, cmd)
	case c.n > 1 && c.n%2 == 1 && (c.n > 3 || l.own == nil || pooled):
		// No new connection may be had: one of those that there are, and the third copy not as the first.
		piped := g.shared.pipe != nil && (c.piped == (c.n%4 == 1) || !pooled)
		return g.on(way{g.shared, piped}, c, cmd)
	default:
		return g.on(way{l, l.pipe != nil}, c, cmd)
	}
}

// way is how a copy gets to Redis: by the pipeline of a lane, or on a connection of its pool to itself.
type way struct {
	lane  *lane
	piped bool
}

// sendDirectly is send for a command that comes alone.
func (g *engine) sendDirectly(ctx *limit, l *lane, cmd *call) answer {
	answers, began := l.answers.Load(), time.Now()
	a := answerTo(cmd, g.direct.Process(ctx, cmd))
	if took := time.Since(began); ctx.Err() != nil || isTimeout(a.err) || took > g.exec.Patience/2 {
		g.slow.Store(true)
		if a.err != nil {
			l.unanswered(answers)
		}
	}
	return a
}

// on sends cmd that way.
func (g *engine) on(w way, c try, cmd *call) (a answer) {
	l := w.lane
	if d := l.pace(c.patience); c.patience > 0 && d > c.patience {
		var cancel context.CancelFunc
		c.wait, cancel = g.exec.limits.within(c.ctx, c.e.atMost(c.ctx, d))
		defer cancel()
	}
	if w.piped {
		a = g.submit(c, l, cmd)
	} else {
		answers, began := l.answers.Load(), time.Now()
		a = g.settled(c, l, answers, began, g.exec.process(c, g.server, l.rdb, cmd))
	}
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
		// go-redis closes a connection on which a write was refused, but not that of a full-duplex pipeline.
		l.suspect.Store(true)
	case errors.Is(a.err, redis.ErrClosed) && (l.own != nil || g.lane.Load() != l):
		a.err = errNotSent // the lane was closed, not the client
	case unsent(a.err):
		g.exec.barred(g, l)
	}
	return a
}

// settled records on l how a command has ended that was sent at began, or that it was not answered in its time. One
// that was given up before that, because a context ended, does not make l suspect: what undoes it has to come behind it.
func (g *engine) settled(c try, l *lane, answers uint64, began time.Time, a answer) answer {
	switch {
	case a.pending != nil:
		if left := g.exec.Patience - time.Since(began); c.ctx.Err() != nil && left > 0 {
			time.AfterFunc(left, func() { l.unanswered(answers) })
		} else {
			l.unanswered(answers)
		}
		pending, c := a.pending, c // so that only a copy that is given up has c on the heap
		a.pending = func(ctx context.Context) answer {
			a := pending(ctx)
			if a.pending != nil {
				return a
			}
			return g.settled(c, l, answers, began, a)
		}
	case a.err == nil || Replied(a.err):
		g.answered(l, time.Since(began))
	case isTimeout(a.err):
		l.unanswered(answers)
	}
	return a
}

// submit sends cmd through the pipeline of l. One on which other commands are answered will come to cmd: it is waited
// for as long as that is so. When many holds are renewed at once on a slow machine, a second copy of each would make
// that slower still.
func (g *engine) submit(c try, l *lane, cmd *call) answer {
	began := time.Now()
	queued := l.pipe.submit(c.ctx, cmd, g.underWay.Load())
	wait, cancel := c.wait, context.CancelFunc(func() {})
	for {
		// Read before the wait: an answer to any command that comes during it shows that the lane is alive.
		answers := l.answers.Load()
		a := queued.answer(wait)
		cancel()
		if a.pending != nil && c.ctx.Err() == nil && c.patience > 0 && l.answers.Load() != answers {
			wait, cancel = g.exec.limits.within(c.ctx, c.patience)
			continue
		}
		if a.pending != nil {
			l.stuck.Go(func() { _ = queued.future.Wait() })
		}
		return g.settled(c, l, answers, began, a)
	}
}

// errorOf is the error of cmd, which was sent with others, whose first error is err: not
// everything that keeps all of them from being sent is told to each.
func errorOf(cmd *call, err error) error {
	if cmd.Val() == nil && cmd.Err() == nil {
		return err
	}
	return cmd.Err()
}

// connected reports whether the pool has a connection to spare for a command that goes directly: where they are in
// use, locks do not queue for one. If it has none at all one is opened. first: not in vain, because the pipeline
// would have to dial as well. But if that has answered, one is opened beside it, for a later command: new
// connections may be refused, or never come about.
func (g *engine) connected(l *lane) (connected, first bool) {
	s := g.shared.rdb.PoolStats()
	switch {
	case s.PendingRequests > 0:
		return false, false
	case g.slow.Load():
	case s.TotalConns > 0:
		return s.IdleConns > 0, false
	case l == g.shared && l.answers.Load() == 0:
		return false, true
	}
	g.warm()
	return false, false
}

// warmPause is how long a pool is left alone after a connection was asked of it.
const warmPause = time.Second

// warm asks a connection of the pool, which opens it if need be, and finds out whether it answers quickly.
func (g *engine) warm() {
	// One of those that come at the same time does it.
	last, now := g.warmed.Load(), time.Now().UnixNano()
	if now-last < int64(warmPause) || g.warming.Load() || !g.warmed.CompareAndSwap(last, now) {
		return
	}
	g.warming.Store(true)
	g.exec.aside(func() {
		defer g.warming.Store(false)
		began := time.Now()
		err := g.shared.rdb.Process(g.exec.life, &call{Cmd: redis.NewCmd(g.exec.life, "ping")})
		switch {
		case errors.Is(err, redis.ErrClosed):
			g.exec.drop(g)
		case (err == nil || Replied(err)) && time.Since(began) <= g.exec.Patience/2: // it may not be allowed to ping
			g.slow.Store(false)
		}
	})
}

// answerTo is the answer to cmd, which has ended with err.
func answerTo(cmd *call, err error) answer {
	if err == nil {
		return answer{value: cmd.Val()}
	}
	if err = noNil(err); !cmd.asked.Load() && judge(err) == unknown { // as a Limiter's, or that of a TLS handshake
		err = fmt.Errorf("%w: %w", errNotSent, err)
	}
	return answer{err: err}
}

// close ends the lanes, and waits for the command on the line; no other gets on it any more. It blocks for as
// long as that command does, which its time-outs bound, and for as long as go-redis takes to close.
func (g *engine) close() {
	var err error
	defer guard.Recover(&err)
	g.exec.closeConfirmers(g)
	g.exec.mu.Lock()
	lanes := slices.Collect(maps.Keys(g.lanes))
	clear(g.lanes)
	g.exec.mu.Unlock()
	for _, l := range lanes {
		l.close()
	}
	g.line.Lock()
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
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.engines[node]
	if e == nil && !x.closed {
		e = &engine{
			exec:   x,
			node:   node,
			direct: x.cloneOf(node),
			shared: x.openLane(x.cloneOf(node)),
			lanes:  make(map[*lane]bool),
			server: serverOf(node),
			waits:  make(chan struct{}, mostConfirmers(node)),
		}
		e.direct.Options().ContextTimeoutEnabled = true
		e.lane.Store(e.shared)
		e.undated = x.readTimeout(node) < 0
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
