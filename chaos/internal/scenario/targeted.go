package scenario

import (
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/scripts"
	"github.com/relock-go/relock/chaos/internal/stage"
	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/internal/redistest"
)

// targeted are scenarios for one promise each. They show whether a library that breaks the promise is caught. The selection
// "all" does not include them, because its scenarios have the same faults.
var targeted = []*Scenario{
	{
		Number: 101, Name: "calm",
		What: "no fault at all, and a poll that takes long: each waiter is woken, though others give up",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Prompt: true, Faults: []stage.Fault{nothing},
			Work: patient.With(func(w *worker.Workload) { w.Workers, w.Impatient, w.Long = 4, 0.4, 0.02 }),
		}},
	},
	{
		Number: 102, Name: "slow-cancels",
		What: "no fault but a slow network: waits end while hand-overs to them are under way",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Prompt: true, Faults: []stage.Fault{slowness},
			Work: patient.With(func(w *worker.Workload) { w.Processes, w.Names, w.Impatient = 1, 1, 0.7 }),
		}},
	},
	{
		Number: 103, Name: "late-release",
		What: "replies are lost and releases delivered late, to owners that have the lock again",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Faults: []stage.Fault{deliverLate(scripts.Release), deliverLate(scripts.Release), loseReply(scripts.Release), loseReply(scripts.Acquire)},
			Work: plain().With(func(w *worker.Workload) {
				w.Processes, w.Workers, w.Names = 1, 1, 1 // a late release finds the next hold of the same owner
				w.Long, w.Fixed, w.TTL = 0.5, 0, 1500*time.Millisecond
			}),
		}},
	},
	{
		Number: 104, Name: "slow-then-silent",
		What: "a process' network is slow and then dead: its lease ends locally no later than on Redis",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Faults: []stage.Fault{slowThenSilent},
			Work: plain().With(enduring),
		}},
	},
	{
		Number: 105, Name: "deleted-while-held",
		What: "locks of long holds are deleted: the next renewal reports it",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, SplitBrain: true, Faults: []stage.Fault{rarely(deleteLock), rarely(flush)},
			Work: plain().With(func(w *worker.Workload) { w.Workers, w.Names, w.Long, w.Fixed = 3, 2, 0.5, 0 }),
		}},
	},
	{
		Number: 106, Name: "counted-twice",
		What: "replies to acquisitions are lost, and levels counted on Redis",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Faults: []stage.Fault{loseReply(scripts.Acquire)},
			Work: plain().With(func(w *worker.Workload) { w.Workers, w.Long, w.Fixed = 2, 0.5, 0 }),
		}},
	},
	{
		Number: 107, Name: "slow-orphans",
		What: "no fault but a slow network: waits end while their acquisition is under way, which no caller wants then",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Prompt: true, Faults: []stage.Fault{slowness},
			Work: patient.With(func(w *worker.Workload) {
				w.Workers, w.Names, w.Impatient, w.Shared, w.TTL, w.Poll = 1, 1, 0.4, 0, 3*time.Second, 3*time.Second
			}),
		}},
	},
	{
		Number: 108, Name: "slow-wakeups",
		What: "no fault but a slow network: a waiter comes while the lock is being released",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Prompt: true, Faults: []stage.Fault{slowness},
			Work: patient.With(func(w *worker.Workload) {
				w.Processes, w.Workers, w.Names, w.Impatient, w.Shared = 1, 2, 1, 0.2, 0
			}),
		}},
	},
	{
		Number: 109, Name: "release-lost",
		What: "replies to releases and acquisitions are lost: Unlock still succeeds",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Faults: []stage.Fault{loseReply(scripts.Release), loseReply(scripts.Acquire)},
			Work: plain().With(func(w *worker.Workload) {
				w.Workers, w.Names, w.Fixed, w.TTL = 2, 2, 0, 1500*time.Millisecond
			}),
		}},
	},
	{
		Number: 138, Name: "release-lost-alone",
		What: "the same without a pipeline, where go-redis would send commands again by itself",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Faults: []stage.Fault{loseReply(scripts.Release), loseReply(scripts.Acquire)},
			Work: plain().With(func(w *worker.Workload) {
				w.Workers, w.Names, w.Fixed, w.TTL, w.Unpipelined = 2, 2, 0, 1500*time.Millisecond, true
			}),
		}},
	},
	{
		Number: 110, Name: "fair-calm",
		What: "no fault at all: fair locks are had in order, though others give up",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Prompt: true, Faults: []stage.Fault{nothing},
			Work: patient.With(func(w *worker.Workload) { w.Names, w.Fair, w.Impatient = 1, 1, 0.3 }),
		}},
	},
	{
		Number: 111, Name: "fair-and-plain",
		What: "no fault at all: fair locks and others of the same names exclude and wake each other",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Prompt: true, Faults: []stage.Fault{nothing},
			Work: patient.With(func(w *worker.Workload) { w.Workers, w.Fair, w.Impatient = 3, 0.5, 0.2 }),
		}},
	},
	{
		Number: 112, Name: "slow-holder",
		What: "no fault but a slow network of one process: what it has unlocked it holds no more when another gets it",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Faults: []stage.Fault{slowOne},
			Work: patient.With(func(w *worker.Workload) { w.Processes, w.Workers, w.Names, w.Shared = 2, 1, 1, 0 }),
		}},
	},
	{
		Number: 136, Name: "nested",
		What: "no fault at all: owners that hold a lock wait long for another one, all in one order: none is in a deadlock",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Faults: []stage.Fault{nothing},
			// Few owners that wait long: a false edge between owners of a process then leads to a circle that lasts.
			Work: nesting.With(func(w *worker.Workload) { w.Workers, w.Names, w.Long, w.Lasting = 2, 3, 0.5, [2]float64{0.5, 1.5} }),
		}},
	},
	{
		Number: 140, Name: "nested-harmed",
		What: "owners that hold a lock wait for another one, all in one order: processes are killed, or stop, replies are lost or late, connections are cut, and still none is in a deadlock",
		setups: []stage.Setup{{Kind: deployment.Standalone, Work: nesting, Faults: []stage.Fault{
			rarely(killProcess), pauseProcess(0.3, 2), pauseWaiter, loseReply(scripts.Acquire), deliverLate(scripts.Acquire), loseReply(scripts.Release), deliverLate(scripts.Release), cut,
		}}},
	},
	{
		Number: 137, Name: "deadlocks",
		What: "no fault at all: owners that hold a lock wait for another one, in any order: each deadlock ends by the error of one of them",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Faults: []stage.Fault{nothing},
			Work: nesting.With(func(w *worker.Workload) { w.Opposed = true }),
		}},
		check: deadlocksEnded,
	},
	{
		Number: 142, Name: "waits-given-up",
		What: "no fault at all: owners soon give up to wait for another lock, and keep the one that they hold: a wait that is over is in no deadlock",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Faults: []stage.Fault{nothing},
			Work: nesting.With(func(w *worker.Workload) {
				w.Opposed, w.Nested, w.DeadlockCheck = true, 1, 50*time.Millisecond
				w.Paired, w.Processes, w.Workers, w.Names = true, 16, 1, 16
				w.Impatient, w.Impatience, w.Long, w.Lasting = 0.5, 500*time.Millisecond, 1, [2]float64{0.25, 0.75}
			}),
		}},
	},
	{
		Number: 127, Name: "min-holds",
		What: "no fault at all: a lock that is unlocked early is reserved for its min hold, and acquired by the next owner soon after",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Faults: []stage.Fault{nothing},
			Work: plain().With(func(w *worker.Workload) { w.MinHold, w.Fair, w.Long, w.Fixed = 0.3, 0.3, 0, 0 }),
		}},
	},
	{
		Number: 129, Name: "min-holds-of-a-moment",
		What: "no fault at all: holds end as their min hold does, over and over: no key is left without expiry",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Faults: []stage.Fault{nothing},
			Work: plain().With(func(w *worker.Workload) {
				w.Moments, w.Names, w.Joint, w.Shared, w.Impatient = true, 12, 0, 0, 0
			}),
		}},
	},
	{
		Number: 130, Name: "async-slow",
		What: "no fault but a slow network: Unlocks return before Redis has received the release, and their owners lock again meanwhile, as fair locks and others, on other connections",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Faults: []stage.Fault{slowness, slowRelease},
			Work: plain().With(func(w *worker.Workload) {
				w.Async, w.Fair, w.Processes, w.Workers, w.Names, w.Joint, w.Fixed = 1, 0.5, 2, 2, 1, 0, 0
				w.Long, w.Lasting = 0.3, [2]float64{0.1, 0.3} // long enough to meet another holder
				w.Unpipelined = true                          // in a pipeline commands keep their order
			}),
		}},
	},
	{
		Number: 131, Name: "linger-slow",
		What: "no fault but a slow network: locks stay with the process for its next Lock, as long as no other process wants them, and their owners lock again, as fair locks and others",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Faults: []stage.Fault{slowness},
			Work: plain().With(func(w *worker.Workload) {
				w.Linger, w.Fair, w.Untokened, w.Processes, w.Workers, w.Names, w.Joint, w.Fixed, w.Long = 1, 0.4, true, 2, 3, 2, 0, 0, 0
			}),
		}},
	},
	{
		Number: 139, Name: "wanted-calm",
		What: "no fault at all: each holder learns that other owners want its lock, and only then",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Faults: []stage.Fault{nothing},
			Work: usual().With(func(w *worker.Workload) {
				w.Watches, w.TTL, w.Poll, w.Long, w.Fixed, w.Joint, w.Linger, w.Permits = true, 2*time.Second, 500*time.Millisecond, 0.2, 0, 0.3, 0.3, 0
			}),
		}},
	},
	{
		Number: 113, Name: "sides-calm",
		What: "no fault at all: readers read together, writers alone, each waiter is woken, and a writer may go on reading",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Prompt: true, Faults: []stage.Fault{nothing},
			Work: patient.With(sided).With(func(w *worker.Workload) { w.Poll, w.Reads, w.Impatient, w.Long = time.Second, 0.8, 0.2, 0.003 }),
		}},
	},
	{
		Number: 114, Name: "sides-harmed",
		What: "readers and writers are killed, or stop for longer than the lease, and replies are lost, or releases delivered late",
		setups: []stage.Setup{{Kind: deployment.Standalone, Lanes: 2, Work: usual().With(sided), Faults: []stage.Fault{
			rarely(killProcess), pauseProcess(1.2, 2.5), loseReply(scripts.Acquire), loseReply(scripts.Release), loseReply(scripts.Reenter), loseReply(scripts.Handoff), deliverLate(scripts.Release),
		}}},
	},
	{
		Number: 115, Name: "quorum-calm",
		What: "no fault at all: an owner that splits the votes with others releases what it got",
		setups: []stage.Setup{{
			Kind: deployment.Quorum, Lossless: true, Prompt: true, Faults: []stage.Fault{nothing},
			Work: patient.With(func(w *worker.Workload) { w.TTL, w.Poll = 4*time.Second, 4*time.Second }),
		}},
	},
	{
		Number: 116, Name: "quorum-slow-then-silent",
		What: "a process' network is slow and then dead: its lease ends locally no later than on the masters",
		setups: []stage.Setup{{
			Kind: deployment.Quorum, Faults: []stage.Fault{slowThenSilent},
			Work: voting.With(enduring),
		}},
	},
	{
		Number: 117, Name: "readers-stream",
		What: "no fault, but readers that come one after the other and never stop: a writer that waits gets its turn",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Prompt: true, Faults: []stage.Fault{nothing},
			Work: plain().With(sided).With(func(w *worker.Workload) { w.Long, w.Fixed, w.Joint, w.Reads, w.Impatient = 0, 0, 0, 0.99, 0 }),
		}},
	},
	{
		Number: 118, Name: "deleted-in-a-bundle",
		What: "locks are deleted that their process renews together with others: that renewal reports it",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, SplitBrain: true, Faults: []stage.Fault{deleteLock},
			Work: plain().With(func(w *worker.Workload) {
				w.Processes, w.Workers, w.Names, w.Long, w.Fixed, w.Joint = 2, 16, 16, 1, 0, 0
			}),
		}},
	},
	{
		Number: 119, Name: "batches-harmed",
		What: "local hand-overs; then the next command is lost or late, or the process is killed",
		setups: []stage.Setup{{Kind: deployment.Standalone, Lanes: 2, Work: untokened(), Faults: []stage.Fault{
			rarely(killProcess), pauseProcess(1.2, 2.5), loseReply(scripts.Rename), loseReply(scripts.Rename), deliverLate(scripts.Rename), deliverLate(scripts.Rename), loseReply(scripts.Release), cut,
		}}},
	},
	{
		Number: 120, Name: "batches-deleted",
		What: "locks are deleted during local hand-overs: the next command reports it",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, SplitBrain: true, Faults: []stage.Fault{rarely(deleteAtRename), rarely(deleteLock), rarely(flush)},
			Work: untokened().With(func(w *worker.Workload) { w.Long = 0.3 }),
		}},
	},
	{
		Number: 121, Name: "batches-slow-then-silent",
		What: "a process' network is slow and then dead, while its holds follow one another: none of them outlives the lease",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Faults: []stage.Fault{slowThenSilentInABatch},
			Work: untokened().With(func(w *worker.Workload) {
				w.Names, w.Impatient, w.Long, w.Lasting = 1, 0, 1, [2]float64{0.26, 0.45} // several follow within one lease
			}),
		}},
	},
	{
		Number: 122, Name: "batches-late",
		What: "renames after local hand-overs are delivered late, when their owners have the lock again",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Faults: []stage.Fault{deliverLate(scripts.Rename)},
			Work: untokened().With(func(w *worker.Workload) {
				w.Processes, w.Workers, w.Names, w.Shared, w.Impatient, w.Long, w.TTL = 1, 2, 1, 0, 0, 0.3, 1500*time.Millisecond
			}),
		}},
	},
	{
		Number: 123, Name: "line-calm",
		What: "no fault at all: many processes with one waiter each, and no tokens, have the lock in the order of their line",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Prompt: true, Faults: []stage.Fault{nothing},
			Work: queueing().With(func(w *worker.Workload) {
				w.Processes, w.Untokened, w.Long, w.Impatient, w.TTL, w.Poll = 16, true, 0, 0, 2*time.Second, 2*time.Second
			}),
		}},
		check: inLine,
	},
	{
		Number: 124, Name: "line-long-holds",
		What: "no fault, but holds that last for longer than an entry in the line without polls: none is lost",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Faults: []stage.Fault{nothing},
			Work: queueing().With(func(w *worker.Workload) { w.Long, w.Fair = 0.3, 1 }),
		}},
	},
	{
		Number: 125, Name: "line-of-several",
		What: "no fault at all: an owner that wants several locks keeps one that it was granted only for a moment, while another of them is held for long",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Prompt: true, Faults: []stage.Fault{nothing},
			Work: patient.With(func(w *worker.Workload) {
				w.Processes, w.Workers, w.Torn, w.Shared, w.Impatient = 4, 1, true, 0, 0
				w.TTL, w.Poll = 5*time.Second, 2500*time.Millisecond // a placeholder may last as long as the longest lease
			}),
		}},
	},
	{
		Number: 126, Name: "quorum-slow-wakeups",
		What: "no fault but a slow network: a waiter comes while the release is being sent to the masters",
		setups: []stage.Setup{{
			Kind: deployment.Quorum, Prompt: true, Faults: []stage.Fault{slowness},
			Work: patient.With(func(w *worker.Workload) {
				w.Processes, w.Workers, w.Names, w.Impatient, w.Shared, w.TTL, w.Poll = 1, 2, 1, 0.2, 0, 4*time.Second, 4*time.Second
			}),
		}},
	},
	{
		Number: 128, Name: "line-cannot-subscribe",
		What: "processes in the line may not subscribe for a while: their waiters are served by their polls",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Faults: []stage.Fault{unsubscribed},
			Work: queueing().With(func(w *worker.Workload) {
				w.Processes, w.Workers, w.Long, w.Fair, w.Impatient = 4, 6, 0.03, 1, 0
			}),
		}},
	},
}

