package main

import (
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/scripts"
	"github.com/relock-go/relock/chaos/internal/worker"
)

// pointedScenarios are aimed at one promise each, to see whether a library that breaks it
// is caught. They are no part of "all": what they inject is somewhere in there, too.
var pointedScenarios = []*scenario{
	{
		number: 101, name: "calm",
		what: "no fault at all, and a poll that takes long: whoever waits is woken, though others give up",
		casts: []cast{{kind: deployment.Standalone, lossless: true, prompt: true, faults: []fault{nothing},
			work: patient.With(func(w *worker.Workload) { w.Workers, w.Impatient, w.Long = 4, 0.4, 0.02 })}},
	},
	{
		number: 102, name: "slow-cancels",
		what: "no fault but a slow network: waits end while hand-overs to them are under way",
		casts: []cast{{kind: deployment.Standalone, prompt: true, faults: []fault{slowness},
			work: patient.With(func(w *worker.Workload) { w.Processes, w.Names, w.Impatient = 1, 1, 0.7 })}},
	},
	{
		number: 103, name: "late-release",
		what: "replies are lost and releases delivered late, to owners who have the lock again",
		casts: []cast{{kind: deployment.Standalone, lossless: true, faults: []fault{deliverLate(scripts.Release), deliverLate(scripts.Release), loseReply(scripts.Release), loseReply(scripts.Acquire)},
			work: plain().With(func(w *worker.Workload) {
				w.Processes, w.Workers, w.Names = 1, 1, 1 // a late release finds the next hold of the same owner
				w.Long, w.Fixed, w.TTL = 0.5, 0, 1500*time.Millisecond
			})}},
	},
	{
		number: 104, name: "slow-then-silent",
		what: "a process' network is slow and then dead: it knows no later than Redis that its lease is over",
		casts: []cast{{kind: deployment.Standalone, faults: []fault{slowThenSilent},
			work: plain().With(enduring)}},
	},
	{
		number: 105, name: "deleted-while-held",
		what: "locks of holders who stay are deleted: they learn of it at the next renewal",
		casts: []cast{{kind: deployment.Standalone, splitBrain: true, faults: []fault{rarely(deleteLock), rarely(flush)},
			work: plain().With(func(w *worker.Workload) { w.Workers, w.Names, w.Long, w.Fixed = 3, 2, 0.5, 0 })}},
	},
	{
		number: 106, name: "counted-twice",
		what: "replies to acquisitions are lost, and levels counted on Redis",
		casts: []cast{{kind: deployment.Standalone, faults: []fault{loseReply(scripts.Acquire)},
			work: plain().With(func(w *worker.Workload) { w.Workers, w.Long, w.Fixed = 2, 0.5, 0 })}},
	},
	{
		number: 107, name: "slow-orphans",
		what: "no fault but a slow network: waits end while their acquisition is under way, which nobody wants then",
		casts: []cast{{kind: deployment.Standalone, prompt: true, faults: []fault{slowness},
			work: patient.With(func(w *worker.Workload) {
				w.Workers, w.Names, w.Impatient, w.Shared, w.TTL, w.Poll = 1, 1, 0.4, 0, 3*time.Second, 3*time.Second
			})}},
	},
	{
		number: 108, name: "slow-wakeups",
		what: "no fault but a slow network: somebody comes to wait while the lock is being given back",
		casts: []cast{{kind: deployment.Standalone, prompt: true, faults: []fault{slowness},
			work: patient.With(func(w *worker.Workload) {
				w.Processes, w.Workers, w.Names, w.Impatient, w.Shared = 1, 2, 1, 0.2, 0
			})}},
	},
	{
		number: 109, name: "release-lost",
		what: "replies to releases and acquisitions are lost: Unlock knows that it was done",
		casts: []cast{{kind: deployment.Standalone, lossless: true, faults: []fault{loseReply(scripts.Release), loseReply(scripts.Acquire)},
			work: plain().With(func(w *worker.Workload) {
				w.Workers, w.Names, w.Fixed, w.TTL = 2, 2, 0, 1500*time.Millisecond
			})}},
	},
	{
		number: 110, name: "fair-calm",
		what: "no fault at all: fair locks are had in order, though others give up",
		casts: []cast{{kind: deployment.Standalone, lossless: true, prompt: true, faults: []fault{nothing},
			work: patient.With(func(w *worker.Workload) { w.Names, w.Fair, w.Impatient = 1, 1, 0.3 })}},
	},
	{
		number: 111, name: "fair-and-plain",
		what: "no fault at all: fair locks and others of the same names exclude and wake each other",
		casts: []cast{{kind: deployment.Standalone, lossless: true, prompt: true, faults: []fault{nothing},
			work: patient.With(func(w *worker.Workload) { w.Workers, w.Fair, w.Impatient = 3, 0.5, 0.2 })}},
	},
	{
		number: 112, name: "slow-holder",
		what: "no fault but a slow network of one process: what it has unlocked it holds no more when another gets it",
		casts: []cast{{kind: deployment.Standalone, lossless: true, faults: []fault{slowOne},
			work: patient.With(func(w *worker.Workload) { w.Processes, w.Workers, w.Names, w.Shared = 2, 1, 1, 0 })}},
	},
	{
		number: 113, name: "sides-calm",
		what: "no fault at all: readers read together, writers alone, whoever waits is woken, and who writes may go on reading",
		casts: []cast{{kind: deployment.Standalone, lossless: true, prompt: true, faults: []fault{nothing},
			work: patient.With(sided).With(func(w *worker.Workload) { w.Poll, w.Reads, w.Impatient, w.Long = time.Second, 0.8, 0.2, 0.003 })}},
	},
	{
		number: 114, name: "sides-harmed",
		what: "readers and writers are killed, or stop for longer than the lease, and replies are lost, or releases delivered late",
		casts: []cast{{kind: deployment.Standalone, lanes: 2, work: usual().With(sided), faults: []fault{
			rarely(killProcess), pauseProcess(1.2, 2.5), loseReply(scripts.Acquire), loseReply(scripts.Release), loseReply(scripts.Reenter), loseReply(scripts.Handoff), deliverLate(scripts.Release),
		}}},
	},
	{
		number: 115, name: "quorum-calm",
		what: "no fault at all: who splits the votes with others gives back what he got",
		casts: []cast{{kind: deployment.Quorum, lossless: true, prompt: true, faults: []fault{nothing},
			work: patient.With(func(w *worker.Workload) { w.TTL, w.Poll = 4*time.Second, 4*time.Second })}},
	},
	{
		number: 116, name: "quorum-slow-then-silent",
		what: "a process' network is slow and then dead: it knows no later than the masters that its lease is over",
		casts: []cast{{kind: deployment.Quorum, faults: []fault{slowThenSilent},
			work: voting.With(enduring)}},
	},
	{
		number: 117, name: "readers-stream",
		what: "no fault, but readers that come one after the other and never stop: a writer that waits gets its turn",
		casts: []cast{{kind: deployment.Standalone, lossless: true, prompt: true, faults: []fault{nothing},
			work: plain().With(sided).With(func(w *worker.Workload) { w.Long, w.Fixed, w.Joint, w.Reads, w.Impatient = 0, 0, 0, 0.99, 0 })}},
	},
	{
		number: 118, name: "deleted-in-a-batch",
		what: "locks are deleted that their process renews together with others: it learns of it then",
		casts: []cast{{kind: deployment.Standalone, splitBrain: true, faults: []fault{deleteLock},
			work: plain().With(func(w *worker.Workload) {
				w.Processes, w.Workers, w.Names, w.Long, w.Fixed, w.Joint = 2, 16, 16, 1, 0, 0
			})}},
	},
}

