package scale

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/linktest"
)

// Outage is processes that all lose Redis at once. One goroutine of each uses the name that they share.
type Outage struct {
	Processes int
	Own       int // how many of them also hold a name of their own
	RoundTrip time.Duration
	Hold      time.Duration // of the name that they share
	Lasts     time.Duration
	Silent    bool // nothing arrives until its end, without an error; otherwise connections break, and new ones are refused
}

// OutageResult is the result of an outage, from its beginning until five seconds after all were served.
type OutageResult struct {
	Outage
	Calm  counted       // the most in a second, before
	Worst counted       // since then
	Round time.Duration // from one moment on until each process was served: what is usual
	First time.Duration // from the end of the outage until one was served
	Last  time.Duration // until each was
	Lost  int           // names of their own
}

// Run measures the outage, in the bubble of the caller.
func (o Outage) Run() (OutageResult, error) {
	res := OutageResult{Outage: o}
	w, err := newWorld(o.Processes, o.RoundTrip)
	if err != nil {
		return res, err
	}
	defer w.close()
	var users sync.WaitGroup
	defer users.Wait()
	ctx, over := context.WithCancel(context.Background())
	defer over()
	r := newRollCall(o.Processes)
	var owns []context.Context
	for i, p := range w.processes {
		if i < o.Own {
			own := p.locks.Mutex(fmt.Sprintf("own:%d", i))
			if err := own.Lock(ctx); err != nil {
				return res, err
			}
			owns = append(owns, own.Context(context.Background()))
		}
		users.Go(func() { o.use(ctx, r, i, p) })
	}
	if _, err = r.all(); err != nil {
		return res, err
	}
	calm := w.watch()
	time.Sleep(5 * time.Second)
	r.again()
	if res.Round, err = r.all(); err != nil {
		return res, err
	}
	res.Calm = calm()

	worst := w.watch()
	o.begin(w)
	time.Sleep(o.Lasts)
	r.again()
	if res.Last, err = r.all(); err != nil {
		return res, err
	}
	res.First = r.first
	time.Sleep(5 * time.Second)
	res.Worst = worst()
	for _, own := range owns {
		if own.Err() != nil {
			res.Lost++
		}
	}
	return res, nil
}

// begin disconnects all processes from Redis, for the duration of the outage.
func (o Outage) begin(w *world) {
	for _, p := range w.processes {
		if o.Silent {
			p.link.Freeze(o.Lasts)
			continue
		}
		p.link.Refuse(o.Lasts)
		p.link.Cut(linktest.Reply, 0)
	}
}

// use makes a process use the name that all share. In an outage calls may fail.
func (o Outage) use(ctx context.Context, r *rollCall, number int, p *process) {
	m := p.locks.Mutex(name)
	for ctx.Err() == nil {
		if m.Lock(ctx) != nil {
			time.Sleep(time.Second) // as a program does after an error
			continue
		}
		r.here(number)
		time.Sleep(o.Hold)
		_ = m.Unlock()
	}
}

// rollCall waits until each process has been served.
type rollCall struct {
	wanted int

	mu     sync.Mutex // guards the rest
	began  time.Time
	served map[int]bool
	first  time.Duration
	done   chan time.Duration
}

func newRollCall(wanted int) *rollCall {
	r := &rollCall{wanted: wanted}
	r.again()
	return r
}

// again starts it again.
func (r *rollCall) again() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began, r.served, r.done = time.Now(), make(map[int]bool), make(chan time.Duration, 1)
}

// here records that a process was served.
func (r *rollCall) here(number int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.served[number] {
		return
	}
	r.served[number] = true
	if len(r.served) == 1 {
		r.first = time.Since(r.began)
	}
	if len(r.served) == r.wanted {
		r.done <- time.Since(r.began)
	}
}

// patience is how long all may take to be served.
const patience = 30 * time.Minute

// all waits until each process was served, and returns how long that took.
func (r *rollCall) all() (time.Duration, error) {
	r.mu.Lock()
	done := r.done
	r.mu.Unlock()
	select {
	case took := <-done:
		return took, nil
	case <-time.After(patience):
		return 0, fmt.Errorf("some were not served within %v", patience)
	}
}