// slowness makes every message slower, which delays no waiter for long.
var slowness = stage.Fault{Name: "slowness", Inject: func(a *stage.Act) error {
	d := a.Between(20*time.Millisecond, 60*time.Millisecond)
	a.Disturb("every message takes %v longer", d)
	delayAll(a, d)
	a.Hit()
	a.Lasts(2 * a.Work.TTL)
	delayAll(a, 0)
	a.Lasts(d)
	return nil
}}

// slowRelease makes releases slower, which those who wait see as longer holds.
var slowRelease = stage.Fault{Name: "slow releases", Inject: func(a *stage.Act) error {
	d := a.Between(20*time.Millisecond, 60*time.Millisecond)
	a.Disturb("every release takes %v longer", d)
	for _, p := range a.Alive() {
		for _, r := range p.Relays {
			defer r.Delay(d, a.Script(scripts.Release)).Always().Remove()
		}
	}
	a.Hit()
	a.Lasts(2 * a.Work.TTL)
	return nil
}}

// delayAll delays every message of every process by d.
func delayAll(a *stage.Act, d time.Duration) {
	for _, p := range a.Alive() {
		for _, r := range p.Relays {
			r.Latency(d)
		}
	}
}

// slowOne makes every message of one process slower.
var slowOne = stage.Fault{Name: "slowness of one", Inject: func(a *stage.Act) error {
	p, d := a.Victim(), a.Between(50*time.Millisecond, 100*time.Millisecond)
	a.Disturb("process %d: every message takes %v longer", p.Number, d)
	for _, r := range p.Relays {
		r.Latency(d)
	}
	a.Hit()
	a.Lasts(a.Work.TTL)
	for _, r := range p.Relays {
		r.Latency(0)
	}
	a.Lasts(d)
	return nil
}}

