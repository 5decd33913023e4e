package redistest

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Refusals is what a server in distress refuses.
type Refusals int

// What a server may refuse.
const (
	RefusesEntry   Refusals = iota // connections: no script can be sent
	RefusesScripts                 // every script
	RefusesWrites                  // scripts that write; the answer that a lock is taken needs no write
	RefusesGrowth                  // scripts that need memory, which no use of a hold does
)

// A Distress is a state of a real server in which it refuses scripts.
type Distress struct {
	Contains string  // a regular expression for the error
	Means    Meaning // of the error
	Refuses  Refusals
	Passes   bool // it ends by itself, and a Lock waits for that
	Since    int  // the major version of Redis that has it, or the settings for it

	// Admit starts a server for it; nil: it affects a slot of a Cluster, see [NewWard].
	Admit func(testing.TB) *Patient

	Strike, Heal func(*Patient)
}

// Distresses are the states of a single server, by name.
var Distresses = map[string]*Distress{
	"a replica": {
		Contains: "READONLY", Means: Transient, Refuses: RefusesWrites, Admit: standalone("app"),
		Strike: asks("replicaof 127.0.0.1 1"), Heal: asks("replicaof no one"),
	},
	"a replica without its master": {
		Contains: "MASTERDOWN", Means: Transient, Refuses: RefusesScripts,
		Admit:  standalone("app", "--replica-serve-stale-data", "no"),
		Strike: asks("replicaof 127.0.0.1 1"), Heal: asks("replicaof no one"),
	},
	"too few replicas": {
		Contains: "NOREPLICAS", Means: Transient, Refuses: RefusesWrites, Admit: standalone("app"),
		Strike: asks("config set min-replicas-to-write 1"), Heal: asks("config set min-replicas-to-write 0"),
	},
	"out of memory": {
		Contains: "OOM", Means: Refused, Refuses: RefusesGrowth, Admit: standalone("app"),
		Strike: asks("config set maxmemory 1"), Heal: asks("config set maxmemory 0"),
	},
	"a disk that fails": {
		Contains: "MISCONF", Means: Refused, Refuses: RefusesWrites, Admit: standalone("app", "--save", "900", "1"),
		Strike: loseTheDisk, Heal: asks("config set stop-writes-on-bgsave-error no"),
	},
	"a script without end": {
		Contains: "BUSY", Means: Transient, Refuses: RefusesScripts, Admit: standalone("app", "--lua-time-limit", "10"),
		Strike: func(p *Patient) { p.occupy("BUSY", "eval", "while true do end", 0) }, Heal: asks("script kill"),
	},
	"loading": {
		Contains: "LOADING", Means: Transient, Refuses: RefusesScripts, Since: 7,
		Admit:  standalone("app", "--rdbcompression", "no", "--loading-process-events-interval-bytes", "1024"),
		Strike: reload, Heal: asks("config set key-load-delay 0"),
	},
	"no permission": {
		Contains: "NOPERM", Means: Forbidden, Refuses: RefusesScripts, Admit: standalone("app"),
		Strike: asks("acl setuser app -evalsha -eval"), Heal: asks("acl setuser app +evalsha +eval"),
	},
	"no permission for the keys": {
		Contains: "NOPERM", Means: Forbidden, Refuses: RefusesScripts, Admit: standalone("app"),
		Strike: asks("acl setuser app resetkeys ~other:*"), Heal: asks("acl setuser app ~*"),
	},
	"a password from now on": {
		Contains: "NOAUTH|unauthenticated", Means: Forbidden, Refuses: RefusesScripts, Admit: standalone("default"),
		Strike: asks("acl setuser default resetpass >new", "client kill user default"),
		Heal:   asks("acl setuser default nopass"),
	},
	"another password": {
		Contains: "WRONGPASS", Means: Forbidden, Refuses: RefusesEntry, Admit: standalone("app"),
		Strike: asks("acl setuser app resetpass >new", "client kill user app"),
		Heal:   asks("acl setuser app resetpass >secret"),
	},
}

