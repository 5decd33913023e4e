package scenario

import (
	"slices"
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/stage"
	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/internal/redistest"
)

// quorumScenarios are about locks on several independent masters.
var quorumScenarios = []*Scenario{
	{
		Number: 24, Name: "quorum-minority",
		What: "two of five masters are dead, stop, or are slow: calls are served then, and their holds are kept",
		setups: []stage.Setup{{
			Kind: deployment.Quorum, Work: voting.With(withLongLeases),
			Faults: []stage.Fault{killMinority, freezeMinority, slowMinority, cutMinority},
		}},
		check: minorityUnnoticed,
	},
	{
		Number: 25, Name: "quorum-majority",
		What: "three of five masters stop or die for longer than the lease, and then come back empty: holds are lost in time; or they come back at once",
		setups: []stage.Setup{
			{
				Kind: deployment.Quorum, Faults: []stage.Fault{freezeMajority, killMajority},
				Work: voting.With(func(w *worker.Workload) { w.TTL, w.Long = 600*time.Millisecond, 0.3 }),
			},
			{Kind: deployment.Quorum, Work: voting, SplitBrain: true, Faults: []stage.Fault{restartMajority}},
		},
		check: func(seen *stage.Evidence) error {
			if seen.Setup.SplitBrain {
				return nil
			}
			return lostWhereSevered(seen)
		},
	},
	{
		Number: 26, Name: "quorum-partitions",
		What: "every process is cut off from two masters of its own, and then from two others; or single masters come back empty",
		setups: []stage.Setup{
			{Kind: deployment.Quorum, Work: voting.With(func(w *worker.Workload) { w.Long = 0.2 }), Faults: []stage.Fault{partition}},
			{Kind: deployment.Quorum, Work: voting.With(func(w *worker.Workload) { w.Long = 0.2 }), SplitBrain: true, Faults: []stage.Fault{partition, restartOne, restartOne}},
		},
	},
	{
		Number: 31, Name: "quorum-clocks",
		What:   "the masters' clocks are up to 80 s apart, and every process is cut off from two masters of its own, and then from two others: tokens rise whichever masters vote",
		setups: []stage.Setup{{Kind: deployment.SkewedQuorum, Work: voting.With(func(w *worker.Workload) { w.Long = 0.05 }), Faults: []stage.Fault{partition}}},
	},
}

// minority and majority return two and three of the masters, chosen at random.
func minority(a *stage.Act) []*redistest.Server {
	return some(a, 2, a.Rand.Perm(len(a.Deployment.Servers)))
}

func majority(a *stage.Act) []*redistest.Server {
	return some(a, 3, a.Rand.Perm(len(a.Deployment.Servers)))
}

func some(a *stage.Act, n int, order []int) []*redistest.Server {
	var chosen []*redistest.Server
	for _, i := range order[:n] {
		chosen = append(chosen, a.Deployment.Servers[i])
	}
	return chosen
}

// outage is a fault of masters for a while. It returns a function that ends it.
type outage func(a *stage.Act, servers []*redistest.Server) (recover func() error, err error)

// toMinority applies a fault to two masters, which delays no waiter. It lasts so long that the leases that they may have lost
// have ended on the others. A hold that was acquired before, while votes were split, may depend on the two: it may be lost.
func toMinority(what string, o outage) stage.Fault {
	return stage.Fault{Name: what + " minority", Inject: func(a *stage.Act) error {
		d := a.Between(3*a.Work.TTL, 5*a.Work.TTL)
		a.Disturb("two masters are %s for %v", what, d)
		recover, err := o(a, minority(a))
		if err != nil {
			return err
		}
		a.Hit()
		a.Outage(d)
		return recover()
	}}
}

// toMajority applies a fault to three masters, for longer than any lease.
func toMajority(what string, o outage) stage.Fault {
	return stage.Fault{Name: what + " majority", Inject: func(a *stage.Act) error {
		d := a.Between(a.Work.TTL*3/2, a.Work.TTL*5/2)
		a.Begin("three masters are %s for %v", what, d)
		defer a.End()
		recover, err := o(a, majority(a))
		if err != nil {
			return err
		}
		a.Outage(d)
		a.Hit()
		return recover()
	}}
}