// slowThenSilent delays every message of a process, and then loses all.
var slowThenSilent = slowUntil("silent", func(a *stage.Act, p *stage.Process) error {
	a.Lasts(a.Work.TTL / 2)
	a.Hit()
	return nil
})

// slowThenSilentInABatch is slowThenSilent during local hand-overs, whose names do not reach Redis any more.
var slowThenSilentInABatch = slowUntil("silent at a rename", func(a *stage.Act, p *stage.Process) error {
	server, err := master(a)
	if err != nil {
		return err
	}
	for range 5 { // a hold may last for long
		if a.Meets(p.RelayTo(server).HoldBackSilently(a.Script(scripts.Rename)).Rule) {
			return nil
		}
	}
	return nil
})

// deleteAtRename deletes a lock when a rename after local hand-overs is about to be sent, and leaves others time to acquire
// the lock before that.
var deleteAtRename = stage.Fault{Name: "DEL at a rename", Inject: func(a *stage.Act) error {
	server, err := master(a)
	if err != nil {
		return err
	}
	p, late := a.Victim(), a.Between(0, a.Work.TTL/2)
	a.Begin("process %d: before its next rename the lock is deleted, and the rename comes %v later", p.Number, late)
	defer a.End()
	a.LoseData()
	deleted := make(chan error, 1)
	rename := p.RelayTo(server).Before(a.Script(scripts.Rename), func(command redistest.Command) {
		deleted <- do(a, server, "del", command.Arg(3))
		a.Lasts(late)
	})
	if a.Meets(rename) {
		return <-deleted
	}
	return nil
}}