// Patient is a server that can be brought into distress, or a slot of a Cluster.
type Patient struct {
	Server *Server               // nil on a Cluster
	Admin  redis.UniversalClient // works in every state
	Relay  *Relay                // in front of Rdb; nil on a Cluster
	Rdb    redis.UniversalClient // of the application

	// Names returns the names of the lock for a purpose.
	Names func(purpose string) []string

	Source, Target *redis.Client // on a Cluster: of the slot of the names
	Ill            <-chan error  // receives the result of the command that occupies the server

	tb    testing.TB
	nodes *Cluster // nil elsewhere
}

// standalone starts a server whose application is the given user.
func standalone(user string, args ...string) func(testing.TB) *Patient {
	return func(tb testing.TB) *Patient {
		tb.Helper()
		server := NewServer(tb, args...)
		connect := func(addr, user string, opts redis.Options) *redis.Client {
			opts.Addr = addr
			if user != "default" {
				opts.Username, opts.Password = user, "secret"
			}
			rdb := redis.NewClient(&opts)
			tb.Cleanup(func() { _ = rdb.Close() })
			return rdb
		}
		p := &Patient{tb: tb, Server: server, Relay: NewRelay(tb, server.Addr)}
		root := connect(server.Addr, "default", redis.Options{})
		for _, name := range []string{"app", "admin"} {
			must(tb, root.Do(tb.Context(), "acl", "setuser", name, "on", ">secret", "~*", "&*", "+@all").Err())
		}
		must(tb, root.Close())
		p.Admin = connect(server.Addr, "admin", redis.Options{PoolSize: 1})
		p.Rdb = connect(p.Relay.Addr, user, redis.Options{})
		prefix := Key(tb)
		p.Names = func(purpose string) []string { return []string{prefix + purpose} }
		return p
	}
}

// asks returns a function that runs a command as an administrator.
func asks(commands ...string) func(*Patient) {
	return func(p *Patient) {
		for _, command := range commands {
			must(p.tb, p.Admin.Do(p.tb.Context(), words(command)...).Err(), command)
		}
	}
}

// occupy keeps the server busy with a command until it is healed. Meanwhile the server refuses other commands.
func (p *Patient) occupy(contains string, command ...any) {
	p.tb.Helper()
	rdb := redis.NewClient(&redis.Options{
		Addr: p.Server.Addr, Username: "admin", Password: "secret", MaxRetries: -1, ReadTimeout: time.Minute,
	})
	p.tb.Cleanup(func() { _ = rdb.Close() })
	ill := make(chan error, 1)
	p.Ill = ill
	go func() { ill <- rdb.Do(p.tb.Context(), command...).Err() }()
	Eventually(p.tb, contains, func() bool { return redis.HasErrorPrefix(p.Admin.Ping(p.tb.Context()).Err(), contains) })
}

// reload makes the server load its data again, slowly, until a setting makes it fast.
func reload(p *Patient) {
	asks("debug populate 1000 ballast 1024", "config set key-load-delay 20000")(p)
	p.occupy("LOADING", "debug", "reload")
}

// loseTheDisk removes the directory in which the server saves its data.
func loseTheDisk(p *Patient) {
	must(p.tb, os.RemoveAll(p.Server.Dir))
	asks("bgsave")(p)
	Eventually(p.tb, "not saved", func() bool {
		return strings.Contains(p.Admin.Info(p.tb.Context(), "persistence").Val(), "rdb_last_bgsave_status:err")
	})
}

// words returns the words of a command.
func words(command string) []any {
	var list []any
	for _, word := range strings.Fields(command) {
		list = append(list, word)
	}
	return list
}

// must ends a test that cannot be set up.
func must(tb testing.TB, err error, what ...any) {
	tb.Helper()
	if err != nil {
		tb.Fatal(append(what, err)...)
	}
}
