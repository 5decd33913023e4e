package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/relock-go/relock/chaos/internal/history"
	"github.com/relock-go/relock/chaos/internal/random"
	"github.com/relock-go/relock/internal/redistest"
)

// fault is one kind of harm.
type fault struct {
	name string

	// inject does the harm, waits until it has hit, and repairs what does not heal by
	// itself. It calls act.hit when it has hit.
	inject func(*act) error

	// single says that it is for a server without replicas, which would take over, or not
	// let it be done.
	single bool
}

// act is one injection of a fault. Everything that is random about it comes from r, which
// depends on the seed and on the number of the act alone.
type act struct {
	*round
	context.Context
	op   int
	r    *rand.Rand
	hits int
}

// direct injects faults, one after the other in each lane: for the duration, and then some
// more while none has hit.
func (r *round) direct(ctx context.Context, duration time.Duration) {
	r.begun(ctx)
	end := time.Now().Add(duration)
	lanes := max(1, r.cast.lanes)
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

// extraActs is how often a lane without a hit tries on when the duration is over.
const extraActs = 10

// perform is the ith act. It returns how often it has hit.
func (r *round) perform(ctx context.Context, i int, end time.Time) int {
	c := r.draw(i)
	wait(ctx, min(c.pause, time.Until(end)))
	a := &act{round: r, Context: ctx, op: i, r: c.r}
	if err := c.fault.inject(a); err != nil && ctx.Err() == nil {
		r.mu.Lock()
		r.failed = errors.Join(r.failed, fmt.Errorf("fault %d, %s: %w", i, c.fault.name, err))
		r.mu.Unlock()
	}
	if a.hits == 0 {
		r.logf("fault %d: %s: met nobody", i, c.fault.name)
	}
	return a.hits
}

// cue is what the seed says about one act.
type cue struct {
	fault fault
	pause time.Duration // before it
	r     *rand.Rand    // for the rest
}

// draw is what happens at the ith act: a matter of the seed alone.
func (r *round) draw(i int) cue {
	x := random.New(r.seed, uint64(r.scenario.number), uint64(r.number), uint64(i))
	c := cue{fault: r.cast.faults[x.IntN(len(r.cast.faults))], r: x}
	if i%9 == 0 { // time enough for everything to come to rest
		c.pause = 2*r.work.TTL + r.work.Poll
	} else {
		c.pause = 20*time.Millisecond + time.Duration(x.Int64N(int64(250*time.Millisecond)))
	}
	return c
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// begin records that the fault is in force from now on.
func (a *act) begin(format string, args ...any) {
	note := fmt.Sprintf(format, args...)
	a.logf("fault %d: %s", a.op, note)
	a.tell(history.Event{Op: a.op, Kind: history.FaultBegin, Note: note})
}

// end records that it is not any more.
func (a *act) end() { a.tell(history.Event{Op: a.op, Kind: history.FaultEnd}) }

// disturb records a fault that keeps nobody waiting for long.
func (a *act) disturb(format string, args ...any) {
	note := fmt.Sprintf(format, args...)
	a.logf("fault %d: %s", a.op, note)
	a.tell(history.Event{Op: a.op, Kind: history.Disturbed, Note: note})
}

// loseData records that the deployment may have lost or forked data from now on.
func (a *act) loseData() { a.tell(history.Event{Op: a.op, Kind: history.DataLoss}) }

// hit counts the fault: it has had its effect.
func (a *act) hit() {
	a.hits++
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults++
}

// between returns a random duration.
func (a *act) between(least, most time.Duration) time.Duration {
	return least + time.Duration(a.r.Int64N(int64(most-least)+1))
}

// part is a random duration around a share of the TTL.
func (a *act) part(share float64) time.Duration {
	d := time.Duration(share * float64(a.work.TTL))
	return a.between(d*3/4, d)
}

// lasts lets d pass.
func (a *act) lasts(d time.Duration) { wait(a, d) }

// victim chooses a process.
func (a *act) victim() *process {
	alive := a.alive()
	return alive[a.r.IntN(len(alive))]
}

// holder chooses a process that holds a lock, if there is one soon.
func (a *act) holder() *process { return a.soon(true) }

// waiter chooses a process that holds no lock: where each does nothing but lock, it waits.
func (a *act) waiter() *process { return a.soon(false) }

// soon chooses a process that holds a lock, or does not, if there is one soon.
func (a *act) soon(holds bool) *process {
	drawn := a.victim()
	for range 100 {
		for _, p := range a.alive() {
			if a.holds(p) == holds {
				return p
			}
		}
		a.lasts(5 * time.Millisecond)
	}
	return drawn
}

// lock chooses a lock.
func (a *act) lock() string {
	all := slices.Concat(a.locks, a.sided)
	return all[a.r.IntN(len(all))]
}

// master is the server that keeps a lock chosen at random.
func (a *act) master() (*redistest.Server, error) { return a.d.Master(a, a.lock()) }

// do sends one command to a server, past the relays.
func (a *act) do(s *redistest.Server, args ...any) error { return a.d.Do(a, s, args...) }

// meets waits until one of the rules has caught a command, for a while.
func (a *act) meets(rules ...*redistest.Rule) bool {
	ctx, cancel := context.WithTimeout(a, a.work.TTL)
	defer cancel()
	caught := make(chan bool, len(rules))
	for _, rule := range rules {
		defer rule.Remove()
		go func() {
			select {
			case <-rule.Caught():
				caught <- true
			case <-ctx.Done():
				caught <- false
			}
		}()
	}
	for range rules {
		if <-caught {
			a.hit()
			return true
		}
	}
	return false
}