var (
	killMinority   = toMinority("dead", killed)
	freezeMinority = toMinority("frozen", frozen)
	slowMinority   = toMinority("slow", slowed)
	cutMinority    = toMinority("silent", noSubscriptions)

	killMajority   = toMajority("dead", killed)
	freezeMajority = toMajority("frozen", frozen)
)

func killed(_ *stage.Act, servers []*redistest.Server) (func() error, error) {
	for _, s := range servers {
		s.Kill()
	}
	return onEach(servers, (*redistest.Server).Restart), nil
}

func frozen(_ *stage.Act, servers []*redistest.Server) (func() error, error) {
	return onEach(servers, (*redistest.Server).Resume), onEach(servers, (*redistest.Server).Pause)()
}

// slowed makes every message between the processes and the given servers slower.
func slowed(a *stage.Act, servers []*redistest.Server) (func() error, error) {
	d := a.Between(a.Work.TTL/10, a.Work.TTL/2)
	links(a, servers, func(r *redistest.Relay) { r.Latency(d) })
	return func() error {
		links(a, servers, func(r *redistest.Relay) { r.Latency(0) })
		a.Lasts(d) // until the last slow message has arrived
		return nil
	}, nil
}

func noSubscriptions(a *stage.Act, servers []*redistest.Server) (func() error, error) {
	links(a, servers, func(r *redistest.Relay) { r.BlackHole(true) })
	return func() error {
		links(a, servers, mend)
		return nil
	}, nil
}

// mend ends a black hole, and cuts its connections.
func mend(r *redistest.Relay) {
	r.BlackHole(false)
	r.Cut()
}

func onEach(servers []*redistest.Server, do func(*redistest.Server) error) func() error {
	return func() error {
		for _, s := range servers {
			if err := do(s); err != nil {
				return err
			}
		}
		return nil
	}
}

// links calls a function for the links of all processes to the servers.
func links(a *stage.Act, servers []*redistest.Server, do func(*redistest.Relay)) {
	for _, p := range a.Alive() {
		for _, s := range servers {
			do(p.RelayTo(s))
		}
	}
}

// restartMajority kills three masters and restarts them at once, without their data, which an operator has to avoid.
var restartMajority = stage.Fault{Name: "majority restarted empty", Inject: func(a *stage.Act) error {
	a.Begin("three masters are killed and restarted empty")
	defer a.End()
	a.LoseData()
	servers := majority(a)
	recover, err := killed(a, servers)
	if err != nil {
		return err
	}
	a.Hit()
	return recover()
}}

// restartOne restarts a single master without its data. Together with another one later, it can be part of a majority.
var restartOne = stage.Fault{Name: "one restarted empty", Inject: func(a *stage.Act) error {
	servers := some(a, 1, a.Rand.Perm(len(a.Deployment.Servers)))
	a.Begin("%s is killed and restarted empty", servers[0].Addr)
	defer a.End()
	a.LoseData()
	recover, err := killed(a, servers)
	if err != nil {
		return err
	}
	a.Hit()
	return recover()
}}

// partition cuts every process off from a minority of the masters, chosen for each process, and then, without a pause, from
// another one.
var partition = stage.Fault{Name: "partitions", Inject: func(a *stage.Act) error {
	d := a.Between(a.Work.TTL/4, a.Work.TTL*3/2)
	a.Begin("every process is cut off from two masters for %v, and then from two others", d)
	defer a.End()
	processes := a.Alive()
	orders := make([][]int, len(processes))
	for i := range orders {
		orders[i] = a.Rand.Perm(len(a.Deployment.Servers))
	}
	for range 2 {
		for i, p := range processes {
			for _, s := range some(a, 2, orders[i]) {
				p.RelayTo(s).BlackHole(true)
			}
		}
		a.Hit()
		a.Lasts(d)
		for i, p := range processes {
			for _, s := range some(a, 2, orders[i]) {
				mend(p.RelayTo(s))
			}
			orders[i] = slices.Concat(orders[i][2:], orders[i][:2])
		}
	}
	return nil
}}
