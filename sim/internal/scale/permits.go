package scale

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/linktest"
)

// Permits are processes whose goroutines wait for one permit each of a semaphore. The process that has all permits dies meanwhile,
// without a release.
type Permits struct {
	Processes int
	Waiters   int // goroutines of each
	Limit     int
	RoundTrip time.Duration
	Hold      time.Duration // how long each keeps its permit
}

// PermitsResult is the result of their measurement.
type PermitsResult struct {
	Permits
	Idle       float64       // scripts per second of a process that waits while nothing else happens
	Bytes      float64       // that a waiter takes
	Goroutines float64       // of a waiter, its own among them
	Blocked    time.Duration // from the death until the first waiter is served
	Served     time.Duration // from then until all are
	Scripts    float64       // for each permit, without those of the time in which nothing happens
	Most       int           // permits in use at once
}

// Run measures them, in the bubble of the caller.
func (p Permits) Run() (PermitsResult, error) {
	res := PermitsResult{Permits: p}
	before := memoryNow()
	w, err := newWorld(p.Processes+1, p.RoundTrip)
	if err != nil {
		return res, err
	}
	defer func() {
		w.close()
		time.Sleep(5 * time.Second) // for as long go-redis dials after Close
	}()
	ctx, over := context.WithCancel(context.Background())
	defer over()
	dies := w.processes[p.Processes]
	if _, err := dies.locks.Semaphore(name, p.Limit).AcquireN(ctx, p.Limit); err != nil {
		return res, err
	}
	u := &users{permits: p, world: w, over: over}
	began := w.scripts.Load()
	var all sync.WaitGroup
	for _, of := range w.processes[:p.Processes] {
		for range p.Waiters {
			all.Go(func() { u.one(ctx, of) })
		}
	}
	time.Sleep(settles)
	arrived := w.scripts.Load()
	time.Sleep(watched)
	idle := float64(w.scripts.Load()-arrived) / watched.Seconds()
	n := p.Processes * p.Waiters
	m := memoryNow().each(before, n)
	res.Idle, res.Bytes, res.Goroutines = idle/float64(p.Processes), m.bytes, m.goroutines

	dies.link.Refuse(time.Hour)
	dies.link.Cut(linktest.Reply, 0)
	died := time.Now()
	all.Wait()
	res.Blocked, res.Served, res.Most = u.first.Sub(died), time.Since(u.first), u.most
	res.Scripts = (float64(arrived-began) - idle*settles.Seconds() + float64(w.scripts.Load()-u.sent)) / float64(n)
	return res, u.failed
}

// users counts who is served.
type users struct {
	permits Permits
	world   *world
	over    context.CancelFunc

	mu          sync.Mutex // guards the rest
	first       time.Time  // when the first one was served
	sent        int64      // scripts until then
	inUse, most int
	failed      error
}

// one is one goroutine of a process.
func (u *users) one(ctx context.Context, p *process) {
	permit, err := p.locks.Semaphore(name, u.permits.Limit).Acquire(ctx)
	if err == nil {
		u.use(1)
		time.Sleep(u.permits.Hold)
		u.use(-1)
		err = permit.Release()
	}
	if err == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failed == nil {
		u.failed = fmt.Errorf("%v: %w", u.permits, err)
	}
	u.over()
}

// use counts a permit that is used from now on, or no longer.
func (u *users) use(more int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.first.IsZero() {
		u.first, u.sent = time.Now(), u.world.scripts.Load()
	}
	u.inUse += more
	u.most = max(u.most, u.inUse)
}