// enduring has two processes wait for one lock, and hold it for so long that a lease of theirs is
// sure to run out on a network that is dead.
func enduring(w *worker.Workload) {
	w.Processes, w.Workers, w.Names = 2, 2, 1
	w.Long, w.Fixed, w.Enduring = 1, 0, true
}

// sided has everybody use read-write locks.
func sided(w *worker.Workload) { w.Sides, w.Reads, w.Shared, w.Workers, w.Kept = 1, 0.7, 0, 8, true }

// patient is a workload whose waiters depend on being woken.
var patient = plain().With(func(w *worker.Workload) {
	w.TTL, w.Poll = 2*time.Second, 2*time.Second
	w.Names, w.Long, w.Fixed, w.Joint = 2, 0, 0, 0
})

var nothing = fault{name: "nothing", inject: func(a *act) error {
	a.lasts(a.work.TTL / 4)
	a.hit()
	return nil
}}

// slowness makes every message take longer, which keeps nobody waiting for long.
var slowness = fault{name: "slowness", inject: func(a *act) error {
	d := a.between(20*time.Millisecond, 60*time.Millisecond)
	a.disturb("every message takes %v longer", d)
	a.slowed(d)
	a.hit()
	a.lasts(2 * a.work.TTL)
	a.slowed(0)
	a.lasts(d)
	return nil
}}

// slowed has every message of every process take longer by d.
func (a *act) slowed(d time.Duration) {
	for _, p := range a.alive() {
		for _, r := range p.relays {
			r.Latency(d)
		}
	}
}

// slowOne makes every message of one process take longer.
var slowOne = fault{name: "slowness of one", inject: func(a *act) error {
	p, d := a.victim(), a.between(50*time.Millisecond, 100*time.Millisecond)
	a.disturb("process %d: every message takes %v longer", p.number, d)
	for _, r := range p.relays {
		r.Latency(d)
	}
	a.hit()
	a.lasts(a.work.TTL)
	for _, r := range p.relays {
		r.Latency(0)
	}
	a.lasts(d)
	return nil
}}

// slowThenSilent lets nothing through after it has delayed everything.
var slowThenSilent = fault{name: "slow, then silent", inject: func(a *act) error {
	p, d := a.holder(), a.between(a.work.TTL/12, a.work.TTL/10)
	a.begin("process %d: every message takes %v longer, and then none arrives", p.number, d)
	defer a.end()
	for _, r := range p.relays {
		r.Latency(d)
	}
	a.lasts(a.work.TTL / 2)
	for _, r := range p.relays {
		r.BlackHole(true)
	}
	a.hit()
	a.lasts(a.work.TTL * 3 / 2)
	for _, r := range p.relays {
		r.BlackHole(false)
		r.Latency(0)
		r.Cut()
	}
	return nil
}}

// rarely gives the consequences of a fault their time.
func rarely(f fault) fault {
	return fault{name: f.name, inject: func(a *act) error {
		err := f.inject(a)
		a.lasts(2 * a.work.TTL)
		return err
	}}
}
