package relock

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// engine is a pipeline to one Redis process.
type engine struct {
	// plain is the client with our time-outs: a clone that shares the pools, must not be
	// closed, and has none of the original's process hooks.
	plain *redis.Client
	pipe  *redis.AutoPipeliner // nil if there is none to be had

	// answers counts what Redis has answered through the pipe.
	answers atomic.Uint64

	// patient are clones for scripts that replicas confirm, by their read timeout. They are
	// guarded by the executor.
	patient map[time.Duration]*redis.Client
	// waits has room for as many scripts as may wait for replicas at a time: half of the
	// application's pool, so that a replica that is down does not stop the rest.
	waits chan struct{}
}

// pipelining is how commands are sent: at once while few are under way, which is what a
// hand-over needs. With 64 and more unanswered ones the writer waits a moment for others to
// come along; a system call for every second command was a third of a busy client's time.
func pipelining() *redis.AutoPipelineOptions {
	return &redis.AutoPipelineOptions{
		FullDuplex:       true,
		FullDuplexWindow: 8192, // the most that may be unanswered; go-redis takes the 64 from it
		MaxFlushDelay:    100 * time.Microsecond,
	}
}

// submit sends cmd through the pipeline and waits for its answer, or for ctx. If e has more
// patience with an engine that is busy, one that has answered nothing at all for as long as
// e's usual patience is given up before: a connection may be stuck.
//
// A busy engine will come to cmd. When many holds are renewed at once on a slow machine, a
// second copy of each, on a connection of its own, would make that slower still.
func (g *engine) submit(ctx context.Context, e effort, cmd call) answer {
	future := g.pipe.Submit(ctx, cmd)
	for {
		seen := g.answers.Load()
		waiting, cancel := ctx, context.CancelFunc(func() {})
		if e.most > e.patience {
			waiting, cancel = context.WithTimeout(ctx, e.patience)
		}
		err := future.WaitContext(waiting)
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
			return answer{err: fmt.Errorf("%w within %v", errNoAnswer, e.patience)}
		}
	}
}

// engineOf returns the engine for the master of key, nil if only the client itself can
// route the command.
func (x *executor) engineOf(ctx context.Context, key string) *engine {
	if _, cluster := x.rdb.(*redis.ClusterClient); cluster && !x.mapped.Load() {
		return nil
	}
	node, err := x.masterOf(ctx, key)
	if err != nil {
		return nil
	}
	return x.engineAt(node)
}

// engineAt returns the engine of a node, which it makes at the first call.
func (x *executor) engineAt(node *redis.Client) *engine {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.engines[node]
	if e == nil && !x.closed {
		timeout := x.patience
		if own := node.Options().ReadTimeout; own > 0 {
			timeout = min(timeout, own)
		}
		e = &engine{
			plain:   node.WithTimeout(timeout),
			patient: make(map[time.Duration]*redis.Client),
			waits:   make(chan struct{}, max(1, node.Options().PoolSize/2)),
		}
		// An error means that there is no pipeline to be had: plain commands do.
		e.pipe, _ = e.plain.AsyncAutoPipelineWithOptions(pipelining())
		x.engines[node] = e
	}
	return e
}

// drop ends an engine whose node is closed.
func (x *executor) drop(closed *engine) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for node, e := range x.engines {
		if e == closed {
			delete(x.engines, node)
			if e.pipe != nil {
				x.asides.Go(func() { _ = e.pipe.Close() })
			}
		}
	}
}
