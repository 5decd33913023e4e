package stage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/relock-go/relock/chaos/internal/random"
)

// direct injects faults, one after the other in each lane, for the duration. While none has hit, it injects some more.
func (r *round) direct(ctx context.Context, duration time.Duration) {
	r.begun(ctx)
	end := time.Now().Add(duration)
	lanes := max(1, r.setup.Lanes)
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			hits, more := 0, extraActs
			for i := 1 + lane; ctx.Err() == nil && r.broken() == nil; i += lanes {
				if !time.Now().Before(end) {
					if more--; more < 0 || hits > 0 {
						return
					}
				}
				hits += r.perform(ctx, i, end)
			}
		})
	}
	all.Wait()
}

// extraActs is how often a lane without a hit tries again after the duration.
const extraActs = 10

// begun waits for the first hold.
func (r *round) begun(ctx context.Context) {
	for end := time.Now().Add(10 * time.Second); ctx.Err() == nil && !r.journal.held() && time.Now().Before(end); {
		wait(ctx, 5*time.Millisecond)
	}
}

// perform performs the ith act, and returns its number of hits.
func (r *round) perform(ctx context.Context, i int, end time.Time) int {
	c := r.draw(i)
	wait(ctx, min(c.pause, time.Until(end)))
	a := &Act{Context: ctx, Deployment: r.deployment, Work: r.workload(), Rand: c.rand, round: r, number: i}
	if err := c.fault.Inject(a); err != nil && ctx.Err() == nil {
		r.mu.Lock()
		r.failed = errors.Join(r.failed, fmt.Errorf("fault %d, %s: %w", i, c.fault.Name, err))
		r.mu.Unlock()
	}
	if a.hits == 0 {
		a.Logf("%s: met nobody", c.fault.Name)
	}
	return a.hits
}

// cue has the random choices for one act.
type cue struct {
	fault Fault
	pause time.Duration // before it
	rand  *rand.Rand    // for the rest
}

// draw returns the cue of the ith act, which depends only on the seed.
func (r *round) draw(i int) cue {
	x := random.New(r.stage.seed, r.plan.Number, uint64(r.number), uint64(i))
	c := cue{fault: r.setup.Faults[x.IntN(len(r.setup.Faults))], rand: x}
	if i%9 == 0 { // enough time for all effects to end
		c.pause = 2*r.work.TTL + r.work.Poll
	} else {
		c.pause = 20*time.Millisecond + time.Duration(x.Int64N(int64(250*time.Millisecond)))
	}
	return c
}

// wait lets d pass, or less if ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
