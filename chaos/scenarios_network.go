package main

import (
	"context"
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/scripts"
	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/internal/redistest"
)

// networkScenarios are those of replies and messages that get lost.
var networkScenarios = []*scenario{
	{
		number: 1, name: "acquire-reply-lost",
		what: "replies to acquisitions and hand-overs are lost, or the commands delivered late",
		casts: []cast{{kind: deployment.Standalone, work: usual(), lanes: 3, faults: []fault{
			loseReply(scripts.Acquire), loseReply(scripts.Acquire), loseFirstReply(scripts.Acquire), deliverLate(scripts.Acquire), loseReply(scripts.Handoff), deliverLate(scripts.Handoff),
		}}},
	},
	{
		number: 2, name: "release-reply-lost",
		what: "replies to re-entries and releases are lost, or the commands delivered late",
		casts: []cast{{kind: deployment.Standalone, work: usual(), lanes: 3, faults: []fault{
			loseReply(scripts.Reenter), loseReply(scripts.Release), loseFirstReply(scripts.Release), loseFirstReply(scripts.Reenter), deliverLate(scripts.Reenter), deliverLate(scripts.Release),
		}}},
	},
	{
		number: 3, name: "renew-reply-lost",
		what: "replies to renewals are lost, not two in a row: no hold is",
		casts: []cast{{kind: deployment.Standalone, lossless: true, faults: []fault{loseRenewal},
			work: lasting.With(func(w *worker.Workload) { w.Long = 0.3 })}},
	},
	{
		number: 9, name: "connections-cut",
		what:  "the server, or the network, cuts connections: no hold is lost",
		casts: []cast{{kind: deployment.Standalone, work: lasting, lossless: true, faults: []fault{killConnections("normal"), cut}}},
	},
	{
		number: 10, name: "subscriptions-cut",
		what:  "the server cuts the connections of subscribers, whose wake-ups are lost: they are served within a poll",
		casts: []cast{{kind: deployment.Standalone, work: lasting, lossless: true, faults: []fault{killConnections("pubsub")}}},
	},
	{
		number: 11, name: "subscribers-deaf",
		what: "subscribed connections stay open and hear nothing: waiters are served within a poll",
		casts: []cast{
			{kind: deployment.Standalone, work: usual(), faults: []fault{deafSubscriber, deafSubscriber, deafProcess}},
			{kind: deployment.Cluster, work: lasting.With(shard), lossless: true, faults: []fault{deafSubscriber, clusterFailover, migrate}},
			{kind: deployment.Sentinel, work: usual(), splitBrain: true, faults: []fault{sentinelFailover}},
		},
	},
}

// aim is what the faults of scripts have in common: the relay to a server that keeps a
// lock, of a process, and the script's runs.
func (a *act) aim(verb scripts.Verb) (p *process, relay *redistest.Relay, match redistest.Match, err error) {
	p = a.victim()
	master, err := a.master()
	if err != nil {
		return nil, nil, nil, err
	}
	return p, a.relay(p, master), a.scripts[verb], nil
}

// loseReply loses the reply to one run of a script: with the connection, or silently.
func loseReply(verb scripts.Verb) fault {
	return fault{name: "reply to " + string(verb) + " lost", inject: func(a *act) error {
		p, relay, match, err := a.aim(verb)
		if err != nil {
			return err
		}
		lose, how := relay.DropReply, "and its connection cut"
		if a.r.IntN(2) == 0 {
			lose, how = relay.LoseReply, "silently"
		}
		a.begin("process %d: the reply to %s is lost, %s", p.number, verb, how)
		defer a.end()
		a.meets(lose(match))
		return nil
	}}
}

// loseFirstReply is loseReply for a run by EVAL, which is the first of any process after
// the server has forgotten its scripts.
func loseFirstReply(verb scripts.Verb) fault {
	return fault{name: "reply to first " + string(verb) + " lost", inject: func(a *act) error {
		master, err := a.master()
		if err != nil {
			return err
		}
		a.begin("the reply to the first %s, by EVAL, is lost", verb)
		defer a.end()
		var rules []*redistest.Rule
		for _, p := range a.alive() {
			rules = append(rules, a.relay(p, master).DropReply(a.scripts[verb].And(redistest.Named("EVAL"))))
		}
		if err := a.do(master, "script", "flush"); err != nil {
			return err
		}
		a.meets(rules...)
		return nil
	}}
}

