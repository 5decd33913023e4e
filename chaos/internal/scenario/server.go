package scenario

import (
	"fmt"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/scripts"
	"github.com/relock-go/relock/chaos/internal/stage"
	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/internal/redistest"
)

// serverScenarios are about a server that stops, loses data, refuses commands, or is slow.
var serverScenarios = []*Scenario{
	{
		Number: 4, Name: "caller-gives-up",
		What: "contexts end while their request is under way to a server that does not answer: the calls return at once",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Faults: []stage.Fault{freeze(0.3, 0.8)},
			Work: usual().With(func(w *worker.Workload) { w.Impatient = 0.7 }),
		}},
		check: someGaveUpInTime,
	},
	{
		Number: 5, Name: "server-frozen-briefly",
		What:   "the server stops for less than the lease: no hold is lost, no waiter fails",
		setups: []stage.Setup{{Kind: deployment.Standalone, Work: longLeases, Lossless: true, Faults: []stage.Fault{freeze(0.2, 0.4)}}},
		check:  noCallFailed,
	},
	{
		Number: 6, Name: "server-frozen-long",
		What: "the server stops for longer than the lease: holds are lost in time, and their Unlock reports it",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Faults: []stage.Fault{freeze(1.5, 2.2)},
			Work: shortLeases.With(func(w *worker.Workload) { w.Long = 0.2 }),
		}},
		check: lostWhereSevered,
	},
	{
		Number: 12, Name: "server-killed-aof",
		What:   "the server is killed and restarted with everything on disk: locks and tokens survive",
		setups: []stage.Setup{{Kind: deployment.Persistent, Work: longLeases, Lossless: true, Faults: []stage.Fault{restartKeeping}}},
	},
	{
		Number: 13, Name: "server-killed",
		What:   "the server is killed and restarted empty",
		setups: []stage.Setup{{Kind: deployment.Standalone, Work: usual(), SplitBrain: true, Faults: []stage.Fault{restartEmpty}}},
	},
	{
		Number: 14, Name: "data-deleted",
		What:   "keys are deleted, flushed or evicted",
		setups: []stage.Setup{{Kind: deployment.Standalone, Work: usual(), SplitBrain: true, Faults: []stage.Fault{flush, deleteLock, deleteLock, evict}}},
	},
	{
		Number: 15, Name: "scripts-forgotten",
		What: "the server forgets its scripts: no call fails",
		setups: []stage.Setup{
			{Kind: deployment.Standalone, Work: longLeases, Lossless: true, Faults: []stage.Fault{flushScripts}},
			{Kind: deployment.Cluster, Work: longLeases, Lossless: true, Faults: []stage.Fault{flushScripts, clusterFailover}},
		},
		check: noCallFailed,
	},
	{
		Number: 18, Name: "server-refuses",
		What:   "made-up and real error replies that mean that a command was not executed: it is sent again",
		setups: []stage.Setup{{Kind: deployment.Standalone, Work: usual(), Faults: []stage.Fault{refuse, refuse, refuse, noReplicas, busy, readOnly, tooManyClients}}},
	},
	{
		Number: 19, Name: "out-of-memory",
		What:   "the server is out of memory: acquisitions fail, renewals and releases work",
		setups: []stage.Setup{{Kind: deployment.Standalone, Work: longLeases, Lossless: true, Faults: []stage.Fault{outOfMemory}}},
		check:  unlocksSucceeded,
	},
	{
		Number: 20, Name: "publish-denied",
		What:   "the user may not PUBLISH: releases work, waiters poll",
		setups: []stage.Setup{{Kind: deployment.Standalone, Work: longLeases, Lossless: true, Faults: []stage.Fault{denyPublish}}},
		check:  unlocksSucceeded,
	},
	{
		Number: 22, Name: "slow-server",
		What:   "writes are paused, the network is slow, a script keeps the server busy",
		setups: []stage.Setup{{Kind: deployment.Standalone, Work: usual(), Faults: []stage.Fault{pauseWrites, latency, slowScript, delayReply(scripts.Acquire), delayReply(scripts.Renew), delayReply(scripts.Handoff)}}},
	},
	{
		Number: 23, Name: "clock-jumps",
		What:   "the server's clock is set forward and back by up to 20 s",
		setups: []stage.Setup{{Kind: deployment.Skewed, Work: usual(), SplitBrain: true, Faults: []stage.Fault{jump}}},
	},
}

