package scenario

import (
	"fmt"
	"net"
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/stage"
	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/internal/redistest"
)

// failoverScenarios are about masters that change.
var failoverScenarios = []*Scenario{
	{
		Number: 16, Name: "failover",
		What: "a replica takes over in agreement with the master, or at the sentinels' will: a lock that was replicated survives",
		setups: []stage.Setup{
			{Kind: deployment.Cluster, Work: longLeases, Lossless: true, Faults: []stage.Fault{clusterFailover}},
			{Kind: deployment.Sentinel, Work: usual(), SplitBrain: true, Faults: []stage.Fault{sentinelFailover}},
		},
	},
	{
		Number: 17, Name: "zombie-master",
		What: "a master stops, a replica takes over, and the old one goes on; or it dies with writes that it had not replicated",
		setups: []stage.Setup{
			{Kind: deployment.Cluster, Work: usual(), SplitBrain: true, Faults: []stage.Fault{zombie, unreplicated}},
			{Kind: deployment.Sentinel, Work: usual(), SplitBrain: true, Faults: []stage.Fault{zombie, unreplicated}},
			// A lease counts only if every replica has it. Then it is never lost, and there are never two holders.
			{Kind: deployment.Cluster, Work: usual().With(func(w *worker.Workload) { w.Replicas = 1 }), Faults: []stage.Fault{zombie, unreplicated}},
			{Kind: deployment.Sentinel, Work: usual().With(func(w *worker.Workload) { w.Replicas = 2 }), Faults: []stage.Fault{zombie, unreplicated, sentinelFailover}},
		},
	},
	{
		Number: 21, Name: "slot-migration",
		What: "a lock's slot moves to another master and back: no hold is lost",
		setups: []stage.Setup{
			{Kind: deployment.Cluster, Work: longLeases, Lossless: true, Faults: []stage.Fault{migrate}},
			{Kind: deployment.Cluster, Work: longLeases.With(shardedPubSub), Lossless: true, Faults: []stage.Fault{migrate}},
		},
	},
}

// clusterFailover promotes a replica in agreement with its master, so that nothing is lost.
var clusterFailover = stage.Fault{Name: "CLUSTER FAILOVER", Inject: func(a *stage.Act) error {
	probe, err := newProbe(a)
	if err != nil {
		return err
	}
	defer probe.close()
	a.Lasts(a.Deployment.FailoverIn())
	a.Begin("CLUSTER FAILOVER")
	master, err := a.Deployment.Failover(a, probe.name)
	if err == nil {
		a.Hit()
		a.Logf("%s is master of %s", master.Addr, probe.name)
		err = a.Deployment.AwaitReady(a)
	}
	a.End()
	if err != nil {
		return err
	}
	return probe.survives("CLUSTER FAILOVER")
}}

// sentinelFailover makes the sentinels replace a master that is alive. Until it is notified, it accepts writes, which are lost.
var sentinelFailover = stage.Fault{Name: "SENTINEL FAILOVER", Inject: func(a *stage.Act) error {
	probe, err := newProbe(a)
	if err != nil {
		return err
	}
	defer probe.close()
	if err := probe.replicated(); err != nil {
		return err
	}
	a.Begin("SENTINEL FAILOVER")
	a.LoseData()
	master, err := a.Deployment.Failover(a, probe.name)
	if err == nil {
		a.Hit()
		a.Logf("%s is master", master.Addr)
		err = moved(a)
	}
	if err != nil {
		return err
	}
	return probe.survives("SENTINEL FAILOVER")
}}

// moved waits until the deployment is complete again after a failover. The fault ends when clients use the new master. Their
// subscriptions may stay on the old one for longer, and receive nothing. If every replica has to confirm, one is missing
// until the end. A client that is not notified of the new master may write to the old one until that is a replica.
func moved(a *stage.Act) error {
	a.Lasts(time.Second)
	if a.Work.Replicas == 0 {
		a.End()
	} else {
		defer a.End()
	}
	err := a.Deployment.AwaitReady(a)
	a.LoseData()
	return err
}

