package scenario

import (
	"fmt"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/scripts"
	"github.com/relock-go/relock/chaos/internal/stage"
	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redistest"
)

// clientScenarios are about processes that stop, die or misuse the library.
var clientScenarios = []*Scenario{
	{
		Number: 7, Name: "client-paused",
		What: "processes stop for longer than the lease: when they continue, the loss is reported first",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Faults: []stage.Fault{pauseProcess(1.2, 2.5), pauseProcess(1.2, 2.5), pauseProcess(0.1, 0.8)},
			Work: shortLeases.With(func(w *worker.Workload) { w.Long = 0.2 }),
		}},
		check: lostWhereSevered,
	},
	{
		Number: 8, Name: "client-killed",
		What:   "processes are killed: their locks are free when the lease has run out",
		setups: []stage.Setup{{Kind: deployment.Standalone, Work: usual(), Faults: []stage.Fault{killProcess}}},
	},
	{
		Number: 27, Name: "pool-exhausted",
		What: "the application uses up the connections of its client",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Faults: []stage.Fault{hogPool},
			Work: usual().With(func(w *worker.Workload) { w.PoolSize = 1; w.Long = 0.1 }),
		}},
	},
	{
		Number: 28, Name: "misuse",
		What: "Unlock twice, of another's, after a loss, after Close; Close of a client that holds; a thousand waiters",
		setups: []stage.Setup{
			{
				Kind: deployment.Standalone, Faults: []stage.Fault{letMisuse},
				Work: usual().With(func(w *worker.Workload) { w.Misuse = 0.3 }),
			},
			{
				Kind: deployment.Standalone, Faults: []stage.Fault{crowd},
				Work: usual().With(func(w *worker.Workload) {
					w.Workers, w.Names, w.Long, w.Impatient, w.Joint, w.Shared, w.Fair, w.Sides, w.Permits = 340, 1, 0, 0, 0, 0, 0, 0, 0
					w.TTL = 2 * time.Second
				}),
			},
		},
		check: misuseWasRefused,
	},
	{
		Number: 30, Name: "fair-waiters-stop",
		What: "processes that wait for fair locks are killed, or stop for longer than the lease of their entries: the others wait for one of them, not for all",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Faults: []stage.Fault{rarely(killWaiter), rarely(killWaiter), pauseWaiter, pauseWaiterLong},
			Work: usual().With(func(w *worker.Workload) {
				w.Workers, w.Names, w.Fair, w.Joint, w.Long, w.Fixed, w.Impatient, w.Sides, w.Permits, w.Poll = 12, 1, 1, 0, 0, 0, 0, 0, 0, 500*time.Millisecond
			}),
		}},
	},
	{
		Number: 32, Name: "line-harmed",
		What: "many processes with one waiter each are in one line: the first and the holder are killed, or stop; replies to acquisitions, polls and releases are lost, or these are delivered late",
		setups: []stage.Setup{{Kind: deployment.Standalone, Lanes: 2, Work: queueing(), Faults: []stage.Fault{
			killFirst, pauseFirst, rarely(killProcess), pauseProcess(1.2, 2.5),
			loseReply(scripts.Acquire), deliverLate(scripts.Acquire), loseReply(scripts.Release), deliverLate(scripts.Release), loseReply(scripts.Poll), deliverLate(scripts.Poll),
		}}},
	},
	{
		Number: 33, Name: "line-unsubscribed",
		What: "many processes with one waiter each are in one line, and messages of grants are lost: processes that are not subscribed are skipped, and none waits for longer than a lease",
		setups: []stage.Setup{{Kind: deployment.Standalone, Work: queueing(), Faults: []stage.Fault{
			killConnections("pubsub"), silentSubscriber, silentProcess, cut, denyPublish,
		}}},
	},
	{
		Number: 34, Name: "async-unlock",
		What: "Unlocks return before Redis has answered: processes are killed before the release is sent, its reply is lost, it is delivered late, and connections are cut",
		setups: []stage.Setup{{
			Kind: deployment.Standalone,
			Faults: []stage.Fault{
				rarely(killProcess), loseReply(scripts.Release), deliverLate(scripts.Release), loseReply(scripts.Acquire), deliverLate(scripts.Acquire), cut,
			},
			Work: usual().With(func(w *worker.Workload) { w.Async = 0.8 }),
		}},
	},
	{
		Number: 35, Name: "linger",
		What: "locks stay with the process for its next Lock: processes are killed meanwhile, messages of waiters are lost, replies of renames and releases are lost, or they are delivered late",
		setups: []stage.Setup{{
			Kind: deployment.Standalone,
			Faults: []stage.Fault{
				rarely(killProcess), killConnections("pubsub"), silentSubscriber, loseReply(scripts.Rename), deliverLate(scripts.Rename), loseReply(scripts.Release), deliverLate(scripts.Release), cut,
			},
			Work: usual().With(func(w *worker.Workload) { w.Linger, w.Async, w.Untokened = 0.8, 0.3, true }),
		}},
	},
}