// freeze stops the server for a share of the lease.
func freeze(least, most float64) stage.Fault {
	return stage.Fault{Name: "server frozen", Single: true, Inject: func(a *stage.Act) error {
		server, err := master(a)
		if err != nil {
			return err
		}
		d := shareOfTTL(a, least, most)
		a.Begin("%s frozen for %v", server.Addr, d)
		defer a.End()
		if err := server.Pause(); err != nil {
			return err
		}
		a.Outage(d)
		a.Hit()
		return server.Resume()
	}}
}

// restartKeeping kills a server that has everything on disk, and restarts it.
var restartKeeping = stage.Fault{Name: "server killed, data kept", Inject: func(a *stage.Act) error {
	probe, err := newProbe(a)
	if err != nil {
		return err
	}
	defer probe.close()
	a.Begin("the server is killed and restarted, with its data")
	err = restart(a)
	a.End()
	if err != nil {
		return err
	}
	return probe.survives("a restart with all data")
}}

var restartEmpty = stage.Fault{Name: "server killed, data lost", Inject: func(a *stage.Act) error {
	a.Begin("the server is killed and restarted empty")
	defer a.End()
	a.LoseData()
	return restart(a)
}}

func restart(a *stage.Act) error {
	server, err := master(a)
	if err != nil {
		return err
	}
	server.Kill()
	a.Hit()
	a.Lasts(a.Between(0, 50*time.Millisecond))
	return server.Restart()
}

var flush = stage.Fault{Name: "FLUSHALL", Inject: func(a *stage.Act) error {
	return wipe(a, "FLUSHALL", "flushall")
}}

var deleteLock = stage.Fault{Name: "DEL", Inject: func(a *stage.Act) error {
	lock := a.Lock()
	return wipe(a, "DEL "+lock, "del", lock)
}}

// wipe loses data by one command.
func wipe(a *stage.Act, what string, command ...any) error {
	server, err := master(a)
	if err != nil {
		return err
	}
	a.Begin("%s", what)
	defer a.End()
	a.LoseData()
	a.Hit()
	return do(a, server, command...)
}

// evict makes the server evict keys that have an expiry.
var evict = stage.Fault{Name: "eviction", Inject: func(a *stage.Act) error {
	server, err := master(a)
	if err != nil {
		return err
	}
	before, err := evicted(a, server)
	if err != nil {
		return err
	}
	a.Begin("the server evicts keys")
	defer a.End()
	a.LoseData()
	if err := do(a, server, "config", "set", "maxmemory-policy", "volatile-ttl"); err != nil { // Redis 6.2 takes one at a time
		return err
	}
	if err := do(a, server, "config", "set", "maxmemory", "1"); err != nil {
		return err
	}
	a.Lasts(a.Between(10*time.Millisecond, 50*time.Millisecond))
	if err := do(a, server, "config", "set", "maxmemory", "0"); err != nil {
		return err
	}
	if err := do(a, server, "config", "set", "maxmemory-policy", "noeviction"); err != nil {
		return err
	}
	after, err := evicted(a, server)
	if after > before {
		a.Hit()
	}
	return err
}}

// evicted returns how many keys the server has evicted so far.
func evicted(a *stage.Act, s *redistest.Server) (n int, err error) {
	info, err := a.Deployment.Ask(a, s, "info", "stats")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(fmt.Sprint(info), "evicted_keys:")
	_, err = fmt.Sscanf(rest, "%d", &n)
	return n, err
}

