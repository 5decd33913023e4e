package redistest

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Refusals are what a server in distress refuses.
type Refusals int

// What a server may refuse.
const (
	RefusesEntry   Refusals = iota // connections: a script does not get as far as being sent
	RefusesScripts                 // every script
	RefusesWrites                  // scripts that write: to be told that a lock is taken is none
	RefusesGrowth                  // scripts that need memory, which no use of a hold does
)

// A Distress is a state of a real server in which it refuses scripts.
type Distress struct {
	Says    string  // a regular expression
	Means   Meaning // of what is refused
	Refuses Refusals
	Passes  bool // by itself: a Lock that comes meanwhile waits for that
	Since   int  // the major version of Redis that has it, or the settings for it

	// Admit starts a server that it can befall; nil: it befalls a slot of a Cluster, see [NewWard].
	Admit func(testing.TB) *Patient

	Strike, Heal func(*Patient)
}

// Distresses are those of a server alone, by name.
var Distresses = map[string]*Distress{
	"a replica": {
		Says: "READONLY", Means: Transient, Refuses: RefusesWrites, Admit: standalone("app"),
		Strike: asks("replicaof 127.0.0.1 1"), Heal: asks("replicaof no one"),
	},
	"a replica without its master": {
		Says: "MASTERDOWN", Means: Transient, Refuses: RefusesScripts,
		Admit:  standalone("app", "--replica-serve-stale-data", "no"),
		Strike: asks("replicaof 127.0.0.1 1"), Heal: asks("replicaof no one"),
	},
	"too few replicas": {
		Says: "NOREPLICAS", Means: Transient, Refuses: RefusesWrites, Admit: standalone("app"),
		Strike: asks("config set min-replicas-to-write 1"), Heal: asks("config set min-replicas-to-write 0"),
	},
	"out of memory": {
		Says: "OOM", Means: Refused, Refuses: RefusesGrowth, Admit: standalone("app"),
		Strike: asks("config set maxmemory 1"), Heal: asks("config set maxmemory 0"),
	},
	"a disk that fails": {
		Says: "MISCONF", Means: Refused, Refuses: RefusesWrites, Admit: standalone("app", "--save", "900", "1"),
		Strike: loseTheDisk, Heal: asks("config set stop-writes-on-bgsave-error no"),
	},
	"a script without end": {
		Says: "BUSY", Means: Transient, Refuses: RefusesScripts, Admit: standalone("app", "--lua-time-limit", "10"),
		Strike: func(p *Patient) { p.occupy("BUSY", "eval", "while true do end", 0) }, Heal: asks("script kill"),
	},
	"loading": {
		Says: "LOADING", Means: Transient, Refuses: RefusesScripts, Since: 7,
		Admit:  standalone("app", "--rdbcompression", "no", "--loading-process-events-interval-bytes", "1024"),
		Strike: reload, Heal: asks("config set key-load-delay 0"),
	},
	"no permission": {
		Says: "NOPERM", Means: Forbidden, Refuses: RefusesScripts, Admit: standalone("app"),
		Strike: asks("acl setuser app -evalsha -eval"), Heal: asks("acl setuser app +evalsha +eval"),
	},
	"no permission for the keys": {
		Says: "NOPERM", Means: Forbidden, Refuses: RefusesScripts, Admit: standalone("app"),
		Strike: asks("acl setuser app resetkeys ~other:*"), Heal: asks("acl setuser app ~*"),
	},
	"a password from now on": {
		Says: "NOAUTH|unauthenticated", Means: Forbidden, Refuses: RefusesScripts, Admit: standalone("default"),
		Strike: asks("acl setuser default resetpass >new", "client kill user default"),
		Heal:   asks("acl setuser default nopass"),
	},
	"another password": {
		Says: "WRONGPASS", Means: Forbidden, Refuses: RefusesEntry, Admit: standalone("app"),
		Strike: asks("acl setuser app resetpass >new", "client kill user app"),
		Heal:   asks("acl setuser app resetpass >secret"),
	},
}

// Patient is a server that can be brought into distress, or a slot of a Cluster.
type Patient struct {
	Server *Server               // nil on a Cluster
	Admin  redis.UniversalClient // is always let in
	Relay  *Relay                // in front of Rdb; nil on a Cluster
	Rdb    redis.UniversalClient // of the application

	// Names are those of the lock for a purpose.
	Names func(purpose string) []string

	Source, Target *redis.Client // on a Cluster: of the slot of the names
	Ill            <-chan error  // ends with what occupies the server

	tb    testing.TB
	nodes *Cluster // nil elsewhere
}

// standalone admits a server whose application is the user of that name.
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
		p.Admin = connect(server.Addr, "admin", redis.Options{PoolSize: 1, PipelinePoolSize: -1})
		p.Rdb = connect(p.Relay.Addr, user, redis.Options{})
		prefix := Key(tb)
		p.Names = func(purpose string) []string { return []string{prefix + purpose} }
		return p
	}
}

// asks is what an administrator does, in words.
func asks(commands ...string) func(*Patient) {
	return func(p *Patient) {
		for _, command := range commands {
			must(p.tb, p.Admin.Do(p.tb.Context(), words(command)...).Err(), command)
		}
	}
}

// occupy has the server busy with a command until it is healed, and says so to others.
func (p *Patient) occupy(says string, command ...any) {
	p.tb.Helper()
	rdb := redis.NewClient(&redis.Options{
		Addr: p.Server.Addr, Username: "admin", Password: "secret", MaxRetries: -1, ReadTimeout: time.Minute,
	})
	p.tb.Cleanup(func() { _ = rdb.Close() })
	ill := make(chan error, 1)
	p.Ill = ill
	go func() { ill <- rdb.Do(p.tb.Context(), command...).Err() }()
	Eventually(p.tb, says, func() bool { return redis.HasErrorPrefix(p.Admin.Ping(p.tb.Context()).Err(), says) })
}

// reload has the server load its data anew, which takes it until it is told to be quick.
func reload(p *Patient) {
	asks("debug populate 1000 ballast 1024", "config set key-load-delay 20000")(p)
	p.occupy("LOADING", "debug", "reload")
}

// loseTheDisk takes the directory away where the server is to save its data.
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
