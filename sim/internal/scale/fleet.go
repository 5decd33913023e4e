package scale

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/relock-go/relock/bench/stat"
)

// name is the name that all share.
const name = "orders:42"

// Fleet is processes whose goroutines all lock one name, again and again.
type Fleet struct {
	Processes int
	Waiters   int           // goroutines of each
	RoundTrip time.Duration // to Redis and back
	Hold      time.Duration // how long each hold lasts
	Rounds    int           // how often each waiter is served during the measurement, on average
}

func (f Fleet) waiters() int { return f.Processes * f.Waiters }

// FleetResult is the result of the measurement of a fleet.
type FleetResult struct {
	Fleet
	Arrival    float64 // commands of a process until all its waiters wait, including the commands that set up connections
	Idle       float64 // commands per second of a process that waits while nothing else happens
	Bytes      float64 // that a waiter takes
	Goroutines float64 // of a waiter, its own among them
	Rate       float64 // holds per second
	Commands   float64 // for each hold
	Mean       time.Duration
	P50        time.Duration
	P99        time.Duration
	Max        time.Duration
	Jain       float64 // over processes
}

// settles is how long all waiters have to enter the line, and watched how long they wait there while nothing else happens.
const (
	settles = 10 * time.Second
	watched = 10 * time.Second
)

// Run measures the fleet, in the bubble of the caller.
func (f Fleet) Run() (FleetResult, error) {
	res := FleetResult{Fleet: f}
	before := memoryNow()
	w, err := newWorld(f.Processes+1, f.RoundTrip)
	if err != nil {
		return res, err
	}
	defer w.close()
	ctx, over := context.WithCancel(context.Background())
	defer over()
	keeper := w.processes[f.Processes].locks.Mutex(name)
	if err := keeper.Lock(ctx); err != nil {
		return res, err
	}
	r := &race{fleet: f, world: w, over: over, counts: make([]int, f.Processes)}
	began := w.commands.Load()
	var all sync.WaitGroup
	for i, p := range w.processes[:f.Processes] {
		for range f.Waiters {
			all.Go(func() { r.waiter(ctx, i, p) })
		}
	}
	time.Sleep(settles)
	arrived := w.commands.Load()
	time.Sleep(watched)
	res.Idle = float64(w.commands.Load()-arrived) / watched.Seconds() / float64(f.Processes)
	res.Arrival = float64(arrived-began)/float64(f.Processes) - res.Idle*settles.Seconds()
	m := memoryNow().each(before, f.waiters())
	res.Bytes, res.Goroutines = m.bytes, m.goroutines
	if err := keeper.Unlock(); err != nil {
		return res, err
	}
	all.Wait()
	if r.failed == nil {
		r.judge(&res)
	}
	return res, r.failed
}

// race counts who is served.
type race struct {
	fleet Fleet
	world *world
	over  context.CancelFunc

	mu     sync.Mutex // guards the rest
	total  int
	from   time.Time       // when it began to be measured
	until  time.Time       // and ended
	counts []int           // of holds between, of each process
	waits  []time.Duration // for these
	sent   int64           // commands between
	failed error
}

// waiter is one goroutine of a process.
func (r *race) waiter(ctx context.Context, number int, p *process) {
	m := p.locks.Mutex(name)
	for {
		began := time.Now()
		if err := m.Lock(ctx); err != nil {
			if ctx.Err() == nil {
				r.fail(err)
			}
			return
		}
		r.served(number, time.Since(began))
		time.Sleep(r.fleet.Hold)
		if err := m.Unlock(); err != nil {
			r.fail(err)
			return
		}
	}
}

func (r *race) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil {
		r.failed = fmt.Errorf("%+v: %w", r.fleet, err)
	}
	r.over()
}

// served counts a hold. The first round is not measured, because its waiters have waited for the keeper.
func (r *race) served(number int, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total++
	n := r.fleet.waiters()
	switch {
	case r.total == n:
		r.from, r.sent = time.Now(), r.world.commands.Load()
	case r.total > n && r.until.IsZero():
		r.counts[number]++
		r.waits = append(r.waits, wait)
		if r.total == n*(1+r.fleet.Rounds) {
			r.until, r.sent = time.Now(), r.world.commands.Load()-r.sent
			r.over()
		}
	}
}

// judge returns the result.
func (r *race) judge(res *FleetResult) {
	slices.Sort(r.waits)
	sum := time.Duration(0)
	for _, wait := range r.waits {
		sum += wait
	}
	holds := len(r.waits)
	res.Rate = float64(holds) / r.until.Sub(r.from).Seconds()
	res.Commands = float64(r.sent) / float64(holds)
	res.Mean = sum / time.Duration(holds)
	res.P50, res.P99, res.Max = stat.Quantile(r.waits, 0.5), stat.Quantile(r.waits, 0.99), r.waits[holds-1]
	res.Jain = stat.Jain(r.counts)
}
