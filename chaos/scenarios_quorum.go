package main

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/history"
	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/internal/redistest"
)

// quorumScenarios are those of locks on several independent masters.
var quorumScenarios = []*scenario{
	{
		number: 24, name: "quorum-minority",
		what: "two of five masters are dead, stop, or are slow: who comes then is served, and keeps what he gets",
		casts: []cast{{kind: deployment.Quorum, work: voting.With(lastingly),
			faults: []fault{killMinority, freezeMinority, slowMinority, cutMinority}}},
		check: unnoticed,
	},
	{
		number: 25, name: "quorum-majority",
		what: "three of five masters stop or die for longer than the lease, and then come back empty: holds are lost in time; or they come back at once",
		casts: []cast{
			{kind: deployment.Quorum, faults: []fault{freezeMajority, killMajority},
				work: voting.With(func(w *worker.Workload) { w.TTL, w.Long = 600*time.Millisecond, 0.3 })},
			{kind: deployment.Quorum, work: voting, splitBrain: true, faults: []fault{restartMajority}},
		},
		check: func(r *round) error {
			if r.cast.splitBrain {
				return nil
			}
			return lostWhereSevered(r)
		},
	},
	{
		number: 26, name: "quorum-partitions",
		what: "every process is cut off from two masters of its own, and then from two others; or single masters come back empty",
		casts: []cast{
			{kind: deployment.Quorum, work: voting.With(func(w *worker.Workload) { w.Long = 0.2 }), faults: []fault{partition}},
			{kind: deployment.Quorum, work: voting.With(func(w *worker.Workload) { w.Long = 0.2 }), splitBrain: true, faults: []fault{partition, restartOne, restartOne}},
		},
	},
	{
		number: 31, name: "quorum-clocks",
		what:  "the masters' clocks are up to 80 s apart, and every process is cut off from two masters of its own, and then from two others: tokens rise whoever votes",
		casts: []cast{{kind: deployment.SkewedQuorum, work: voting.With(func(w *worker.Workload) { w.Long = 0.05 }), faults: []fault{partition}}},
	},
}

// voting is the workload on a quorum, which has no fair locks.
var voting = plain().With(func(w *worker.Workload) { w.Joint, w.Poll = 0.05, 500*time.Millisecond })

// lastingly gives leases that a busy machine keeps.
func lastingly(w *worker.Workload) { w.TTL, w.Long, w.Fixed = 1500*time.Millisecond, 0.04, 0 }

// minority and majority are two and three of the masters, others each time.
func (a *act) minority() []*redistest.Server { return a.some(2, a.r.Perm(len(a.d.Servers))) }
func (a *act) majority() []*redistest.Server { return a.some(3, a.r.Perm(len(a.d.Servers))) }

func (a *act) some(n int, order []int) []*redistest.Server {
	var chosen []*redistest.Server
	for _, i := range order[:n] {
		chosen = append(chosen, a.d.Servers[i])
	}
	return chosen
}

// outage is what becomes of masters, for a while. It returns how they recover from that.
type outage func(a *act, servers []*redistest.Server) (recover func() error, err error)

// toMinority has something become of two masters, which keeps nobody waiting. It takes so
// long that what they may have forgotten has run out elsewhere. A hold that got its votes
// before, while others split theirs, may depend on those two: it may be lost.
func toMinority(what string, o outage) fault {
	return fault{name: what + " minority", inject: func(a *act) error {
		d := a.between(3*a.work.TTL, 5*a.work.TTL)
		a.disturb("two masters are %s for %v", what, d)
		recover, err := o(a, a.minority())
		if err != nil {
			return err
		}
		a.hit()
		a.sever(nil, func() { a.lasts(d) })
		return recover()
	}}
}

// unnoticed judges that who came while masters were missing was served as ever: that no
// call of his failed, and nothing that he got was lost. Owners who act together are left
// out: one may have come before.
func unnoticed(r *round) error {
	type worker struct {
		process, worker int
		lock            string
	}
	came, depth := map[worker]int64{}, map[worker]int{}
	met := 0
	for _, e := range r.events {
		w := worker{e.Process, e.Worker, e.Lock}
		switch {
		case e.Kind == history.LockCall && depth[w] == 0:
			came[w] = e.At
		case e.Kind == history.LockReturn && e.Outcome == history.OK:
			depth[w]++
		case e.Kind == history.UnlockReturn:
			depth[w]--
		}
		if e.Kind != history.LockReturn && e.Kind != history.UnlockReturn || strings.HasSuffix(e.Owner, ".shared") {
			continue
		}
		if !slices.ContainsFunc(r.severed, func(s severed) bool { return s.from <= came[w] && e.At <= s.to }) {
			continue
		}
		met++
		if e.Outcome == history.Failed || e.Outcome == history.IsLost {
			r.breach("%s (process %d, worker %d) came at %s, and at %s %s of %s ended thus: %s",
				e.Owner, e.Process, e.Worker, r.clock(came[w]), r.clock(e.At), e.Kind, e.Lock, e.Err)
		}
	}
	if met == 0 {
		return errors.New("nobody came while masters were missing: nothing was tested")
	}
	return nil
}

