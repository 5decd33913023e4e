package main

import (
	"context"
	"fmt"
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/internal/redistest"
)

// failoverScenarios are those of masters that change.
var failoverScenarios = []*scenario{
	{
		number: 16, name: "failover",
		what: "a replica takes over in agreement with the master, or at the sentinels' will: a lock that was replicated survives",
		casts: []cast{
			{kind: deployment.Cluster, work: lasting, lossless: true, faults: []fault{clusterFailover}},
			{kind: deployment.Sentinel, work: usual(), splitBrain: true, faults: []fault{sentinelFailover}},
		},
	},
	{
		number: 17, name: "zombie-master",
		what: "a master stops, a replica takes over, and the old one goes on; or it dies with writes that it had not replicated",
		casts: []cast{
			{kind: deployment.Cluster, work: usual(), splitBrain: true, faults: []fault{zombie, unreplicated}},
			{kind: deployment.Sentinel, work: usual(), splitBrain: true, faults: []fault{zombie, unreplicated}},
			// A lease counts only if every replica has it: then nobody forgets it, and no two hold.
			{kind: deployment.Cluster, work: usual().With(func(w *worker.Workload) { w.Replicas = 1 }), faults: []fault{zombie, unreplicated}},
			{kind: deployment.Sentinel, work: usual().With(func(w *worker.Workload) { w.Replicas = 2 }), faults: []fault{zombie, unreplicated, sentinelFailover}},
		},
	},
	{
		number: 21, name: "slot-migration",
		what: "a lock's slot moves to another master and back: no hold is lost",
		casts: []cast{
			{kind: deployment.Cluster, work: lasting, lossless: true, faults: []fault{migrate}},
			{kind: deployment.Cluster, work: lasting.With(shard), lossless: true, faults: []fault{migrate}},
		},
	},
}

// clusterFailover has a replica take over in agreement with its master, which loses nothing.
var clusterFailover = fault{name: "CLUSTER FAILOVER", inject: func(a *act) error {
	probe, err := newProbe(a)
	if err != nil {
		return err
	}
	defer probe.close()
	a.lasts(a.d.FailoverIn())
	a.begin("CLUSTER FAILOVER")
	master, err := a.d.Failover(a, probe.name)
	if err == nil {
		a.hit()
		a.logf("fault %d: %s is master of %s", a.op, master.Addr, probe.name)
		err = a.d.AwaitReady(a)
	}
	a.end()
	if err != nil {
		return err
	}
	return probe.survives("CLUSTER FAILOVER")
}}

// sentinelFailover has the sentinels replace a master that is alive. It goes on taking
// writes, which are lost, until it is told.
var sentinelFailover = fault{name: "SENTINEL FAILOVER", inject: func(a *act) error {
	probe, err := newProbe(a)
	if err != nil {
		return err
	}
	defer probe.close()
	if err := probe.replicated(); err != nil {
		return err
	}
	a.begin("SENTINEL FAILOVER")
	a.loseData()
	master, err := a.d.Failover(a, probe.name)
	if err == nil {
		a.hit()
		a.logf("fault %d: %s is master", a.op, master.Addr)
		err = a.moved()
	}
	if err != nil {
		return err
	}
	return probe.survives("SENTINEL FAILOVER")
}}

// moved waits until the deployment is complete again after a failover. The fault ends when
// clients have moved to the new master: their subscriptions may stay on the old one, and
// deaf, for longer. But if every replica has to confirm, there is one missing until the end.
func (a *act) moved() error {
	a.lasts(time.Second)
	if a.work.Replicas == 0 {
		a.end()
		return a.d.AwaitReady(a)
	}
	defer a.end()
	return a.d.AwaitReady(a)
}

