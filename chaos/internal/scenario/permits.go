package scenario

import (
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/scripts"
	"github.com/relock-go/relock/chaos/internal/stage"
	"github.com/relock-go/relock/chaos/internal/worker"
)

// permitScenarios are about semaphores.
var permitScenarios = []*Scenario{
	{
		Number: 36, Name: "permits-killed",
		What: "processes that have permits are killed, or stop, and so is the first process in the line: their shares come back, and others are served",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lanes: 2, Work: permitted(), Faults: []stage.Fault{
				rarely(killProcess), killFirst, pauseFirst, pauseProcess(1.2, 2.5),
			},
		}},
	},
	{
		Number: 37, Name: "permits-reply-lost",
		What: "replies to each script of permits are lost, or the commands delivered late",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lanes: 3, Work: permitted(), Faults: []stage.Fault{
				loseReply(scripts.Acquire), loseReply(scripts.Poll), loseReply(scripts.Renew), loseReply(scripts.Release), loseFirstReply(scripts.Acquire),
				deliverLate(scripts.Acquire), deliverLate(scripts.Poll), deliverLate(scripts.Renew), deliverLate(scripts.Release),
			},
		}},
	},
	{
		Number: 38, Name: "permits-limits",
		What: "no fault, but processes are replaced, one after the other, by those of versions with the limits 2, 8 and 4: each request keeps to its own",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Work: permitted(), Faults: []stage.Fault{deployLimits},
		}},
	},
	{
		Number: 39, Name: "permits-failover",
		What: "a replica takes over at the sentinels' will, or after the master stops, which then goes on, or after it dies with writes that it had not replicated: if every replica confirms each permit, there is never one too many",
		setups: []stage.Setup{
			{Kind: deployment.Cluster, Work: keeping, SplitBrain: true, Faults: []stage.Fault{zombie, unreplicated}},
			{Kind: deployment.Sentinel, Work: keeping, SplitBrain: true, Faults: []stage.Fault{zombie, unreplicated, sentinelFailover}},
			// A permit counts only if every replica has it.
			{Kind: deployment.Cluster, Work: keeping.With(func(w *worker.Workload) { w.Replicas = 1 }), Faults: []stage.Fault{zombie, unreplicated}},
			{Kind: deployment.Sentinel, Work: keeping.With(func(w *worker.Workload) { w.Replicas = 2 }), Faults: []stage.Fault{zombie, unreplicated, sentinelFailover}},
		},
	},
}

// targetedAtPermits are scenarios for one promise of semaphores each.
var targetedAtPermits = []*Scenario{
	{
		Number: 132, Name: "permits-calm",
		What: "no fault at all: permits are granted in the order of the line, as many as fit, and each waiter is served at once when a permit or its min hold ends, though others give up",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Prompt: true, Faults: []stage.Fault{nothing},
			Work: permitted().With(func(w *worker.Workload) {
				w.TTL, w.Poll, w.Fixed, w.Long, w.Lasting = 3*time.Second, 2*time.Second, 0, 0.05, [2]float64{0.2, 0.4}
				w.MinHold = 0.1
			}),
		}},
	},
	{
		Number: 135, Name: "permits-at-once",
		What: "no fault at all, and permits of one process that are all used for long: as many are granted at once as fit",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Prompt: true, Faults: []stage.Fault{nothing},
			Work: permitted().With(func(w *worker.Workload) {
				w.TTL, w.Poll, w.Fixed, w.Long, w.Lasting = 3*time.Second, 2*time.Second, 0, 1, [2]float64{0.2, 0.4}
				w.Processes, w.Workers, w.Limit = 1, 12, 6
			}),
		}},
	},
	{
		Number: 141, Name: "permits-kept",
		What: "no fault at all, and one permit, which half of the time is released early: the first in line learns when the min hold ends",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Prompt: true, Faults: []stage.Fault{nothing},
			Work: permitted().With(func(w *worker.Workload) {
				w.TTL, w.Poll, w.Fixed, w.Long, w.Heavy, w.MinHold, w.Limit = 3*time.Second, 2*time.Second, 0, 0, 0, 0.5, 1
			}),
		}},
	},
	{
		Number: 133, Name: "permits-expire",
		What: "no fault at all: permits that are not renewed, and kept for longer than their lease, are in use until it ends, and those that are released early until their min hold does",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Faults: []stage.Fault{nothing},
			Work: permitted().With(func(w *worker.Workload) {
				w.Heavy, w.MinHold, w.Fixed, w.Long, w.Lasting = 0, 0.1, 0.3, 0.15, [2]float64{0.5, 5}
			}),
		}},
	},
	{
		Number: 134, Name: "permits-deleted",
		What: "semaphores are deleted while permits are in use: the next renewal reports the loss",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, SplitBrain: true, Faults: []stage.Fault{rarely(deleteLock), rarely(flush)},
			Work: permitted().With(func(w *worker.Workload) { w.Fixed, w.Long, w.Lasting = 0, 0.5, [2]float64{1, 3} }),
		}},
	},
}

// keeping is a workload of permits that are kept for long: in any failover some are in use.
var keeping = permitted().With(func(w *worker.Workload) { w.Long = 0.3 })

// deployLimits replaces all processes again and again, each time with another limit.
var deployLimits = stage.Fault{Name: "another limit", Inject: func(a *stage.Act) error {
	for _, limit := range []int{2, 8, 4} {
		for _, p := range a.Alive() {
			if err := a.Deploy(p, limit); err != nil {
				return err
			}
		}
		a.Lasts(a.Work.TTL / 2)
	}
	return nil
}}