// toMajority has something become of three masters, for longer than any lease.
func toMajority(what string, o outage) fault {
	return fault{name: what + " majority", inject: func(a *act) error {
		d := a.between(a.work.TTL*3/2, a.work.TTL*5/2)
		a.begin("three masters are %s for %v", what, d)
		defer a.end()
		recover, err := o(a, a.majority())
		if err != nil {
			return err
		}
		a.sever(nil, func() { a.lasts(d) })
		a.hit()
		return recover()
	}}
}

var (
	killMinority   = toMinority("dead", killed)
	freezeMinority = toMinority("frozen", frozen)
	slowMinority   = toMinority("slow", slowed)
	cutMinority    = toMinority("silent", unheard)

	killMajority   = toMajority("dead", killed)
	freezeMajority = toMajority("frozen", frozen)
)

func killed(_ *act, servers []*redistest.Server) (func() error, error) {
	for _, s := range servers {
		s.Kill()
	}
	return onEach(servers, (*redistest.Server).Restart), nil
}

func frozen(_ *act, servers []*redistest.Server) (func() error, error) {
	return onEach(servers, (*redistest.Server).Resume), onEach(servers, (*redistest.Server).Pause)()
}

// slowed has every message of every process to the servers, and back, take longer.
func slowed(a *act, servers []*redistest.Server) (func() error, error) {
	d := a.between(a.work.TTL/10, a.work.TTL/2)
	a.links(servers, func(r *redistest.Relay) { r.Latency(d) })
	return func() error {
		a.links(servers, func(r *redistest.Relay) { r.Latency(0) })
		a.lasts(d) // until the last slow message has arrived
		return nil
	}, nil
}

func unheard(a *act, servers []*redistest.Server) (func() error, error) {
	a.links(servers, func(r *redistest.Relay) { r.BlackHole(true) })
	return func() error {
		a.links(servers, mend)
		return nil
	}, nil
}

// mend ends a black hole, and the connections that were in it.
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

// links does something to the links of all processes to the servers.
func (a *act) links(servers []*redistest.Server, do func(*redistest.Relay)) {
	for _, p := range a.alive() {
		for _, s := range servers {
			do(a.relay(p, s))
		}
	}
}

// restartMajority kills three masters and has them back at once, without their data: what
// an operator has to avoid.
var restartMajority = fault{name: "majority restarted empty", inject: func(a *act) error {
	a.begin("three masters are killed and restarted empty")
	defer a.end()
	a.loseData()
	servers := a.majority()
	recover, err := killed(a, servers)
	if err != nil {
		return err
	}
	a.hit()
	return recover()
}}

// restartOne does so to a single master. Another one later can make a majority of them.
var restartOne = fault{name: "one restarted empty", inject: func(a *act) error {
	servers := a.some(1, a.r.Perm(len(a.d.Servers)))
	a.begin("%s is killed and restarted empty", servers[0].Addr)
	defer a.end()
	a.loseData()
	recover, err := killed(a, servers)
	if err != nil {
		return err
	}
	a.hit()
	return recover()
}}

// partition cuts every process off from a minority of its own, and then from another one:
// in between nothing of either is whole again.
var partition = fault{name: "partitions", inject: func(a *act) error {
	d := a.between(a.work.TTL/4, a.work.TTL*3/2)
	a.begin("every process is cut off from two masters for %v, and then from two others", d)
	defer a.end()
	processes := a.alive()
	orders := make([][]int, len(processes))
	for i := range orders {
		orders[i] = a.r.Perm(len(a.d.Servers))
	}
	for range 2 {
		for i, p := range processes {
			for _, s := range a.some(2, orders[i]) {
				a.relay(p, s).BlackHole(true)
			}
		}
		a.hit()
		a.lasts(d)
		for i, p := range processes {
			for _, s := range a.some(2, orders[i]) {
				mend(a.relay(p, s))
			}
			orders[i] = slices.Concat(orders[i][2:], orders[i][:2])
		}
	}
	return nil
}}
