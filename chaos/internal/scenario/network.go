package scenario

import (
	"context"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/scripts"
	"github.com/relock-go/relock/chaos/internal/stage"
	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/internal/redistest"
)

// networkScenarios are about replies and messages that are lost.
var networkScenarios = []*Scenario{
	{
		Number: 1, Name: "acquire-reply-lost",
		What: "replies to acquisitions and hand-overs are lost, or the commands delivered late",
		setups: []stage.Setup{{Kind: deployment.Standalone, Work: usual(), Lanes: 3, Faults: []stage.Fault{
			loseReply(scripts.Acquire), loseReply(scripts.Acquire), loseFirstReply(scripts.Acquire), deliverLate(scripts.Acquire), loseReply(scripts.Handoff), deliverLate(scripts.Handoff),
		}}},
	},
	{
		Number: 2, Name: "release-reply-lost",
		What: "replies to re-entries and releases are lost, or the commands delivered late",
		setups: []stage.Setup{{Kind: deployment.Standalone, Work: usual(), Lanes: 3, Faults: []stage.Fault{
			loseReply(scripts.Reenter), loseReply(scripts.Release), loseFirstReply(scripts.Release), loseFirstReply(scripts.Reenter), deliverLate(scripts.Reenter), deliverLate(scripts.Release),
		}}},
	},
	{
		Number: 3, Name: "renew-reply-lost",
		What: "replies to renewals are lost, not two in a row: no hold is",
		setups: []stage.Setup{{
			Kind: deployment.Standalone, Lossless: true, Faults: []stage.Fault{loseRenewal},
			Work: longLeases.With(func(w *worker.Workload) { w.Long = 0.3 }),
		}},
	},
	{
		Number: 9, Name: "connections-cut",
		What:   "the server, or the network, cuts connections: no hold is lost",
		setups: []stage.Setup{{Kind: deployment.Standalone, Work: longLeases, Lossless: true, Faults: []stage.Fault{killConnections("normal"), cut}}},
	},
	{
		Number: 10, Name: "subscriptions-cut",
		What:   "the server cuts the connections of subscribers, whose wake-ups are lost: they are served within a poll",
		setups: []stage.Setup{{Kind: deployment.Standalone, Work: longLeases, Lossless: true, Faults: []stage.Fault{killConnections("pubsub")}}},
	},
	{
		Number: 11, Name: "subscribers-silent",
		What: "subscribed connections stay open and receive nothing: waiters are served within a poll",
		setups: []stage.Setup{
			{Kind: deployment.Standalone, Work: usual(), Faults: []stage.Fault{silentSubscriber, silentSubscriber, silentProcess}},
			{Kind: deployment.Cluster, Work: longLeases.With(shardedPubSub), Lossless: true, Faults: []stage.Fault{silentSubscriber, clusterFailover, migrate}},
			{Kind: deployment.Sentinel, Work: usual(), SplitBrain: true, Faults: []stage.Fault{sentinelFailover}},
		},
	},
}

// loseReply loses the reply to one run of a script: with the connection, or silently.
func loseReply(verb scripts.Verb) stage.Fault {
	return stage.Fault{Name: "reply to " + string(verb) + " lost", Inject: func(a *stage.Act) error {
		p, relay, err := aim(a)
		if err != nil {
			return err
		}
		lose, how := relay.DropReply, "and its connection cut"
		if a.Rand.IntN(2) == 0 {
			lose, how = relay.LoseReply, "silently"
		}
		a.Begin("process %d: the reply to %s is lost, %s", p.Number, verb, how)
		defer a.End()
		a.Meets(lose(a.Script(verb)))
		return nil
	}}
}

// loseFirstReply is loseReply for a run by EVAL, which is the first run of a script after the server has lost its scripts.
func loseFirstReply(verb scripts.Verb) stage.Fault {
	return stage.Fault{Name: "reply to first " + string(verb) + " lost", Inject: func(a *stage.Act) error {
		server, err := master(a)
		if err != nil {
			return err
		}
		a.Begin("the reply to the first %s, by EVAL, is lost", verb)
		defer a.End()
		var rules []*redistest.Rule
		for _, p := range a.Alive() {
			rules = append(rules, p.RelayTo(server).DropReply(a.Script(verb).And(redistest.Named("EVAL"))))
		}
		if err := do(a, server, "script", "flush"); err != nil {
			return err
		}
		a.Meets(rules...)
		return nil
	}}
}

