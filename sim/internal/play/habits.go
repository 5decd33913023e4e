package play

import (
	"context"
	"time"

	"github.com/relock-go/relock/chaos/player"
)

// Now is the time of events.
func (c *process) Now() int64 { return c.journal.now() }

// Pause returns how long a player rests between two uses. After a short pause, the next use may follow at once.
func (c *process) Pause(d player.Drawer) time.Duration {
	if c.plan.Busy && d.Chance(0.4) || c.plan.Crowd && c.rush() {
		return d.Between(0, 10*time.Millisecond)
	}
	return d.Between(0, c.plan.Think)
}

// rush reports whether all goroutines of a crowd want the lock at once: for one second in six, which may differ between
// processes.
func (c *process) rush() bool {
	return (time.Since(c.journal.began)+time.Duration(c.place)*c.plan.Apart)%(6*time.Second) < time.Second
}

// Length returns how long a hold lasts.
func (c *process) Length(d player.Drawer) time.Duration {
	switch {
	case d.Chance(c.plan.Long):
		return d.Between(c.plan.TTL/2, 3*c.plan.TTL)
	case c.plan.Crowd && d.Chance(0.15):
		return d.Between(20*time.Millisecond, c.plan.TTL/3)
	case c.plan.Busy:
		return d.Between(0, 20*time.Millisecond)
	default:
		return d.Between(0, 300*time.Millisecond)
	}
}

// Choose chooses the names of one use.
func (c *process) Choose(d player.Drawer) []string {
	if d.Chance(c.plan.Multi) {
		return c.plan.Names[:2]
	}
	i := d.IntN(len(c.plan.Names))
	if c.plan.Hot && d.Chance(0.9) {
		i = c.plan.hot()
	}
	return c.plan.Names[i : i+1]
}

// Write writes to the resource of the locks.
func (c *process) Write(d player.Drawer, lock string, token int64, _ string) (accepted bool, err error) {
	return c.store.write(lock, token, d.Between(0, 2*c.plan.Latency)), nil
}

// Trust watches a context, which is valid at every time before its end.
func (c *process) Trust(ctx context.Context) (last func() int64) {
	if c.jumps || ctx.Err() != nil { // while the process does not run, its clock stands still
		return func() int64 { return 0 }
	}
	ended := make(chan int64, 1)
	stop := context.AfterFunc(ctx, func() { ended <- c.Now() - 1 })
	return func() int64 {
		now := c.Now()
		if !stop() {
			return <-ended
		}
		return now
	}
}