// pauseProcess stops a process that holds a lock for a share of the lease.
func pauseProcess(least, most float64) stage.Fault { return pause((*stage.Act).Holder, least, most) }

// pauseWaiter stops a process that waits, for longer than the lease of any entry in the line.
var pauseWaiter = pause((*stage.Act).Waiter, 1.2, 2)

// pauseWaiterLong stops it until all others in the line have been served many times.
var pauseWaiterLong = pause((*stage.Act).Waiter, 4, 5)

func pause(whom func(*stage.Act) *stage.Process, least, most float64) stage.Fault {
	return stage.Fault{Name: "process paused", Inject: func(a *stage.Act) error {
		p := whom(a)
		d := shareOfTTL(a, least, most)
		return a.Pause(p, d)
	}}
}

// killProcess kills a process that holds a lock, and starts another one.
var killProcess = kill((*stage.Act).Holder)

// killWaiter kills a process that waits, and starts another one.
var killWaiter = kill((*stage.Act).Waiter)

func kill(whom func(*stage.Act) *stage.Process) stage.Fault {
	return stage.Fault{Name: "process killed", Inject: func(a *stage.Act) error {
		return a.Kill(whom(a))
	}}
}

// pauseFirst stops the first process in the line of a lock, for a while or until its entry is gone.
var pauseFirst = pause(firstInLine, 0.3, 2)

// killFirst kills the first process in the line of a lock.
var killFirst = rarely(kill(firstInLine))

// firstInLine returns the first process in the line of a lock, if there is one soon.
func firstInLine(a *stage.Act) *stage.Process {
	drawn := a.Victim()
	for range 100 {
		if p := standsFirst(a); p != nil {
			return p
		}
		a.Lasts(5 * time.Millisecond)
	}
	return drawn
}

// standsFirst returns the first process in the line of a lock, or nil if it cannot be determined.
func standsFirst(a *stage.Act) *stage.Process {
	lock := a.Lock()
	line := keys.LineOf(lock)
	if a.IsSemaphore(lock) {
		line = keys.PermitLineOf(lock)
	}
	server, err := a.Deployment.Master(a, lock)
	if err != nil {
		return nil
	}
	first, err := a.Deployment.Ask(a, server, "zrange", line.Queue, 0, 0)
	fields, _ := first.([]any)
	if err != nil || len(fields) == 0 {
		return nil
	}
	entry, err := a.Deployment.Ask(a, server, "hget", line.Entries, fields[0])
	if err != nil { // it has gone meanwhile
		return nil
	}
	words := strings.Fields(fmt.Sprint(entry))
	channel := words[len(words)-1] // of the process, which has sent it with its request
	for _, p := range a.Alive() {
		if p.RelayTo(server).Count(redistest.With(channel)) > 0 {
			return p
		}
	}
	return nil
}

// hogPool makes a process block all of its own connections.
var hogPool = stage.Fault{Name: "pool exhausted", Inject: func(a *stage.Act) error {
	p, d := a.Victim(), part(a, 1.5)
	a.Begin("process %d blocks all its connections for %v", p.Number, d)
	defer a.End()
	if err := p.Hog(d); err != nil {
		return err
	}
	a.Hit()
	a.Lasts(d)
	return nil
}}

// letMisuse lets the workers misuse the library. The check counts how often they did.
var letMisuse = stage.Fault{Name: "misuse", Inject: func(a *stage.Act) error {
	a.Lasts(a.Work.TTL / 4)
	a.HitUncounted()
	return nil
}}

// crowd makes a thousand goroutines wait for one lock.
var crowd = stage.Fault{Name: "a thousand waiters", Inject: func(a *stage.Act) error {
	a.Lasts(a.Work.TTL / 4)
	a.Hit()
	return nil
}}
