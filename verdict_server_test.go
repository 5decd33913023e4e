package relock

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// What a server in distress refuses.
type refusals int

const (
	entry      refusals = iota // connections: a script does not get as far as being sent
	everything                 // every script
	writes                     // scripts that write: to be told that a lock is taken is none
	growth                     // scripts that need memory, which no use of a hold does
)

// A distress is a state of a real server in which it refuses scripts.
type distress struct {
	says    string // a regular expression
	want    redisexec.Verdict
	refuses refusals
	passes  bool // by itself: a Lock that comes meanwhile waits for that
	admit   func(t *testing.T) *patient
	since   int // the major version of Redis that has it, or the settings for it

	strike, heal func(p *patient)
}

// distresses by name. Those of a Cluster are in verdict_cluster_test.go.
var distresses = map[string]*distress{
	"a replica": {
		says: "READONLY", want: redisexec.Transient, refuses: writes, admit: standalone("app"),
		strike: asks("replicaof 127.0.0.1 1"), heal: asks("replicaof no one"),
	},
	"a replica without its master": {
		says: "MASTERDOWN", want: redisexec.Transient, refuses: everything,
		admit:  standalone("app", "--replica-serve-stale-data", "no"),
		strike: asks("replicaof 127.0.0.1 1"), heal: asks("replicaof no one"),
	},
	"too few replicas": {
		says: "NOREPLICAS", want: redisexec.Transient, refuses: writes, admit: standalone("app"),
		strike: asks("config set min-replicas-to-write 1"), heal: asks("config set min-replicas-to-write 0"),
	},
	"out of memory": {
		says: "OOM", want: redisexec.Refused, refuses: growth, admit: standalone("app"),
		strike: asks("config set maxmemory 1"), heal: asks("config set maxmemory 0"),
	},
	"a disk that fails": {
		says: "MISCONF", want: redisexec.Refused, refuses: writes, admit: standalone("app", "--save", "900", "1"),
		strike: loseTheDisk, heal: asks("config set stop-writes-on-bgsave-error no"),
	},
	"a script without end": {
		says: "BUSY", want: redisexec.Transient, refuses: everything, admit: standalone("app", "--lua-time-limit", "10"),
		strike: func(p *patient) { p.occupy("BUSY", "eval", "while true do end", 0) }, heal: asks("script kill"),
	},
	"loading": {
		says: "LOADING", want: redisexec.Transient, refuses: everything, since: 7,
		admit:  standalone("app", "--rdbcompression", "no", "--loading-process-events-interval-bytes", "1024"),
		strike: reload, heal: asks("config set key-load-delay 0"),
	},
	"no permission": {
		says: "NOPERM", want: redisexec.Forbidden, refuses: everything, admit: standalone("app"),
		strike: asks("acl setuser app -evalsha -eval"), heal: asks("acl setuser app +evalsha +eval"),
	},
	"no permission for the keys": {
		says: "NOPERM", want: redisexec.Forbidden, refuses: everything, admit: standalone("app"),
		strike: asks("acl setuser app resetkeys ~other:*"), heal: asks("acl setuser app ~*"),
	},
	"a password from now on": {
		says: "NOAUTH", want: redisexec.Forbidden, refuses: everything, admit: standalone("default"),
		strike: asks("acl setuser default resetpass >new", "client kill user default"),
		heal:   asks("acl setuser default nopass"),
	},
	"another password": {
		says: "WRONGPASS", want: redisexec.Forbidden, refuses: entry, admit: standalone("app"),
		strike: asks("acl setuser app resetpass >new", "client kill user app"),
		heal:   asks("acl setuser app resetpass >secret"),
	},
}

// patient is a server that can be brought into distress.
type patient struct {
	t      *testing.T
	server *redistest.Server
	admin  redis.UniversalClient // is always let in
	relay  *redistest.Relay      // in front of rdb; nil on a Cluster
	rdb    redis.UniversalClient // the library's

	// names are those of the lock for a purpose.
	names func(purpose string) []string

	source, target *redis.Client // on a Cluster: of the slot of the names
	ill            <-chan error  // ends with what occupies the server
}