// deliverLate holds one run of a script back, and delivers it when the process and others have continued.
func deliverLate(verb scripts.Verb) stage.Fault {
	return stage.Fault{Name: string(verb) + " delivered late", Inject: func(a *stage.Act) error {
		p, relay, err := aim(a)
		if err != nil {
			return err
		}
		hold, how := relay.HoldBack, "its connection cut"
		if a.Rand.IntN(2) == 0 {
			hold, how = relay.HoldBackSilently, "silently"
		}
		late := a.Between(0, a.Work.TTL*3/2)
		a.Begin("process %d: %s is held back, %s, and delivered %v later", p.Number, verb, how, late)
		defer a.End()
		held := hold(a.Script(verb))
		if !a.Meets(held.Rule) {
			return nil
		}
		a.Lasts(late)
		ctx, cancel := context.WithTimeout(a, 2*time.Second)
		defer cancel()
		reply, err := held.Deliver(ctx)
		if err != nil {
			return err
		}
		a.Logf("delivered: %q", reply)
		return nil
	}}
}

// loseRenewal loses the reply to the next renewal of each process. The pause after that is so long that no process loses two
// in one lease.
var loseRenewal = stage.Fault{Name: "reply to renew lost", Inject: func(a *stage.Act) error {
	server, err := master(a)
	if err != nil {
		return err
	}
	how := "and its connection cut"
	silently := a.Rand.IntN(2) == 0
	if silently {
		how = "silently"
	}
	a.Begin("the reply to the next renewal is lost, %s", how)
	var rules []*redistest.Rule
	for _, p := range a.Alive() {
		relay := p.RelayTo(server)
		if silently {
			rules = append(rules, relay.LoseReply(a.Script(scripts.Renew)))
		} else {
			rules = append(rules, relay.DropReply(a.Script(scripts.Renew)))
		}
	}
	met := a.Meets(rules...)
	a.End()
	if met {
		a.Lasts(a.Work.TTL * 2 / 3)
	}
	return nil
}}

// killConnections makes a server cut its connections of one type. The connections of sentinels stay, because the sentinels
// could replace the master, which would be a fault of its own.
func killConnections(of string) stage.Fault {
	return stage.Fault{Name: of + " connections killed", Inject: func(a *stage.Act) error {
		server, err := master(a)
		if err != nil {
			return err
		}
		a.Disturb("%s: connections of type %s killed", server.Addr, of)
		killed := int64(0)
		err = a.Deployment.Session(a, server, func(ask func(...any) (any, error)) error {
			list, err := ask("client", "list", "type", of)
			if err != nil {
				return err
			}
			for connection := range strings.Lines(list.(string)) {
				id, about, _ := strings.Cut(strings.TrimPrefix(connection, "id="), " ")
				if strings.Contains(about, " name=sentinel-") {
					continue
				}
				n, err := ask("client", "kill", "id", id) // does not kill the connection of this command
				if err != nil {
					return err
				}
				killed += n.(int64)
			}
			return nil
		})
		if killed > 0 {
			a.Hit()
		}
		return err
	}}
}

// cut cuts all connections of a process at once.
var cut = stage.Fault{Name: "connections cut", Inject: func(a *stage.Act) error {
	p := a.Victim()
	a.Disturb("process %d: all connections cut", p.Number)
	met := false
	for _, r := range p.Relays {
		met = met || r.Conns() > 0
		r.Cut()
	}
	if met {
		a.Hit()
	}
	return nil
}}

// subscribeTimeout is how long the library waits for the answer to a SUBSCRIBE on a new connection (AnswerTimeout). Meanwhile
// it polls.
const subscribeTimeout = 10 * time.Second

// silentSubscriber makes the connection silent on which a process subscribes next.
var silentSubscriber = stage.Fault{Name: "subscriber silent", Inject: func(a *stage.Act) error {
	p, relay, err := aim(a)
	if err != nil {
		return err
	}
	a.DisturbMessages(p, subscribeTimeout, "process %d: the connection on which it subscribes next becomes silent", p.Number)
	subscribes := redistest.Named("SUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "SUNSUBSCRIBE")
	if a.Rand.IntN(2) == 0 {
		a.Meets(relay.LoseReply(subscribes))
	} else {
		a.Meets(relay.HoldBackSilently(subscribes).Rule)
	}
	return nil
}}

// readTimeout is how long go-redis waits for an answer on a connection before it opens another one.
const readTimeout = 5 * time.Second

// silentProcess turns all current connections of a process into black holes. New ones work, so the fault ends when go-redis
// has given up the others. Those that it has not used meanwhile are cut: they would be black holes for a later fault.
var silentProcess = stage.Fault{Name: "process silent", Inject: func(a *stage.Act) error {
	p := a.Victim()
	a.Begin("process %d: all its connections are black holes", p.Number)
	defer a.End()
	var cuts []func()
	for _, r := range p.Relays {
		cuts = append(cuts, r.BlackHoleCurrent())
	}
	a.Hit()
	a.Lasts(readTimeout)
	for _, cut := range cuts {
		cut()
	}
	return nil
}}
