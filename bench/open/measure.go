package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// bench is a run under way.
type bench struct {
	config
	plan
	*environment
	services map[string]*service // by contender: each has a server of its own
	warm     map[string][]*process
	progress io.Writer
	deadline time.Time

	mu      sync.Mutex // guards results while contenders recover
	results *results
}

// quietFor is how long the machine is watched before a run.
const quietFor = 2 * time.Second

// measure is a whole run.
func measure(ctx context.Context, c config, progress io.Writer) (*results, error) {
	p, err := c.plan()
	if err != nil {
		return nil, err
	}
	r := newResults(c)
	r.Window = p.window
	w, err := startWatch()
	if err != nil {
		return nil, err
	}
	time.Sleep(quietFor)
	if r.Noise.Before, err = w.others(); err != nil {
		return nil, err
	}
	b := &bench{config: c, plan: p, progress: progress, deadline: time.Now().Add(c.budget), results: r,
		services: make(map[string]*service), warm: make(map[string][]*process)}
	defer b.close()
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	b.say("%d contenders, %d rounds, windows of %v, at most %v", len(b.contenders), b.rounds, b.window, c.budget)
	for round := range c.rounds {
		err := b.watched(func() error { return b.loads(ctx, round) })
		if err != nil {
			return nil, err
		}
	}
	b.stopWarm()
	if c.memory {
		b.footprints(ctx)
	}
	err = b.watched(func() error { return b.recoveries(ctx) })
	return r, errors.Join(err, ctx.Err())
}

// watched measures what others use meanwhile.
func (b *bench) watched(part func() error) error {
	w, err := startWatch()
	if err != nil {
		return err
	}
	if err := part(); err != nil {
		return err
	}
	share, err := w.others()
	b.results.Noise.Rounds = append(b.results.Noise.Rounds, share)
	return err
}

// prepare leaves out who cannot take part, and starts the servers.
func (b *bench) prepare(ctx context.Context) (err error) {
	all := b.contenders
	b.contenders = nil
	for _, c := range all {
		if why := c.missing(); why != "" {
			b.results.Missing[c.name] = why
			continue
		}
		b.contenders = append(b.contenders, c)
	}
	if b.environment, err = newEnvironment(ctx, b.contenders); err != nil {
		return err
	}
	for _, c := range b.contenders {
		b.results.Versions[c.name] = b.versionOf(c)
		if b.services[c.name], err = b.startService(c.server); err != nil {
			delete(b.services, c.name)
			return err
		}
		b.results.Versions[c.server] = b.services[c.name].version
	}
	return nil
}

func (b *bench) close() {
	b.stopWarm()
	for _, s := range b.services {
		s.close()
	}
	if b.environment != nil {
		b.environment.close()
	}
}

func (b *bench) stopWarm() {
	for _, workers := range b.warm {
		for _, p := range workers {
			p.stop()
		}
	}
	clear(b.warm)
}

// say prints the progress, with the seconds since the run began.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.progress, "%4.0f s  %s\n", time.Since(b.results.Began).Seconds(), fmt.Sprintf(format, args...))
}

// failed notes that a part has no result, and why.
func (b *bench) failed(part string, err error) {
	b.say("%s: %v", part, err)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.results.Failed[part] = err.Error()
}

// loads measures each contender in each scenario once, in an order that differs from round to round.
func (b *bench) loads(ctx context.Context, round int) error {
	for _, s := range b.scenarios {
		for _, i := range randomOf(b.seed, uint64(round)).Perm(len(b.contenders)) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if time.Now().After(b.deadline) {
				b.failed(fmt.Sprintf("round %d", round+1), errors.New("the budget is used up"))
				return nil
			}
			c, part := b.contenders[i], fmt.Sprintf("%s/%s, round %d", s.name, b.contenders[i].name, round+1)
			if err := b.cell(ctx, c, s, round, part); err != nil {
				b.failed(part, err)
			}
		}
	}
	return nil
}

// cell measures the limit of a contender, and then its waits under the loads. part is its name where something failed.
func (b *bench) cell(ctx context.Context, c contender, s scenario, round int, part string) error {
	workers, err := b.workers(c, s.processes)
	if err != nil {
		return err
	}
	kept := false
	defer func() {
		if !kept {
			for _, p := range workers {
				p.stop()
			}
		}
	}()
	run := &cellRun{c: c, s: s, service: b.services[c.name], workers: workers, seed: b.seed + uint64(round)}
	if _, _, err := run.limit(b.window / 4); err != nil { // connections, scripts, pools
		return err
	}
	limit, lost, err := run.limit(b.window * 3 / 4)
	if err != nil {
		return err
	}
	if lost > 0 {
		b.failed(part, fmt.Errorf("%d calls failed in the closed loop", lost))
	}
	if limit == 0 {
		return errors.New("no lock was acquired in the closed loop")
	}
	for _, l := range levels {
		rate, window := limit*l.share, b.window
		if l.share == 0 {
			rate, window = s.same, b.window*time.Duration(s.long)
		}
		result, err := run.load(ctx, rate, window)
		if err != nil {
			return err
		}
		key := cellKey(s.name, c.name, l.name)
		if b.results.Load[key] == nil {
			b.results.Load[key] = &cell{}
		}
		b.results.Load[key].add(limit, window, result)
	}
	b.say("round %d, %s, %s: limit %.0f per s", round+1, s.name, c.name, limit)
	if c.peer == peerJava { // a JVM that has just started would be measured cold
		b.warm[warmKey(c, s.processes)], kept = workers, true
	}
	return nil
}