// zombie stops a master until a replica has taken over, and then resumes it.
var zombie = stage.Fault{Name: "zombie master", Inject: func(a *stage.Act) error {
	key := a.Lock()
	old, err := a.Deployment.Master(a, key)
	if err != nil {
		return err
	}
	a.Begin("%s is frozen until a replica has taken over", old.Addr)
	a.LoseData()
	if err := old.Pause(); err != nil {
		return err
	}
	next, err := a.Deployment.AwaitSuccessor(a, key, old)
	if err != nil {
		return err
	}
	a.Logf("%s is master, and %s goes on", next.Addr, old.Addr)
	a.Hit()
	if err := old.Resume(); err != nil {
		return err
	}
	return moved(a)
}}

// unreplicated kills a master whose last writes no replica has got.
var unreplicated = stage.Fault{Name: "writes lost in a failover", Inject: func(a *stage.Act) error {
	key := a.Lock()
	old, err := a.Deployment.Master(a, key)
	if err != nil {
		return err
	}
	replicas, err := a.Deployment.Replicas(a, key, old)
	if err != nil {
		return err
	}
	d := a.Between(50*time.Millisecond, 300*time.Millisecond)
	a.Begin("%s writes for %v without a replica, and is killed", old.Addr, d)
	defer a.End()
	a.LoseData()
	for _, s := range replicas {
		if err := s.Pause(); err != nil {
			return err
		}
	}
	a.Lasts(d)
	old.Kill()
	for _, s := range replicas {
		if err := s.Resume(); err != nil {
			return err
		}
	}
	next, err := a.Deployment.AwaitSuccessor(a, key, old)
	if err != nil {
		return err
	}
	a.Logf("%s is master", next.Addr)
	a.Hit()
	if err := old.Restart(); err != nil {
		return err
	}
	return a.Deployment.AwaitReady(a)
}}

// migrate moves the slot of a lock to another master, key by key, as resharding does.
var migrate = stage.Fault{Name: "slot migrated", Inject: func(a *stage.Act) error {
	key := a.Lock()
	from, err := a.Deployment.Master(a, key)
	if err != nil {
		return err
	}
	to, err := otherMaster(a, from)
	if err != nil {
		return err
	}
	slot, err := a.Deployment.Ask(a, from, "cluster", "keyslot", key)
	if err != nil {
		return err
	}
	a.Disturb("slot %v, of %s, moves from %s to %s", slot, key, from.Addr, to.Addr)
	if err := move(a, slot, from, to); err != nil {
		return err
	}
	// Subscribers at the former master receive nothing until they have found the new one.
	a.Disturb("slot %v, of %s, has moved", slot, key)
	a.Hit()
	return a.Deployment.AwaitMaster(a, key, to)
}}

// otherMaster chooses another master.
func otherMaster(a *stage.Act, than *redistest.Server) (*redistest.Server, error) {
	first := a.Rand.IntN(100)
	for i := range 100 {
		s, err := a.Deployment.Master(a, fmt.Sprintf("any-%d", first+i))
		if err != nil {
			return nil, err
		}
		if s != than {
			return s, nil
		}
	}
	return nil, fmt.Errorf("%s is the only master", than.Addr)
}

func move(a *stage.Act, slot any, from, to *redistest.Server) error {
	source, err := a.Deployment.Ask(a, from, "cluster", "myid")
	if err != nil {
		return err
	}
	target, err := a.Deployment.Ask(a, to, "cluster", "myid")
	if err != nil {
		return err
	}
	if err := do(a, to, "cluster", "setslot", slot, "importing", source); err != nil {
		return err
	}
	if err := do(a, from, "cluster", "setslot", slot, "migrating", target); err != nil {
		return err
	}
	a.Lasts(a.Between(0, 100*time.Millisecond))
	for {
		keys, err := a.Deployment.Ask(a, from, "cluster", "getkeysinslot", slot, 1)
		if err != nil {
			return err
		}
		if len(keys.([]any)) == 0 {
			break
		}
		host, port := hostPort(to.Addr)
		if err := do(a, from, "migrate", host, port, keys.([]any)[0], 0, 5000); err != nil {
			return err
		}
		a.Lasts(a.Between(0, 5*time.Millisecond))
	}
	for _, s := range []*redistest.Server{to, from} {
		if err := do(a, s, "cluster", "setslot", slot, "node", target); err != nil {
			return err
		}
	}
	return nil
}

// hostPort are the two parts of an address.
func hostPort(addr string) (host, port string) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		panic(fmt.Sprintf("address %q of a server: %v", addr, err))
	}
	return host, port
}
