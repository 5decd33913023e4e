package scenario

import (
	"time"

	"github.com/relock-go/relock/chaos/internal/stage"
	"github.com/relock-go/relock/internal/redistest"
)

// refusals are error replies after which a command was not executed, and may be sent again.
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
var refuse = stage.Fault{Name: "refused", Inject: func(a *stage.Act) error {
	p, relay, err := aim(a)
	if err != nil {
		return err
	}
	refusal, n := refusals[a.Rand.IntN(len(refusals))], 1+a.Rand.IntN(5)
	a.Begin("process %d: the next %d scripts are answered %q", p.Number, n, refusal)
	defer a.End()
	a.Meets(relay.ReplyWith("-"+refusal+"\r\n", redistest.Scripts).Times(n))
	return nil
}}

// configure sets a parameter of the server for a while.
func configure(a *stage.Act, what, name, value, normal string, d time.Duration) error {
	server, err := master(a)
	if err != nil {
		return err
	}
	a.Begin("%s, for %v", what, d)
	defer a.End()
	if err := do(a, server, "config", "set", name, value); err != nil {
		return err
	}
	a.Hit()
	a.Lasts(d)
	return do(a, server, "config", "set", name, normal)
}

var noReplicas = stage.Fault{Name: "NOREPLICAS", Single: true, Inject: func(a *stage.Act) error {
	return configure(a, "writes need a replica, and there is none", "min-replicas-to-write", "1", "0", part(a, 0.4))
}}

// outOfMemory makes the server refuse new data, without eviction.
var outOfMemory = stage.Fault{Name: "OOM", Inject: func(a *stage.Act) error {
	return configure(a, "the server is out of memory", "maxmemory", "1", "0", part(a, 0.6))
}}

// busyAfter is the parameter for the time after which a script makes the server BUSY, by its name in Redis 6.2, which later
// versions accept, too.
const busyAfter = "lua-time-limit"

// busy runs a script for so long that the server refuses everything else.
var busy = stage.Fault{Name: "BUSY", Inject: func(a *stage.Act) error {
	server, err := master(a)
	if err != nil {
		return err
	}
	d := part(a, 0.4)
	a.Begin("a script runs for %v, and the server is BUSY", d)
	defer a.End()
	if err := do(a, server, "config", "set", busyAfter, "10"); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = do(a, server, "eval", "while true do end", "0") // ends with the error that it was killed
	}()
	a.Lasts(d)
	err = killScript(a, server, ended)
	<-ended
	a.Hit()
	if err != nil {
		return err
	}
	return do(a, server, "config", "set", busyAfter, "5000")
}}

// killScript ends a script that runs or is about to run, unless it has ended.
func killScript(a *stage.Act, s *redistest.Server, ended <-chan struct{}) error {
	for {
		err := do(a, s, "script", "kill")
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

// readOnly makes the server a replica of a master that does not exist, which does not change its data, and then a master again.
var readOnly = stage.Fault{Name: "READONLY", Single: true, Inject: func(a *stage.Act) error {
	server, err := master(a)
	if err != nil {
		return err
	}
	d := part(a, 0.3)
	a.Begin("the server is a replica for %v", d)
	defer a.End()
	if err := do(a, server, "replicaof", "127.0.0.1", "1"); err != nil {
		return err
	}
	a.Hit()
	a.Lasts(d)
	return do(a, server, "replicaof", "no", "one")
}}

// tooManyClients refuses new connections, and cuts the existing ones.
var tooManyClients = stage.Fault{Name: "max clients", Single: true, Inject: func(a *stage.Act) error {
	server, err := master(a)
	if err != nil {
		return err
	}
	d := part(a, 0.3)
	a.Begin("the server takes no new connections for %v, and those that it had are cut", d)
	defer a.End()
	return a.Deployment.Session(a, server, func(ask func(...any) (any, error)) error {
		if _, err := ask("config", "set", "maxclients", "1"); err != nil {
			return err
		}
		for _, p := range a.Alive() {
			p.RelayTo(server).Cut()
		}
		a.Hit()
		a.Lasts(d)
		_, err := ask("config", "set", "maxclients", "10000")
		return err
	})
}}