// standalone admits a server that the library uses as the user of that name.
func standalone(user string, args ...string) func(*testing.T) *patient {
	return func(t *testing.T) *patient {
		t.Helper()
		server := redistest.NewServer(t, args...)
		connect := func(addr, user string, opts redis.Options) *redis.Client {
			opts.Addr = addr
			if user != "default" {
				opts.Username, opts.Password = user, "secret"
			}
			rdb := redis.NewClient(&opts)
			t.Cleanup(func() { rdb.Close() })
			return rdb
		}
		p := &patient{t: t, server: server, relay: redistest.NewRelay(t, server.Addr)}
		root := connect(server.Addr, "default", redis.Options{})
		for _, name := range []string{"app", "admin"} {
			require.NoError(t, root.Do(t.Context(), "acl", "setuser", name, "on", ">secret", "~*", "&*", "+@all").Err())
		}
		require.NoError(t, root.Close())
		p.admin = connect(server.Addr, "admin", redis.Options{PoolSize: 1, PipelinePoolSize: -1})
		p.rdb = connect(p.relay.Addr, user, redis.Options{})
		prefix := redistest.Key(t)
		p.names = func(purpose string) []string { return []string{prefix + purpose} }
		return p
	}
}

// asks is what an administrator does, in words.
func asks(commands ...string) func(*patient) {
	return func(p *patient) {
		for _, command := range commands {
			require.NoError(p.t, p.admin.Do(p.t.Context(), anys(strings.Fields(command))...).Err(), command)
		}
	}
}

// occupy has the server busy with a command until it is healed, and says so to others.
func (p *patient) occupy(says string, command ...any) {
	p.t.Helper()
	rdb := redis.NewClient(&redis.Options{
		Addr: p.server.Addr, Username: "admin", Password: "secret", MaxRetries: -1, ReadTimeout: time.Minute,
	})
	p.t.Cleanup(func() { rdb.Close() })
	ill := make(chan error, 1)
	p.ill = ill
	go func() { ill <- rdb.Do(p.t.Context(), command...).Err() }()
	eventually(p.t, says, func() bool { return redis.HasErrorPrefix(p.admin.Ping(p.t.Context()).Err(), says) })
}

// reload has the server load its data anew, which takes it until it is told to be quick.
func reload(p *patient) {
	asks("debug populate 1000 ballast 1024", "config set key-load-delay 20000")(p)
	p.occupy("LOADING", "debug", "reload")
}

// loseTheDisk takes the directory away where the server is to save its data.
func loseTheDisk(p *patient) {
	require.NoError(p.t, os.RemoveAll(p.server.Dir))
	asks("bgsave")(p)
	eventually(p.t, "not saved", func() bool {
		return strings.Contains(p.admin.Info(p.t.Context(), "persistence").Val(), "rdb_last_bgsave_status:err")
	})
}

func TestARefusalIsAnErrorOfItsCallAndPassesWithItsReason(t *testing.T) {
	t.Parallel()
	for name, d := range distresses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.RequireVersion(t, d.since)
			newCourse(t, d, d.admit(t)).run()
		})
	}
}

// course is what a client of the library goes through with a server in distress. It has a
// hold to be kept, one to be unlocked meanwhile, and a waiter for a lock that is taken.
type course struct {
	*faultBench
	*distress
	p *patient

	kept, ended, free *Mutex
	failed            chan Event // renewals of kept
	hold              *holdContext
}

