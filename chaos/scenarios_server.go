package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/scripts"
	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/internal/redistest"
)

// serverScenarios are those of a server that stops, forgets, refuses or is slow.
var serverScenarios = []*scenario{
	{
		number: 4, name: "caller-gives-up",
		what: "contexts end while their request is under way to a server that does not answer: the calls return at once",
		casts: []cast{{kind: deployment.Standalone, faults: []fault{freeze(0.3, 0.8)},
			work: usual().With(func(w *worker.Workload) { w.Impatient = 0.7 })}},
		check: someGaveUpInTime,
	},
	{
		number: 5, name: "server-frozen-briefly",
		what:  "the server stops for less than the lease: no hold is lost, no waiter fails",
		casts: []cast{{kind: deployment.Standalone, work: lasting, lossless: true, faults: []fault{freeze(0.2, 0.4)}}},
		check: nobodyFailed,
	},
	{
		number: 6, name: "server-frozen-long",
		what: "the server stops for longer than the lease: holds are lost in time, and their Unlock says so",
		casts: []cast{{kind: deployment.Standalone, faults: []fault{freeze(1.5, 2.2)},
			work: brief.With(func(w *worker.Workload) { w.Long = 0.2 })}},
		check: lostWhereSevered,
	},
	{
		number: 12, name: "server-killed-aof",
		what:  "the server is killed and restarted with everything on disk: locks and tokens survive",
		casts: []cast{{kind: deployment.Persistent, work: lasting, lossless: true, faults: []fault{restartKeeping}}},
	},
	{
		number: 13, name: "server-killed",
		what:  "the server is killed and restarted empty",
		casts: []cast{{kind: deployment.Standalone, work: usual(), splitBrain: true, faults: []fault{restartEmpty}}},
	},
	{
		number: 14, name: "data-deleted",
		what:  "keys are deleted, flushed or evicted",
		casts: []cast{{kind: deployment.Standalone, work: usual(), splitBrain: true, faults: []fault{flush, deleteLock, deleteLock, evict}}},
	},
	{
		number: 15, name: "scripts-forgotten",
		what: "the server forgets its scripts: nobody notices",
		casts: []cast{
			{kind: deployment.Standalone, work: lasting, lossless: true, faults: []fault{flushScripts}},
			{kind: deployment.Cluster, work: lasting, lossless: true, faults: []fault{flushScripts, clusterFailover}},
		},
		check: nobodyFailed,
	},
	{
		number: 18, name: "server-refuses",
		what:  "error replies that say that a command was not executed, made up and real: it is tried again",
		casts: []cast{{kind: deployment.Standalone, work: usual(), faults: []fault{refuse, refuse, refuse, noReplicas, busy, readOnly, tooManyClients}}},
	},
	{
		number: 19, name: "out-of-memory",
		what:  "the server is out of memory: acquisitions fail, renewals and releases work",
		casts: []cast{{kind: deployment.Standalone, work: lasting, lossless: true, faults: []fault{outOfMemory}}},
		check: unlocksSucceeded,
	},
	{
		number: 20, name: "publish-denied",
		what:  "the user may not PUBLISH: releases work, waiters poll",
		casts: []cast{{kind: deployment.Standalone, work: lasting, lossless: true, faults: []fault{denyPublish}}},
		check: unlocksSucceeded,
	},
	{
		number: 22, name: "slow-server",
		what:  "writes are paused, the network is slow, a script keeps the server busy",
		casts: []cast{{kind: deployment.Standalone, work: usual(), faults: []fault{pauseWrites, latency, slowScript, delayReply(scripts.Acquire), delayReply(scripts.Renew), delayReply(scripts.Handoff)}}},
	},
	{
		number: 23, name: "clock-jumps",
		what:  "the server's clock is set forward and back by up to 20 s",
		casts: []cast{{kind: deployment.Skewed, work: usual(), splitBrain: true, faults: []fault{jump}}},
	},
}

// freeze stops the server for a share of the lease.
func freeze(least, most float64) fault {
	return fault{name: "server frozen", single: true, inject: func(a *act) error {
		master, err := a.master()
		if err != nil {
			return err
		}
		d := a.between(time.Duration(least*float64(a.work.TTL)), time.Duration(most*float64(a.work.TTL)))
		a.begin("%s frozen for %v", master.Addr, d)
		defer a.end()
		if err := master.Pause(); err != nil {
			return err
		}
		a.sever(nil, func() { a.lasts(d) })
		a.hit()
		return master.Resume()
	}}
}

// restartKeeping kills a server that has everything on disk.
var restartKeeping = fault{name: "server killed, data kept", inject: func(a *act) error {
	probe, err := newProbe(a)
	if err != nil {
		return err
	}
	defer probe.close()
	a.begin("the server is killed and restarted, with its data")
	err = a.restart()
	a.end()
	if err != nil {
		return err
	}
	return probe.survives("a restart with all data")
}}

var restartEmpty = fault{name: "server killed, data lost", inject: func(a *act) error {
	a.begin("the server is killed and restarted empty")
	defer a.end()
	a.loseData()
	return a.restart()
}}

func (a *act) restart() error {
	master, err := a.master()
	if err != nil {
		return err
	}
	master.Kill()
	a.hit()
	a.lasts(a.between(0, 50*time.Millisecond))
	return master.Restart()
}

