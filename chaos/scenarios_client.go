package main

import (
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/history"
	"github.com/relock-go/relock/chaos/internal/worker"
)

// clientScenarios are those of processes that stop, die or misbehave.
var clientScenarios = []*scenario{
	{
		number: 7, name: "client-paused",
		what: "processes stop for longer than the lease: the first thing they learn then is the loss",
		casts: []cast{{kind: deployment.Standalone, faults: []fault{pauseProcess(1.2, 2.5), pauseProcess(1.2, 2.5), pauseProcess(0.1, 0.8)},
			work: brief.With(func(w *worker.Workload) { w.Long = 0.2 })}},
		check: lostWhereSevered,
	},
	{
		number: 8, name: "client-killed",
		what:  "processes are killed: their locks are free when the lease has run out",
		casts: []cast{{kind: deployment.Standalone, work: usual(), faults: []fault{killProcess}}},
	},
	{
		number: 27, name: "pool-exhausted",
		what: "the application uses up the connections of its client",
		casts: []cast{{kind: deployment.Standalone, faults: []fault{hogPool},
			work: usual().With(func(w *worker.Workload) { w.PoolSize = 1; w.Long = 0.1 })}},
	},
	{
		number: 28, name: "misuse",
		what: "Unlock twice, of another's, after a loss, after Close; Close of a client that holds; a thousand waiters",
		casts: []cast{
			{kind: deployment.Standalone, faults: []fault{letMisuse},
				work: usual().With(func(w *worker.Workload) { w.Misuse = 0.3 })},
			{kind: deployment.Standalone, faults: []fault{crowd},
				work: usual().With(func(w *worker.Workload) {
					w.Workers, w.Names, w.Long, w.Impatient, w.Joint, w.Shared, w.Fair, w.Sides = 340, 1, 0, 0, 0, 0, 0, 0
					w.TTL = 2 * time.Second
				})},
		},
		check: misuseWasRefused,
	},
	{
		number: 30, name: "fair-waiters-stop",
		what: "processes that wait for fair locks are killed, or stop for longer than their places last: the others wait for one of those, not for all",
		casts: []cast{{kind: deployment.Standalone, faults: []fault{rarely(killWaiter), rarely(killWaiter), pauseWaiter},
			work: usual().With(func(w *worker.Workload) {
				w.Workers, w.Names, w.Fair, w.Joint, w.Long, w.Fixed, w.Impatient, w.Sides, w.Poll = 12, 1, 1, 0, 0, 0, 0, 0, 500*time.Millisecond
			})}},
	},
}

// pauseProcess stops a process that holds a lock for a share of the lease.
func pauseProcess(least, most float64) fault { return pause((*act).holder, least, most) }

// pauseWaiter stops a process that waits for longer than any place in a queue lasts.
var pauseWaiter = pause((*act).waiter, 1.2, 2)

func pause(whom func(*act) *process, least, most float64) fault {
	return fault{name: "process paused", inject: func(a *act) error {
		p := whom(a)
		d := a.between(time.Duration(least*float64(a.work.TTL)), time.Duration(most*float64(a.work.TTL)))
		a.logf("fault %d: process %d stops for %v", a.op, p.number, d)
		a.tell(history.Event{Op: a.op, Process: p.number, Kind: history.Paused})
		if err := p.pause(); err != nil {
			return err
		}
		a.sever(p, func() { a.lasts(d) })
		a.hit()
		p.resume()
		a.tell(history.Event{Op: a.op, Process: p.number, Kind: history.Resumed})
		return nil
	}}
}

// killProcess ends a process that holds a lock the hard way, and starts another one.
var killProcess = kill((*act).holder)

// killWaiter does so to one that waits.
var killWaiter = kill((*act).waiter)

func kill(whom func(*act) *process) fault {
	return fault{name: "process killed", inject: func(a *act) error {
		p := whom(a)
		p.kill()
		a.logf("fault %d: process %d is killed", a.op, p.number)
		a.tell(history.Event{Op: a.op, Process: p.number, Kind: history.Killed})
		a.hit()
		return a.spawn()
	}}
}

// hogPool has a process block all connections of its own.
var hogPool = fault{name: "pool exhausted", inject: func(a *act) error {
	p, d := a.victim(), a.part(1.5)
	a.begin("process %d blocks all its connections for %v", p.number, d)
	defer a.end()
	if err := p.send(worker.Order{Hog: d}); err != nil {
		return err
	}
	a.hit()
	a.lasts(d)
	return nil
}}

// letMisuse lets the workers misbehave, and counts how often they did.
var letMisuse = fault{name: "misuse", inject: func(a *act) error {
	a.lasts(a.work.TTL / 4)
	a.hits++ // they are counted one by one, when the round is judged
	return nil
}}

// crowd lets a thousand goroutines wait for one lock.
var crowd = fault{name: "a thousand waiters", inject: func(a *act) error {
	a.lasts(a.work.TTL / 4)
	a.hit()
	return nil
}}
