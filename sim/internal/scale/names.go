package scale

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock"
)

// Names are many names that few processes lock, hold all at once for a time, and unlock.
type Names struct {
	Processes int
	Workers   int // goroutines of each
	RoundTrip time.Duration
	Count     int
}

// NamesResult is the result of their measurement.
type NamesResult struct {
	Names
	Bytes          float64 // for each name while it is held, here
	ServerBytes    float64 // and in the embedded server
	Goroutines     float64 // in all, more than before, while they are held
	Renewals       float64 // commands per second meanwhile
	LeftBytes      float64 // for each name, some time after it was unlocked
	LeftGoroutines float64 // in all
}

// keeps is how long names are held: for several renewals of each.
const keeps = 30 * time.Second

// Run measures them, in the bubble of the caller. An Unlock fails if the lock was lost.
func (n Names) Run() (NamesResult, error) {
	res := NamesResult{Names: n}
	w, err := newWorld(n.Processes, n.RoundTrip)
	if err != nil {
		return res, err
	}
	defer w.close()
	w.server.ClockTTL(false) // it would check all keys at each command
	lock := func(m *relock.Mutex) error { return m.Lock(context.Background()) }
	for _, f := range []func(*relock.Mutex) error{lock, (*relock.Mutex).Unlock} { // connections are opened
		if err := n.each(w, 10*n.Processes*n.Workers, f); err != nil {
			return res, err
		}
	}
	time.Sleep(5 * time.Second)

	res.ServerBytes = n.serverBytes(w)
	before := memoryNow()
	if err := n.each(w, n.Count, lock); err != nil {
		return res, err
	}
	held := memoryNow()
	res.Bytes = held.each(before, n.Count).bytes - res.ServerBytes
	res.Goroutines = held.goroutines - before.goroutines
	scripts := w.scripts.Load()
	time.Sleep(keeps)
	res.Renewals = float64(w.scripts.Load()-scripts) / keeps.Seconds()
	if err := n.each(w, n.Count, (*relock.Mutex).Unlock); err != nil {
		return res, err
	}
	time.Sleep(keeps) // a bubble keeps a timer that was stopped, and what it refers to, until its time
	left := memoryNow()
	res.LeftBytes, res.LeftGoroutines = left.each(before, n.Count).bytes, left.goroutines-before.goroutines
	return res, nil
}

// serverBytes returns the memory of one lock in the embedded server, measured with some similar locks.
func (n Names) serverBytes(w *world) float64 {
	some := min(n.Count, 20_000)
	before := memoryNow()
	for i := range some {
		key := fmt.Sprintf("orders:%d", i)
		w.server.HSet(key, fmt.Sprintf("7d8a3c52-9f0e-4b61-8a27-5c1d0e9b3f46:%d", i), "1")
		w.server.SetTTL(key, time.Hour)
	}
	bytes := memoryNow().each(before, some).bytes
	w.server.FlushAll()
	return bytes
}

// each makes all workers call f with mutexes of so many names, each with a share of them.
func (n Names) each(w *world, count int, f func(*relock.Mutex) error) error {
	workers := n.Processes * n.Workers
	errs := make(chan error, workers)
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			locks := w.processes[i%n.Processes].locks
			for j := i; j < count; j += workers {
				if err := f(locks.Mutex(fmt.Sprintf("orders:%d", j), relock.WithOwner("sim"))); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	all.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}