// unsubscribed cuts the connections of a process, and makes the server refuse its subscriptions for a while. It is a
// disturbance only at the beginning: a process that is known to be not subscribed gets its turns.
var unsubscribed = stage.Fault{Name: "subscriptions refused", Inject: func(a *stage.Act) error {
	p, relay, err := aim(a)
	if err != nil {
		return err
	}
	a.Disturb("process %d: its connections are cut, and it may not subscribe any more", p.Number)
	rule := relay.ReplyWith("-NOPERM no permission to access the channel\r\n", redistest.Named("SUBSCRIBE", "SSUBSCRIBE")).Always()
	relay.Cut()
	a.Lasts(2 * a.Work.TTL)
	rule.Remove()
	select {
	case <-rule.Caught():
		a.Hit()
	default:
	}
	return nil
}}

// slowUntil makes every message of a process slower, until then, which makes it silent.
func slowUntil(what string, comes func(*stage.Act, *stage.Process) error) stage.Fault {
	return stage.Fault{Name: "slow, then " + what, Inject: func(a *stage.Act) error {
		p, d := a.Holder(), a.Between(a.Work.TTL/12, a.Work.TTL/10)
		a.Begin("process %d: every message takes %v longer, and then none arrives", p.Number, d)
		defer a.End()
		for _, r := range p.Relays {
			r.Latency(d)
		}
		err := comes(a, p)
		for _, r := range p.Relays {
			r.BlackHole(true)
		}
		a.Lasts(a.Work.TTL * 3 / 2)
		for _, r := range p.Relays {
			r.BlackHole(false)
			r.Latency(0)
			r.Cut()
		}
		return err
	}}
}