func warmKey(c contender, n int) string { return fmt.Sprintf("%s %d", c.name, n) }

// warmUp is how long a JVM works before it is measured for the first time.
const warmUp = 3 * time.Second

// workers starts the processes of a contender, or takes the JVMs that are warm.
func (b *bench) workers(c contender, n int) ([]*process, error) {
	if warm := b.warm[warmKey(c, n)]; warm != nil {
		delete(b.warm, warmKey(c, n))
		return warm, nil
	}
	var workers []*process
	for range n {
		p, err := b.startProcess(c, order{Addr: b.services[c.name].addr})
		if err != nil {
			for _, p := range workers {
				p.stop()
			}
			return nil, err
		}
		workers = append(workers, p)
	}
	if c.peer == peerJava {
		run := &cellRun{c: c, s: scenario{name: "warm", processes: n, closed: max(64, 2*n)}, service: b.services[c.name], workers: workers, seed: uint64(n)}
		if _, _, err := run.limit(min(warmUp, 3*b.window)); err != nil {
			for _, p := range workers {
				p.stop()
			}
			return nil, err
		}
	}
	return workers, nil
}

func (b *bench) footprints(ctx context.Context) {
	for _, c := range b.contenders {
		s, err := b.startService(c.server) // of its own: what ended before would free memory meanwhile
		if err != nil {
			b.failed("memory/"+c.name, err)
			continue
		}
		f, err := b.measureFootprint(ctx, c, s, 0)
		s.close()
		if err != nil {
			b.failed("memory/"+c.name, err)
			continue
		}
		b.results.Footprint[c.name] = f
		b.say("memory, %s", c.name)
	}
}

// recoverAtOnce is how many contenders recover at a time, each with a server of its own: nearly all of that time they wait. JVMs,
// whose start takes seconds of processor time, have the machine to themselves.
const recoverAtOnce = 3

// recoverTogether returns the contenders that recover at a time.
func recoverTogether(all []contender) [][]contender {
	var java, others []contender
	for _, c := range all {
		if c.peer == peerJava {
			java = append(java, c)
		} else {
			others = append(others, c)
		}
	}
	return slices.Concat(slices.Collect(slices.Chunk(others, recoverAtOnce)), slices.Collect(slices.Chunk(java, recoverAtOnce)))
}

// recoveries makes each fault for each contender.
func (b *bench) recoveries(ctx context.Context) error {
	for try := range b.recovery {
		for _, some := range recoverTogether(b.contenders) {
			var all sync.WaitGroup
			for _, c := range some {
				all.Go(func() { b.recover(ctx, c, try) })
			}
			all.Wait()
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// recover makes each fault for one contender, once.
func (b *bench) recover(ctx context.Context, c contender, try int) {
	part := fmt.Sprintf("recovery, time %d, %s", try+1, c.name)
	s, err := b.startService(c.server)
	if err != nil {
		b.failed(part, err)
		return
	}
	defer s.close()
	for _, ev := range events {
		if time.Now().After(b.deadline) {
			b.failed(part, errors.New("the budget is used up"))
			return
		}
		o, err := b.playRecovery(ctx, c, s, ev, try)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			b.failed(part+", "+ev.title, err)
			continue
		}
		b.say("%s, %s: %+v", part, ev.title, o)
		b.mu.Lock()
		if b.results.Recovery[c.name] == nil {
			b.results.Recovery[c.name] = make(map[string][]outcome)
		}
		b.results.Recovery[c.name][ev.name] = append(b.results.Recovery[c.name][ev.name], o)
		b.mu.Unlock()
	}
}

// machine says what the numbers were measured on.
func machine() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	model := runtime.GOARCH
	if _, rest, found := strings.Cut(string(text), "model name\t: "); found {
		model, _, _ = strings.Cut(rest, "\n")
	}
	return fmt.Sprintf("%d cores of %s, %s/%s, %s", runtime.NumCPU(), strings.TrimSpace(model), runtime.GOOS, runtime.GOARCH, runtime.Version())
}