// zombie stops a master until a replica has taken over, and lets it go on then.
var zombie = fault{name: "zombie master", inject: func(a *act) error {
	key := a.lock()
	old, err := a.d.Master(a, key)
	if err != nil {
		return err
	}
	a.begin("%s is frozen until a replica has taken over", old.Addr)
	a.loseData()
	if err := old.Pause(); err != nil {
		return err
	}
	next, err := a.d.AwaitSuccessor(a, key, old)
	if err != nil {
		return err
	}
	a.logf("fault %d: %s is master, and %s goes on", a.op, next.Addr, old.Addr)
	a.hit()
	if err := old.Resume(); err != nil {
		return err
	}
	return a.moved()
}}

// unreplicated kills a master whose last writes no replica has got.
var unreplicated = fault{name: "writes lost in a failover", inject: func(a *act) error {
	key := a.lock()
	old, err := a.d.Master(a, key)
	if err != nil {
		return err
	}
	replicas, err := a.d.Replicas(a, key, old)
	if err != nil {
		return err
	}
	d := a.between(50*time.Millisecond, 300*time.Millisecond)
	a.begin("%s writes for %v without a replica, and is killed", old.Addr, d)
	defer a.end()
	a.loseData()
	for _, s := range replicas {
		if err := s.Pause(); err != nil {
			return err
		}
	}
	a.lasts(d)
	old.Kill()
	for _, s := range replicas {
		if err := s.Resume(); err != nil {
			return err
		}
	}
	next, err := a.d.AwaitSuccessor(a, key, old)
	if err != nil {
		return err
	}
	a.logf("fault %d: %s is master", a.op, next.Addr)
	a.hit()
	if err := old.Restart(); err != nil {
		return err
	}
	return a.d.AwaitReady(a)
}}

// migrate moves the slot of a lock to another master, key by key, as resharding does.
var migrate = fault{name: "slot migrated", inject: func(a *act) error {
	key := a.lock()
	from, err := a.d.Master(a, key)
	if err != nil {
		return err
	}
	to, err := a.otherMaster(from)
	if err != nil {
		return err
	}
	slot, err := a.d.Ask(a, from, "cluster", "keyslot", key)
	if err != nil {
		return err
	}
	a.disturb("slot %v, of %s, moves from %s to %s", slot, key, from.Addr, to.Addr)
	if err := a.move(slot, from, to); err != nil {
		return err
	}
	a.hit()
	return a.d.AwaitMaster(a, key, to)
}}

// otherMaster chooses another master.
func (a *act) otherMaster(than *redistest.Server) (*redistest.Server, error) {
	first := a.r.IntN(100)
	for i := range 100 {
		s, err := a.d.Master(a, fmt.Sprintf("any-%d", first+i))
		if err != nil {
			return nil, err
		}
		if s != than {
			return s, nil
		}
	}
	return nil, fmt.Errorf("%s is the only master", than.Addr)
}

func (a *act) move(slot any, from, to *redistest.Server) error {
	source, err := a.d.Ask(a, from, "cluster", "myid")
	if err != nil {
		return err
	}
	target, err := a.d.Ask(a, to, "cluster", "myid")
	if err != nil {
		return err
	}
	if err := a.do(to, "cluster", "setslot", slot, "importing", source); err != nil {
		return err
	}
	if err := a.do(from, "cluster", "setslot", slot, "migrating", target); err != nil {
		return err
	}
	a.lasts(a.between(0, 100*time.Millisecond))
	for {
		keys, err := a.d.Ask(a, from, "cluster", "getkeysinslot", slot, 1)
		if err != nil {
			return err
		}
		if len(keys.([]any)) == 0 {
			break
		}
		host, port := hostPort(to.Addr)
		if err := a.do(from, "migrate", host, port, keys.([]any)[0], 0, 5000); err != nil {
			return err
		}
		a.lasts(a.between(0, 5*time.Millisecond))
	}
	for _, s := range []*redistest.Server{to, from} {
		if err := a.do(s, "cluster", "setslot", slot, "node", target); err != nil {
			return err
		}
	}
	return nil
}

// await polls cond until it holds.
func await(ctx context.Context, what string, cond func() (bool, error)) error {
	deadline := time.Now().Add(20 * time.Second)
	for {
		ok, err := cond()
		if ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("gave up waiting for %s", what)
		}
		wait(ctx, 5*time.Millisecond)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
