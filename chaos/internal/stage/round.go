package stage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/worker"
)

// round is one run of a plan: client processes use locks while the director injects faults,
// then in calm, then everything is closed and judged.
type round struct {
	stage      *Stage
	plan       *Plan
	setup      Setup
	deployment *deployment.Deployment
	number     int      // in the plan
	locks      []string // their names
	sided      []string // those of the read-write locks
	semaphores []string
	journal    *journal

	mu        sync.Mutex      // guards the rest
	work      worker.Workload // of the setup, with changes of the round; only the limit changes later
	processes []*Process      // all that were ever started
	numbered  int             // the number of the last one: several faults may each start one at once
	hits      int             // of faults
	outages   []Outage
	breaches  []string // of the plan's own promises, noticed by its faults
	failed    error    // a failure of the stage itself
}

func newRound(s *Stage, p *Plan, setup Setup, d *deployment.Deployment, number int) *round {
	r := &round{stage: s, plan: p, setup: setup, work: setup.Work, deployment: d, number: number, journal: newJournal()}
	r.work.Counts = !setup.SplitBrain // after a loss of data, counts on Redis mean nothing
	// The first two have a common tag, for a MultiMutex.
	for i := range r.work.Names {
		name := fmt.Sprintf("{r%d}:%c", s.rounds, 'a'+i)
		if i >= 2 {
			name = fmt.Sprintf("r%d-%c", s.rounds, 'a'+i)
		}
		r.locks = append(r.locks, name)
	}
	if r.work.Sides > 0 {
		r.sided = []string{fmt.Sprintf("{r%d}:rw", s.rounds), fmt.Sprintf("r%d-rw", s.rounds)}
	}
	if r.work.Permits > 0 {
		r.semaphores = []string{fmt.Sprintf("{r%d}:permits", s.rounds), fmt.Sprintf("r%d-permits", s.rounds)}
	}
	return r
}

// logf logs what the director does.
func (r *round) logf(format string, args ...any) {
	r.stage.logf("    %s  %s", sinceBeginning(r.journal.began, history.Now()), fmt.Sprintf(format, args...))
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
	if err := r.calm(ctx); err != nil {
		return err
	}
	for _, p := range r.alive() {
		p.stop()
	}
	for _, p := range r.processes {
		// With time to look for remains.
		if err := p.await(worker.Drain + 25*time.Second); err != nil {
			r.journal.recordNow(history.Event{Process: p.Number, Kind: history.Left, Note: err.Error()})
		}
	}
	if err := r.sweep(ctx); err != nil {
		return err
	}
	return errors.Join(r.broken(), ctx.Err())
}

// beat reports that the director runs, until stop is called, because all traffic runs through its relays.
func (r *round) beat() (stop func()) {
	over := make(chan struct{})
	var beating sync.WaitGroup
	beating.Go(func() {
		ticker := time.NewTicker(history.Beat)
		defer ticker.Stop()
		for {
			r.journal.recordNow(history.Event{Kind: history.Alive})
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

// end stops all processes of the round.
func (r *round) end() {
	for _, p := range r.processes {
		if p.alive() {
			p.kill()
		}
		p.closeRelays()
	}
}

// broken returns the failure of the stage itself, if any.
func (r *round) broken() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// workload returns the current workload.
func (r *round) workload() worker.Workload {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.work
}

// spawn starts another client process.
func (r *round) spawn() error {
	r.mu.Lock()
	r.numbered++
	number := r.numbered
	r.mu.Unlock()
	locks := r.locks
	if r.work.Paired {
		i := (number - 1) % r.work.Processes / 2 * 2 // as the one that it replaces, if any
		locks = locks[i : i+2]
	}
	p, err := startProcess(worker.Config{
		Process:    number,
		Seed:       r.stage.seed + uint64(r.number),
		Kind:       r.deployment.Kind,
		Addrs:      r.deployment.Entrances(),
		Resource:   r.protected(),
		Locks:      locks,
		Sided:      r.sided,
		Semaphores: r.semaphores,
		Work:       r.workload(),
	}, r.deployment.Reached(), r.journal.record)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes = append(r.processes, p)
	return nil
}

// protected returns the URL of the resource that the locks protect in this round, or "".
func (r *round) protected() string {
	resources := r.stage.resources
	if len(resources) == 0 {
		return ""
	}
	return resources[r.stage.rounds%len(resources)].URL
}

// alive returns the processes that run.
func (r *round) alive() []*Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.processes), func(p *Process) bool { return !p.alive() })
}

// calm lets the processes continue without faults, until every orphaned lease has ended and every waiter was served. Meanwhile
// no key may be without expiry. If there is one, it may have been so since the faults.
func (r *round) calm(ctx context.Context) error {
	r.logf("calm")
	reported := false
	for end := time.Now().Add(2*r.work.TTL + r.work.Poll + slack); time.Now().Before(end) && ctx.Err() == nil; {
		keys, err := r.deployment.EternalKeys(ctx)
		if err != nil {
			return err
		}
		if len(keys) > 0 && !reported {
			r.journal.recordNow(history.Event{Kind: history.Left, Note: "keys without expiry: " + strings.Join(keys, " ")})
			reported = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(time.Until(end), 50*time.Millisecond)):
		}
	}
	return nil
}

// publishedWait is how long what an owner has waited for stays on Redis.
const publishedWait = 6 * time.Second

// sweep looks for remaining keys, when every lease has ended.
func (r *round) sweep(ctx context.Context) error {
	deadline := time.Now().Add(max(r.work.TTL, publishedWait) + slack)
	for {
		keys, err := r.deployment.LockKeys(ctx)
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			r.journal.recordNow(history.Event{Kind: history.Left, Note: "keys: " + strings.Join(keys, " ")})
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}