var flush = fault{name: "FLUSHALL", inject: func(a *act) error {
	return a.wipe("FLUSHALL", "flushall")
}}

var deleteLock = fault{name: "DEL", inject: func(a *act) error {
	lock := a.lock()
	return a.wipe("DEL "+lock, "del", lock)
}}

// wipe loses data by one command.
func (a *act) wipe(what string, command ...any) error {
	master, err := a.master()
	if err != nil {
		return err
	}
	a.begin("%s", what)
	defer a.end()
	a.loseData()
	a.hit()
	return a.do(master, command...)
}

// evict has the server make room by throwing away what has a time to live.
var evict = fault{name: "eviction", inject: func(a *act) error {
	master, err := a.master()
	if err != nil {
		return err
	}
	before, err := a.evicted(master)
	if err != nil {
		return err
	}
	a.begin("the server evicts keys")
	defer a.end()
	a.loseData()
	if err := a.do(master, "config", "set", "maxmemory-policy", "volatile-ttl", "maxmemory", "1"); err != nil {
		return err
	}
	a.lasts(a.between(10*time.Millisecond, 50*time.Millisecond))
	if err := a.do(master, "config", "set", "maxmemory", "0", "maxmemory-policy", "noeviction"); err != nil {
		return err
	}
	after, err := a.evicted(master)
	if after > before {
		a.hit()
	}
	return err
}}

// evicted is how many keys the server has evicted so far.
func (a *act) evicted(s *redistest.Server) (n int, err error) {
	info, err := a.d.Ask(a, s, "info", "stats")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(fmt.Sprint(info), "evicted_keys:")
	_, err = fmt.Sscanf(rest, "%d", &n)
	return n, err
}

var flushScripts = fault{name: "SCRIPT FLUSH", inject: func(a *act) error {
	master, err := a.master()
	if err != nil {
		return err
	}
	a.disturb("%s: SCRIPT FLUSH", master.Addr)
	a.hit()
	return a.do(master, "script", "flush", "sync")
}}

var denyPublish = fault{name: "PUBLISH denied", inject: func(a *act) error {
	master, err := a.master()
	if err != nil {
		return err
	}
	d := a.between(a.work.TTL/2, 2*a.work.TTL)
	a.disturb("PUBLISH is denied for %v", d)
	if err := a.do(master, "acl", "setuser", "default", "-publish"); err != nil {
		return err
	}
	a.hit()
	a.lasts(d)
	return a.do(master, "acl", "setuser", "default", "+publish")
}}

var pauseWrites = fault{name: "CLIENT PAUSE", inject: func(a *act) error {
	master, err := a.master()
	if err != nil {
		return err
	}
	d := a.between(a.work.TTL/10, a.work.TTL*3/2)
	a.begin("CLIENT PAUSE %v WRITE", d)
	defer a.end()
	if err := a.do(master, "client", "pause", d.Milliseconds(), "write"); err != nil {
		return err
	}
	a.hit()
	a.lasts(d)
	return nil
}}

// latency slows every command and every reply of a process down.
var latency = fault{name: "latency", inject: func(a *act) error {
	p, d := a.victim(), a.between(a.work.TTL/20, a.work.TTL/3)
	a.begin("process %d: every message takes %v longer", p.number, d)
	defer a.end()
	for _, r := range p.relays {
		r.Latency(d)
	}
	a.hit()
	a.lasts(a.work.TTL)
	for _, r := range p.relays {
		r.Latency(0)
	}
	a.lasts(d) // until the last slow message has arrived
	return nil
}}

var slowScript = fault{name: "slow script", inject: func(a *act) error {
	master, err := a.master()
	if err != nil {
		return err
	}
	d := a.part(0.5)
	a.begin("a script keeps the server for %v", d)
	defer a.end()
	a.hit()
	return a.do(master, "debug", "sleep", fmt.Sprintf("%.3f", d.Seconds()))
}}

// delayReply delays the reply to one run of a script, and all that follow it on its
// connection.
func delayReply(verb scripts.Verb) fault {
	return fault{name: "reply to " + string(verb) + " delayed", inject: func(a *act) error {
		p, relay, match, err := a.aim(verb)
		if err != nil {
			return err
		}
		d := a.between(a.work.TTL/10, a.work.TTL)
		a.begin("process %d: the reply to %s takes %v longer", p.number, verb, d)
		defer a.end()
		caught := make(chan struct{})
		rule := relay.After(match, func(redistest.Command, string) {
			close(caught)
			time.Sleep(d)
		})
		defer rule.Remove()
		select {
		case <-caught:
			a.hit()
			a.lasts(d)
		case <-time.After(a.work.TTL):
		}
		return nil
	}}
}

// jump sets the server's clock, for a while.
var jump = fault{name: "clock jump", inject: func(a *act) error {
	d := a.between(time.Second, 20*time.Second)
	if a.r.IntN(2) == 0 {
		d = -d
	}
	a.begin("the server's clock is set by %v", d)
	defer a.end()
	a.loseData()
	if err := a.d.SetClock(d); err != nil {
		return err
	}
	a.hit()
	a.lasts(a.between(a.work.TTL/4, 2*a.work.TTL))
	a.loseData()
	return a.d.SetClock(0)
}}
