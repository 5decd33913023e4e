package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/history"
	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/internal/redistest"
)

// round is one run of a scenario: client processes use locks while the director does
// harm, then in calm, then everything is closed and judged.
type round struct {
	*stage
	scenario *scenario
	cast     cast
	work     worker.Workload
	d        *deployment.Deployment
	number   int // in the scenario
	locks    []string
	sided    []string // the read-write locks
	began    int64

	mu        sync.Mutex // guards the rest
	events    []history.Event
	holders   map[string]int // the process that has told last that it holds a lock, by lock
	processes []*process     // all that were ever started
	faults    int            // that hit
	severed   []severed
	breaches  []string // of the scenario's own promises
	failed    error    // what went wrong with the stage itself
}

func newRound(s *stage, sc *scenario, c cast, d *deployment.Deployment, number int) *round {
	r := &round{stage: s, scenario: sc, cast: c, work: c.work, d: d, number: number, began: history.Now(), holders: map[string]int{}}
	r.record(history.Event{At: r.began, Kind: history.Began})
	r.work.Counts = !c.splitBrain // where data is lost, Redis may say anything
	// The first two have a common tag, for a MultiMutex.
	for i := range c.work.Names {
		name := fmt.Sprintf("{r%d}:%c", s.rounds, 'a'+i)
		if i >= 2 {
			name = fmt.Sprintf("r%d-%c", s.rounds, 'a'+i)
		}
		r.locks = append(r.locks, name)
	}
	if c.work.Sides > 0 {
		r.sided = []string{fmt.Sprintf("{r%d}:rw", s.rounds), fmt.Sprintf("r%d-rw", s.rounds)}
	}
	return r
}

// record keeps an event of a client process or of the director.
func (r *round) record(e history.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	switch e.Kind {
	case history.Held:
		r.holders[e.Lock] = e.Process
	case history.UnlockCall, history.Lost:
		delete(r.holders, e.Lock)
	}
}

// holds reports whether a process holds a lock, as far as it has told.
func (r *round) holds(p *process) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, holder := range r.holders {
		if holder == p.number {
			return true
		}
	}
	return false
}

// tell records an event of the director.
func (r *round) tell(e history.Event) {
	e.At = history.Now()
	r.record(e)
}

// begun waits for the first hold.
func (r *round) begun(ctx context.Context) {
	for end := time.Now().Add(10 * time.Second); ctx.Err() == nil && !r.held() && time.Now().Before(end); {
		wait(ctx, 5*time.Millisecond)
	}
}

// held reports whether a process holds a lock, as far as they have told.
func (r *round) held() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.holders) > 0
}

// logf tells what the director does, if somebody wants to know.
func (r *round) logf(format string, args ...any) {
	r.stage.logf("    %s  %s", r.clock(history.Now()), fmt.Sprintf(format, args...))
}

// clock says a time as the time since the beginning of the round.
func (r *round) clock(at int64) string {
	return fmt.Sprintf("%+9.3fs", time.Duration(at-r.began).Seconds())
}

// breach notes that a promise of the scenario's own was not kept.
func (r *round) breach(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.breaches = append(r.breaches, fmt.Sprintf(format, args...))
}

// run plays the round.
func (r *round) run(ctx context.Context, duration time.Duration) error {
	defer r.end()
	defer r.beat()()
	for range r.work.Processes {
		if err := r.spawn(); err != nil {
			return err
		}
	}
	r.direct(ctx, duration)
	if err := r.broken(); err != nil {
		return err
	}
	r.calm(ctx)
	for _, p := range r.alive() {
		p.stop()
	}
	for _, p := range r.processes {
		// With time for it to look for what is left.
		if err := p.await(worker.Drain + 25*time.Second); err != nil {
			r.tell(history.Event{Process: p.number, Kind: history.Left, Note: err.Error()})
		}
	}
	if err := r.sweep(ctx); err != nil {
		return err
	}
	return errors.Join(r.broken(), ctx.Err())
}

// beat tells that the director runs, as long as it does, until stop is called: all traffic
// runs through its relays.
func (r *round) beat() (stop func()) {
	over := make(chan struct{})
	var beating sync.WaitGroup
	beating.Go(func() {
		ticker := time.NewTicker(history.Beat)
		defer ticker.Stop()
		for {
			r.tell(history.Event{Kind: history.Alive})
			select {
			case <-ticker.C:
			case <-over:
				return
			}
		}
	})
	return func() {
		close(over)
		beating.Wait()
	}
}

// end leaves nothing of the round running.
func (r *round) end() {
	for _, p := range r.processes {
		if p.alive() {
			p.kill()
		}
		p.closeRelays()
	}
}

func (r *round) broken() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// spawn starts another client process.
func (r *round) spawn() error {
	p, err := startProcess(worker.Config{
		Process:  len(r.processes) + 1,
		Seed:     r.seed + uint64(r.number),
		Kind:     r.d.Kind,
		Addrs:    r.d.Entrances(),
		Resource: r.protected(),
		Locks:    r.locks,
		Sided:    r.sided,
		Work:     r.work,
	}, r.d.Reached(), r.record)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes = append(r.processes, p)
	return nil
}

// protected is where what the locks protect is in this round, "" if nothing is.
func (r *round) protected() string {
	if len(r.resources) == 0 {
		return ""
	}
	return r.resources[r.rounds%len(r.resources)].URL
}

// alive are the processes that run.
func (r *round) alive() []*process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.processes), func(p *process) bool { return !p.alive() })
}

// calm lets the processes go on without a fault for so long that whatever was orphaned has
// run out, and whoever waits has been served.
func (r *round) calm(ctx context.Context) {
	r.logf("calm")
	select {
	case <-ctx.Done():
	case <-time.After(2*r.work.TTL + r.work.Poll + slack):
	}
}

// sweep looks for keys that were left, when every lease has run out.
func (r *round) sweep(ctx context.Context) error {
	deadline := time.Now().Add(r.work.TTL + slack)
	for {
		keys, err := r.d.LockKeys(ctx)
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			r.tell(history.Event{Kind: history.Left, Note: "keys: " + strings.Join(keys, " ")})
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// relay returns the relay of p to the server.
func (r *round) relay(p *process, s *redistest.Server) *redistest.Relay { return p.relays[s.Addr] }
