package redisexec

import (
	"context"
	"runtime"
	"sync"
)

// crowd has the callers of a pipeline submit for each other when they are many. go-redis writes as soon as
// it finds a command, which is a system call for one or two of them. But answers come many at a time, and
// the callers that they wake run one after the other: so each lets the others go first, and the first to
// run again submits what all have brought.
//
// No one waits for another: each caller runs again after its yield, and finds its command submitted, or submits
// all. So no command is left behind by a caller that has gone. The order is that in which they were brought.
type crowd struct {
	mu      sync.Mutex
	brought []*call // that are not submitted yet
}

// fewest is how many callers have to wait for answers, or be about to, to be a crowd. Most is how many may,
// so that no one waits for room in the pipeline on behalf of others.
const fewest, most = 8, window / 2

// submit has cmd submitted to p with what others bring at the same time.
func (c *crowd) submit(ctx context.Context, p *pipeline, cmd *call) queued {
	cmd.ctx = ctx
	c.mu.Lock()
	c.brought = append(c.brought, cmd)
	c.mu.Unlock()
	runtime.Gosched()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !cmd.submitted {
		c.submitAll(p)
	}
	return cmd.queued
}

// submitAll submits what has been brought, first come first. mu is held.
func (c *crowd) submitAll(p *pipeline) {
	all := c.brought
	c.brought = all[:0]
	for i, cmd := range all {
		all[i] = nil
		cmd.submitted = true
		cmd.queued = p.submitAlone(cmd.ctx, cmd)
	}
}
