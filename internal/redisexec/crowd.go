package redisexec

import (
	"context"
	"runtime"
	"sync"
)

// crowd makes many callers of a pipeline submit commands for each other. go-redis writes as soon as it finds a command, so one
// system call would write only one or two commands. But many answers arrive together, and the callers that they wake run one
// after the other. So each caller yields, and the first one to run again submits the commands of all.
//
// No caller waits for another: after its yield it finds its command submitted, or submits all. So the command of a caller that
// has gone is not left behind. The commands keep the order in which they were added.
type crowd struct {
	mu      sync.Mutex
	brought []*call // that are not submitted yet
}

// fewest is the least number of callers that wait for answers, or are about to, for which they submit together. Most is the
// largest, so that no caller waits for room in the pipeline on behalf of others.
const fewest, most = 8, window / 2

// submit submits cmd to p, together with the commands of other callers at the same time.
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

// submitAll submits the added commands in their order. mu is held.
func (c *crowd) submitAll(p *pipeline) {
	all := c.brought
	c.brought = all[:0]
	for i, cmd := range all {
		all[i] = nil
		cmd.submitted = true
		cmd.queued = p.submitAlone(cmd.ctx, cmd)
	}
}