var flushScripts = stage.Fault{Name: "SCRIPT FLUSH", Inject: func(a *stage.Act) error {
	server, err := master(a)
	if err != nil {
		return err
	}
	a.Disturb("%s: SCRIPT FLUSH", server.Addr)
	a.Hit()
	return do(a, server, "script", "flush", "sync")
}}

var denyPublish = stage.Fault{Name: "PUBLISH denied", Inject: func(a *stage.Act) error {
	server, err := master(a)
	if err != nil {
		return err
	}
	d := a.Between(a.Work.TTL/2, 2*a.Work.TTL)
	a.Disturb("PUBLISH is denied for %v", d)
	if err := do(a, server, "acl", "setuser", "default", "-publish"); err != nil {
		return err
	}
	a.Hit()
	a.Lasts(d)
	err = do(a, server, "acl", "setuser", "default", "+publish")
	a.Disturb("PUBLISH is allowed again")
	return err
}}

var pauseWrites = stage.Fault{Name: "CLIENT PAUSE", Inject: func(a *stage.Act) error {
	server, err := master(a)
	if err != nil {
		return err
	}
	d := a.Between(a.Work.TTL/10, a.Work.TTL*3/2)
	a.Begin("CLIENT PAUSE %v WRITE", d)
	defer a.End()
	if err := do(a, server, "client", "pause", d.Milliseconds(), "write"); err != nil {
		return err
	}
	a.Hit()
	a.Lasts(d)
	return nil
}}

// latency makes every command and every reply of a process slower.
var latency = stage.Fault{Name: "latency", Inject: func(a *stage.Act) error {
	p, d := a.Victim(), a.Between(a.Work.TTL/20, a.Work.TTL/3)
	a.Begin("process %d: every message takes %v longer", p.Number, d)
	defer a.End()
	for _, r := range p.Relays {
		r.Latency(d)
	}
	a.Hit()
	a.Lasts(a.Work.TTL)
	for _, r := range p.Relays {
		r.Latency(0)
	}
	a.Lasts(d) // until the last slow message has arrived
	return nil
}}

var slowScript = stage.Fault{Name: "slow script", Inject: func(a *stage.Act) error {
	server, err := master(a)
	if err != nil {
		return err
	}
	d := part(a, 0.5)
	a.Begin("a script keeps the server for %v", d)
	defer a.End()
	a.Hit()
	return do(a, server, "debug", "sleep", fmt.Sprintf("%.3f", d.Seconds()))
}}

// delayReply delays the reply to one run of a script, and all later replies on its connection.
func delayReply(verb scripts.Verb) stage.Fault {
	return stage.Fault{Name: "reply to " + string(verb) + " delayed", Inject: func(a *stage.Act) error {
		p, relay, err := aim(a)
		if err != nil {
			return err
		}
		d := a.Between(a.Work.TTL/10, a.Work.TTL)
		a.Begin("process %d: the reply to %s takes %v longer", p.Number, verb, d)
		defer a.End()
		caught := make(chan struct{})
		rule := relay.After(a.Script(verb), func(redistest.Command, string) {
			close(caught)
			time.Sleep(d)
		})
		defer rule.Remove()
		select {
		case <-caught:
			a.Hit()
			a.Lasts(d)
		case <-time.After(a.Work.TTL):
		}
		return nil
	}}
}

// jump sets the server's clock, for a while.
var jump = stage.Fault{Name: "clock jump", Inject: func(a *stage.Act) error {
	d := a.Between(time.Second, 20*time.Second)
	if a.Rand.IntN(2) == 0 {
		d = -d
	}
	a.Begin("the server's clock is set by %v", d)
	defer a.End()
	a.LoseData()
	if err := a.Deployment.SetClock(d); err != nil {
		return err
	}
	a.Hit()
	a.Lasts(a.Between(a.Work.TTL/4, 2*a.Work.TTL))
	a.LoseData()
	return a.Deployment.SetClock(0)
}}