func newCourse(t *testing.T, d *distress, p *patient) *course {
	t.Helper()
	b := &faultBench{
		t: t, ctx: t.Context(), relay: p.relay, key: p.names("queued")[0], other: newFaultOwner(t),
		renewed: make(chan Event, 4096), contended: make(chan Event, 4096), lost: make(chan Event, 16),
	}
	c := &course{faultBench: b, distress: d, p: p, failed: make(chan Event, 4096)}
	b.hooks = Hooks{
		Renewed:     func(e Event) { b.renewed <- e },
		RenewFailed: func(e Event) { c.failed <- e },
		Lost:        func(e Event) { b.lost <- e },
		Contended:   func(e Event) { b.contended <- e },
	}
	b.locks = locksOn(t, p.rdb, WithSafetyPoll(50*time.Millisecond), WithUnlockTimeout(300*time.Millisecond))
	c.kept = b.locks.MultiMutex(p.names("kept"), WithOwner("keeper"), WithRenewInterval(50*time.Millisecond), WithHooks(b.hooks))
	c.ended = b.locks.MultiMutex(p.names("ended"), WithOwner("visitor"))
	c.free = b.locks.MultiMutex(p.names("free"), WithOwner("visitor"), WithFencing())
	b.m = b.locks.MultiMutex(p.names("queued"), WithHooks(b.hooks))
	for _, s := range []*redisexec.Script{protocol.AcquireScript, protocol.ReenterScript, protocol.RenewScript, protocol.ReleaseScript} {
		require.NoError(t, p.admin.ScriptLoad(t.Context(), s.Source).Err())
	}
	return c
}

func (c *course) run() {
	c.begin()
	c.strike(c.p)
	c.awaitFailure()
	c.requireRefused()
	c.requireErrors()
	c.requireEffectOnHolds()
	waits := c.requireEffectOnWaiter()
	c.heal(c.p)
	if c.p.ill != nil {
		receives(c.t, c.p.ill)
	}
	keys := append(c.free.target.Keys, c.free.target.Counters...)
	eventually(c.t, "well", func() bool { return c.p.admin.HLen(c.t.Context(), keys[0]).Err() == nil })
	for _, key := range keys {
		require.Zero(c.t, c.p.admin.Exists(c.t.Context(), key).Val(), "%s: something was executed", key)
	}
	c.requireRecovery(waits)
}

// begin takes the locks while all is well.
func (c *course) begin() {
	c.t.Helper()
	requireLocked(c.t, c.kept)
	requireLocked(c.t, c.ended)
	c.hold = c.kept.Context(c.ctx).(*holdContext)
	heldByStranger(c.t, c.p.admin, c.key, time.Hour)
	c.waiting = c.other.start(func() error { return c.m.Lock(c.ctx) })
	c.awaitContended()
	c.await(c.renewed)
}

// awaitFailure waits until a renewal fails of the distress. A command that was on its way
// when the distress began may fail otherwise.
func (c *course) awaitFailure() {
	c.t.Helper()
	eventually(c.t, c.says, func() bool {
		return c.refuses == growth || regexp.MustCompile(c.says).MatchString(c.await(c.failed).Err.Error())
	})
}

// requireRefused asserts what one copy of an acquisition fails with.
func (c *course) requireRefused() {
	c.t.Helper()
	_, out := plainOn(c.t, c.p.rdb).Acquire(c.ctx, once, c.free.target, me, termsOf(WithFencing()))
	require.Error(c.t, out.Err)
	require.Regexp(c.t, c.says, out.Err.Error())
	require.Equal(c.t, c.want, redisexec.Judge(out.Err), "%T: %v", out.Err, out.Err)
	require.Equal(c.t, !c.want.NotExecuted, out.Ambiguous)
	require.Equal(c.t, c.want.Permanent, out.Permanent)
}

// requireErrors asserts that who comes now learns what Redis said, and soon, and that nothing of it
// is in doubt. The others share the client's identity, and a command of theirs that the distress cut
// off may be in doubt only now: then it is asked again. A call that is in doubt is so every time.
func (c *course) requireErrors() {
	c.t.Helper()
	for name, lock := range map[string]func() error{
		"Lock":    c.lockFree,
		"TryLock": func() error { _, err := c.free.TryLock(c.ctx); return err },
	} {
		eventually(c.t, "nothing in doubt after "+name, func() bool {
			id := c.locks.ID()
			c.requireError(name, lock)
			return c.locks.ID() == id
		})
	}
}

