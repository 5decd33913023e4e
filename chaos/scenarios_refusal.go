package main

import (
	"time"

	"github.com/relock-go/relock/internal/redistest"
)

// refusals are error replies that say that a command was not executed, and that it may be
// when sent again.
var refusals = []string{
	"LOADING Redis is loading the dataset in memory",
	"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
	"CLUSTERDOWN The cluster is down",
	"TRYAGAIN Multiple keys request during rehashing of slot",
	"NOREPLICAS Not enough good replicas to write.",
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"READONLY You can't write against a read only replica.",
	"ERR max number of clients reached",
}

// refuse answers a few scripts of a process with an error.
var refuse = fault{name: "refused", inject: func(a *act) error {
	p, relay, _, err := a.aim("")
	if err != nil {
		return err
	}
	refusal, n := refusals[a.r.IntN(len(refusals))], 1+a.r.IntN(5)
	a.begin("process %d: the next %d scripts are answered %q", p.number, n, refusal)
	defer a.end()
	a.meets(relay.ReplyWith("-"+refusal+"\r\n", redistest.Scripts).Times(n))
	return nil
}}

// configure sets a parameter of the server for a while.
func (a *act) configure(what, name, value, normal string, d time.Duration) error {
	master, err := a.master()
	if err != nil {
		return err
	}
	a.begin("%s, for %v", what, d)
	defer a.end()
	if err := a.do(master, "config", "set", name, value); err != nil {
		return err
	}
	a.hit()
	a.lasts(d)
	return a.do(master, "config", "set", name, normal)
}

var noReplicas = fault{name: "NOREPLICAS", single: true, inject: func(a *act) error {
	return a.configure("writes need a replica, and there is none", "min-replicas-to-write", "1", "0", a.part(0.4))
}}

// outOfMemory leaves no room for anything new, and evicts nothing.
var outOfMemory = fault{name: "OOM", inject: func(a *act) error {
	return a.configure("the server is out of memory", "maxmemory", "1", "0", a.part(0.6))
}}

// busy has a script run for so long that the server refuses everything else.
var busy = fault{name: "BUSY", inject: func(a *act) error {
	master, err := a.master()
	if err != nil {
		return err
	}
	d := a.part(0.4)
	a.begin("a script runs for %v, and the server is BUSY", d)
	defer a.end()
	if err := a.do(master, "config", "set", "busy-reply-threshold", "10"); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = a.do(master, "eval", "while true do end", "0") // ends with the error that it was killed
	}()
	a.lasts(d)
	err = a.killScript(master, ended)
	<-ended
	a.hit()
	if err != nil {
		return err
	}
	return a.do(master, "config", "set", "busy-reply-threshold", "5000")
}}

// killScript ends a script that runs, or is about to, unless it has ended.
func (a *act) killScript(s *redistest.Server, ended <-chan struct{}) error {
	for {
		err := a.do(s, "script", "kill")
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// readOnly makes the server a replica, of nobody, which keeps its data, and a master again.
var readOnly = fault{name: "READONLY", single: true, inject: func(a *act) error {
	master, err := a.master()
	if err != nil {
		return err
	}
	d := a.part(0.3)
	a.begin("the server is a replica for %v", d)
	defer a.end()
	if err := a.do(master, "replicaof", "127.0.0.1", "1"); err != nil {
		return err
	}
	a.hit()
	a.lasts(d)
	return a.do(master, "replicaof", "no", "one")
}}

// tooManyClients refuses new connections, and cuts those that there are.
var tooManyClients = fault{name: "max clients", single: true, inject: func(a *act) error {
	master, err := a.master()
	if err != nil {
		return err
	}
	d := a.part(0.3)
	a.begin("the server takes no new connections for %v, and those that it had are cut", d)
	defer a.end()
	return a.d.Session(a, master, func(ask func(...any) (any, error)) error {
		if _, err := ask("config", "set", "maxclients", "1"); err != nil {
			return err
		}
		for _, p := range a.alive() {
			a.relay(p, master).Cut()
		}
		a.hit()
		a.lasts(d)
		_, err := ask("config", "set", "maxclients", "10000")
		return err
	})
}}
