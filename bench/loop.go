package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/bench/contend"
)

// runResult is what a worker's goroutines did in one run.
type runResult struct {
	Ops     int           // pairs of lock and unlock
	Elapsed time.Duration // from the start to the end of the last pair
	CPU     time.Duration // of the whole process
	Sent    int64         // commands, by the whole process
	Allocs  uint64        // of the whole process, without the contexts of requests
	Bytes   uint64
	Spans   [][]span // of each goroutine; none if each had a name of its own
}

// grace is how long after the end of a run a waiter may still have to wait. The slowest
// contender needs a few seconds with 64 goroutines.
var grace = 20 * time.Second

// run has o.Goroutines goroutines lock and unlock from o.Start for o.Duration, each of
// them ending the pair that it is at. A waiter that is not served by then is lost.
func (w *worker) run(o order) (runResult, error) {
	l := loop{order: o, client: w.client, until: o.Start.Add(o.Duration), spans: make([][]span, o.Goroutines)}
	mutexes := make([]mutex, o.Goroutines)
	for i := range mutexes {
		name := o.Name
		if o.OwnNames || o.NewNames {
			name = fmt.Sprintf("%s:%d", o.Name, i)
		}
		mutexes[i] = w.client.Mutex(name)
	}
	allocs, bytes := l.contextCost()
	time.Sleep(time.Until(o.Start))

	profiles, err := startProfiles(o.Profiles)
	if err != nil {
		return runResult{}, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	commands, cpu, start := contend.Sent.Load(), cpuTime(), time.Now()
	err = l.all(mutexes)
	elapsed, cpu, commands := time.Since(start), cpuTime()-cpu, contend.Sent.Load()-commands
	runtime.ReadMemStats(&after)
	err = errors.Join(err, profiles.stop())
	if l.lost.Load() {
		return runResult{}, err // the goroutines are still there, and may write
	}
	ops := l.ops.Load()
	return runResult{
		Ops:     int(ops),
		Elapsed: elapsed,
		CPU:     cpu,
		Sent:    commands,
		Allocs:  after.Mallocs - before.Mallocs - uint64(ops)*allocs,
		Bytes:   after.TotalAlloc - before.TotalAlloc - uint64(ops)*bytes,
		Spans:   l.spans,
	}, err
}

// loop is one run under way.
type loop struct {
	order
	client client
	until  time.Time
	failed atomic.Bool // one has: all end
	lost   atomic.Bool
	ops    atomic.Int64
	spans  [][]span
}

// all runs one goroutine for each mutex, and waits for them, but not for ever.
func (l *loop) all(mutexes []mutex) error {
	errs := make(chan error, len(mutexes))
	var started sync.WaitGroup
	for i, m := range mutexes {
		started.Add(1)
		go func() {
			started.Done()
			errs <- l.one(i, m)
		}()
	}
	started.Wait()
	late := time.NewTimer(time.Until(l.until) + grace)
	defer late.Stop()
	var failure error
	for left := len(mutexes); left > 0; left-- {
		select {
		case err := <-errs:
			failure = errors.Join(failure, err)
		case <-late.C:
			l.lost.Store(true)
			return errors.Join(failure, fmt.Errorf("lost waiters: %d of %d goroutines were still waiting %v after the end",
				left, len(mutexes), grace))
		}
	}
	return failure
}

// one is one goroutine's part.
func (l *loop) one(i int, m mutex) (err error) {
	defer func() {
		if err != nil {
			l.failed.Store(true)
		}
	}()
	if l.Nested {
		if err := m.Lock(context.Background()); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Unlock()) }()
	}
	if !l.OwnNames && !l.NewNames {
		l.spans[i] = make([]span, 0, 1<<12)
		return l.shared(i, m)
	}
	ops := 0
	defer func() { l.ops.Add(int64(ops)) }()
	for !l.failed.Load() && time.Now().Before(l.until) {
		if l.NewNames {
			m = l.client.Mutex(fmt.Sprintf("%s:%d:%d", l.Name, i, ops))
		}
		ctx, end := l.context()
		err := m.Lock(ctx)
		if err == nil {
			err = m.Unlock()
		}
		if end(); err != nil {
			return err
		}
		ops++
	}
	return nil
}

// requestTimeout is what many servers give a request.
const requestTimeout = 30 * time.Second

// request returns a context as a handler of net/http has it: it can be cancelled, and has a deadline.
func request() (context.Context, context.CancelFunc) {
	client, gone := context.WithCancel(context.Background())
	ctx, timeout := context.WithTimeout(client, requestTimeout)
	return ctx, func() { timeout(); gone() }
}

// context returns what the next lock is acquired with, and what ends it after the Unlock.
func (l *loop) context() (context.Context, context.CancelFunc) {
	if l.Background {
		return context.Background(), func() {}
	}
	return request()
}

// contextCost returns how many objects and bytes a context takes by itself: it is no cost of a lock.
func (l *loop) contextCost() (allocs, bytes uint64) {
	const n = 1000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		_, end := l.context()
		end()
	}
	runtime.ReadMemStats(&after)
	return (after.Mallocs - before.Mallocs) / n, (after.TotalAlloc - before.TotalAlloc) / n
}

// shared is the loop of a goroutine that shares its lock with others. It records each hold.
func (l *loop) shared(i int, m mutex) error {
	reader, together := readSide(m)
	random := rand.New(rand.NewPCG(uint64(i), 0))
	for !l.failed.Load() && time.Now().Before(l.until) {
		side, read := m, random.Float64() < l.Reads
		if read {
			side = reader
		}
		ctx, end := l.context()
		s := span{Asked: now(), Read: read, Shared: read && together}
		err := side.Lock(ctx)
		if err == nil {
			s.Got = now()
			if l.Keep > 0 {
				time.Sleep(l.Keep)
			}
			s.Gave = now()
			l.spans[i] = append(l.spans[i], s)
			err = side.Unlock()
		}
		if end(); err != nil {
			return err
		}
	}
	l.ops.Add(int64(len(l.spans[i])))
	return nil
}

// waiters are goroutines that wait for a lock until they are stopped.
type waiters struct {
	cancel context.CancelFunc
	errs   chan error
	n      int
}

// startWaiters returns when all of them are about to wait.
func startWaiters(c client, name string, n int) *waiters {
	ctx, cancel := context.WithCancel(context.Background())
	w := &waiters{cancel: cancel, errs: make(chan error, n), n: n}
	var started sync.WaitGroup
	started.Add(n)
	for range n {
		go func() {
			m := c.Mutex(name)
			started.Done()
			err := m.Lock(ctx)
			switch {
			case err == nil:
				err = fmt.Errorf("two holders: a waiter got %q while it was held", name)
			case ctx.Err() != nil:
				err = nil // it was stopped
			}
			w.errs <- err
		}()
	}
	started.Wait()
	return w
}

// stop ends the waiters, which must all still wait.
func (w *waiters) stop() error {
	w.cancel()
	late := time.NewTimer(grace)
	defer late.Stop()
	for left := w.n; left > 0; left-- {
		select {
		case err := <-w.errs:
			if err != nil {
				return err
			}
		case <-late.C:
			return fmt.Errorf("lost waiters: %d of %d did not return %v after their context had ended", left, w.n, grace)
		}
	}
	return nil
}