func (c *course) lockFree() error {
	if !c.passes {
		return c.free.Lock(c.ctx)
	}
	ctx, cancel := context.WithTimeout(c.ctx, 5*aWhile) // more than the resends take
	defer cancel()
	err := c.free.Lock(ctx)
	require.ErrorIs(c.t, err, context.DeadlineExceeded, "it has not waited")
	return err
}

func (c *course) requireError(name string, lock func() error) {
	c.t.Helper()
	if c.relay != nil {
		c.relay.ResetLog()
	}
	began := time.Now()
	err := lock()
	require.Less(c.t, time.Since(began), 8*time.Second, name)
	require.Error(c.t, err, name)
	require.Regexp(c.t, c.says, err.Error(), name)
	require.ErrorContains(c.t, err, c.free.Name(), name)
	require.NotErrorIs(c.t, err, ErrTimeout, name)
	var reply redis.Error
	require.ErrorAs(c.t, err, &reply, name)
	require.Zero(c.t, c.free.HoldCount(), name)
	if c.relay != nil {
		require.Equal(c.t, c.copies(), c.relay.Count(redistest.Scripts.And(redistest.With(c.free.Name()))), name)
	}
}

// copies is how many of an acquisition are sent.
func (c *course) copies() int {
	switch {
	case c.refuses == entry:
		return 0
	case c.want.Resend:
		return acquireEffort.Attempts
	default:
		return 1
	}
}

// requireEffectOnHolds asserts what becomes of a renewal and of an Unlock.
func (c *course) requireEffectOnHolds() {
	c.t.Helper()
	for len(c.renewed) > 0 {
		<-c.renewed
	}
	began := time.Now()
	err := c.ended.Unlock()
	require.Less(c.t, time.Since(began), 5*time.Second)
	require.Zero(c.t, c.ended.HoldCount())
	require.ErrorIs(c.t, c.ended.Unlock(), ErrNotHeld)
	if c.refuses == growth {
		require.NoError(c.t, err)
		c.await(c.renewed)
		return
	}
	require.Error(c.t, err)
	require.Regexp(c.t, c.says, err.Error())
	require.ErrorContains(c.t, err, "Redis may not know")
	require.Regexp(c.t, c.says, c.await(c.failed).Err.Error())
	require.NoError(c.t, c.hold.Err(), "the lease is not over")
}

// requireEffectOnWaiter asserts what becomes of the waiter, and reports whether it waits on.
func (c *course) requireEffectOnWaiter() bool {
	c.t.Helper()
	if c.refuses > everything {
		return true
	}
	if c.want.Permanent {
		require.Regexp(c.t, c.says, faultError(c.t, c.waiting).Error())
		return false
	}
	c.awaitSilence()
	require.Empty(c.t, c.waiting)
	return true
}

// requireRecovery asserts that all goes on as if nothing had been, and leaves nothing.
func (c *course) requireRecovery(waits bool) {
	c.t.Helper()
	for len(c.renewed) > 0 {
		<-c.renewed
	}
	c.await(c.renewed)
	require.NoError(c.t, c.hold.Err())
	require.Empty(c.t, c.lost)
	eventually(c.t, "locked again", func() bool {
		held, err := c.free.TryLock(c.ctx)
		return held && err == nil
	})
	require.Positive(c.t, c.free.FencingToken())
	requireUnlocked(c.t, c.free)
	requireUnlocked(c.t, c.kept)
	require.NoError(c.t, c.p.admin.Del(c.ctx, c.key).Err())
	if waits {
		publishes(c.t, c.p.admin, c.key)
		require.NoError(c.t, faultError(c.t, c.waiting))
		require.NoError(c.t, c.other.unlock(c.m))
	}
	c.awaitIdle()
	for _, m := range []*Mutex{c.free, c.kept, c.ended, c.m} {
		for _, key := range m.target.Keys {
			require.Zero(c.t, c.p.admin.Exists(c.ctx, key).Val(), key)
		}
	}
}