// deliverLate keeps one run of a script back, and has it executed when the process, and
// others, have gone on.
func deliverLate(verb scripts.Verb) fault {
	return fault{name: string(verb) + " delivered late", inject: func(a *act) error {
		p, relay, match, err := a.aim(verb)
		if err != nil {
			return err
		}
		hold, how := relay.HoldBack, "its connection cut"
		if a.r.IntN(2) == 0 {
			hold, how = relay.HoldBackSilently, "silently"
		}
		late := a.between(0, a.work.TTL*3/2)
		a.begin("process %d: %s is held back, %s, and delivered %v later", p.number, verb, how, late)
		defer a.end()
		held := hold(match)
		if !a.meets(held.Rule) {
			return nil
		}
		a.lasts(late)
		ctx, cancel := context.WithTimeout(a, 2*time.Second)
		defer cancel()
		reply, err := held.Deliver(ctx)
		if err != nil {
			return err
		}
		a.logf("fault %d: delivered: %q", a.op, reply)
		return nil
	}}
}

// loseRenewal loses the reply to the next renewal of each process, and leaves them alone
// then for so long that none loses two in one lease.
var loseRenewal = fault{name: "reply to renew lost", inject: func(a *act) error {
	master, err := a.master()
	if err != nil {
		return err
	}
	how := "and its connection cut"
	silently := a.r.IntN(2) == 0
	if silently {
		how = "silently"
	}
	a.begin("the reply to the next renewal is lost, %s", how)
	var rules []*redistest.Rule
	for _, p := range a.alive() {
		relay := a.relay(p, master)
		if silently {
			rules = append(rules, relay.LoseReply(a.scripts[scripts.Renew]))
		} else {
			rules = append(rules, relay.DropReply(a.scripts[scripts.Renew]))
		}
	}
	met := a.meets(rules...)
	a.end()
	if met {
		a.lasts(a.work.TTL * 2 / 3)
	}
	return nil
}}

// killConnections has a server cut its connections of one type.
func killConnections(of string) fault {
	return fault{name: of + " connections killed", inject: func(a *act) error {
		master, err := a.master()
		if err != nil {
			return err
		}
		n, err := a.d.Ask(a, master, "client", "kill", "type", of)
		if err != nil {
			return err
		}
		a.disturb("%s: %v connections of type %s killed", master.Addr, n, of)
		if n.(int64) > 0 {
			a.hit()
		}
		return nil
	}}
}

// cut cuts all connections of a process at once.
var cut = fault{name: "connections cut", inject: func(a *act) error {
	p := a.victim()
	a.disturb("process %d: all connections cut", p.number)
	for _, r := range p.relays {
		if r.Conns() > 0 {
			a.hits++
		}
		r.Cut()
	}
	if a.hits > 0 {
		a.hit()
	}
	return nil
}}

// deafSubscriber lets nothing more through to a process on the connection on which it is
// subscribing.
var deafSubscriber = fault{name: "subscriber deaf", inject: func(a *act) error {
	p, relay, _, err := a.aim("")
	if err != nil {
		return err
	}
	a.disturb("process %d: the connection on which it subscribes next goes deaf", p.number)
	subscribes := redistest.Named("SUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "SUNSUBSCRIBE")
	if a.r.IntN(2) == 0 {
		a.meets(relay.LoseReply(subscribes))
	} else {
		a.meets(relay.HoldBackSilently(subscribes).Rule)
	}
	return nil
}}

// deafProcess turns all connections of a process into black holes; new ones work.
var deafProcess = fault{name: "process deaf", inject: func(a *act) error {
	p := a.victim()
	a.begin("process %d: all its connections are black holes", p.number)
	defer a.end()
	for _, r := range p.relays {
		r.Deafen()
	}
	a.hit()
	return nil
}}
