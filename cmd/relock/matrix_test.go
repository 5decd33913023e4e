//go:build unix

package main_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// A place is a deployment of Redis.
type place struct {
	url     string
	quorum  bool
	rdb     redis.UniversalClient // with the password that a trouble sets
	servers []*redistest.Server   // that trouble befalls: all that have locks, or most of a quorum
	ready   func() error          // after a trouble
}

// Short time-outs: the time-outs of go-redis are not the subject.
const impatient = "?dial_timeout=500ms&read_timeout=500ms"

var places = map[string]func(t *testing.T) place{
	"one server": func(t *testing.T) place {
		s, url := server(t)
		return place{url: url + impatient, rdb: s.Client(t), servers: []*redistest.Server{s}, ready: func() error { return nil }}
	},
	"behind Sentinel": func(t *testing.T) place {
		s := redistest.NewSentinel(t)
		noKeyLeft(t, s.Client(t))
		url := "redis-sentinel://" + strings.Join(s.Addrs(), ",") + "/" + redistest.MasterName + impatient
		return place{url: url, rdb: s.Client(t), servers: s.Nodes, ready: func() error { return s.AwaitReady(t.Context()) }}
	},
	"on a Cluster": func(t *testing.T) place {
		c := redistest.NewCluster(t)
		noKeyLeft(t, c.Client(t))
		url := "redis-cluster://" + strings.Join(c.Addrs(), ",") + "?read_timeout=150ms" // each look asks six nodes, several times
		return place{url: url, rdb: c.Client(t), servers: c.Nodes, ready: func() error { return c.AwaitReady(t.Context()) }}
	},
	"on a quorum": func(t *testing.T) place {
		p := place{quorum: true, ready: func() error { return nil }}
		var urls []string
		for range 3 {
			s, url := server(t)
			p.servers, urls = append(p.servers, s), append(urls, url+impatient)
		}
		p.rdb, p.servers, p.url = p.servers[0].Client(t), p.servers[:2], strings.Join(urls, " ")
		return p
	},
}

// A trouble is what may befall servers. Verbs have the exit codes run, which takes a lock, and look, which does not.
type trouble struct {
	name         string
	strike, heal func(t *testing.T, s *redistest.Server)
	run, look    int
	says, hint   string // of run
	held         bool   // a lock stays held
	waits        []int  // how a wait may end: with 143 it continued until SIGTERM
}

const worksOn = -1 // a look says what there is

// asks has a server run a command of the administrator.
func asks(args ...any) func(*testing.T, *redistest.Server) {
	return func(t *testing.T, s *redistest.Server) {
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr})
		defer rdb.Close()
		err := rdb.Do(t.Context(), args...).Err()
		if err != nil && strings.Contains(err.Error(), "NOAUTH") {
			conn := rdb.Conn()
			defer conn.Close()
			require.NoError(t, conn.Do(t.Context(), "auth", "s3cret").Err())
			err = conn.Do(t.Context(), args...).Err()
		}
		require.NoError(t, err)
	}
}

// troubles befall a place in this order: it does not recover from the last. A wait ends when it needs a new connection
// and Redis wants a password for that.
var troubles = []trouble{
	{"full", asks("config", "set", "maxmemory", "1"), asks("config", "set", "maxmemory", "0"), 69, worksOn, "OOM", "out of memory", true, []int{143}},
	{"without replicas", asks("config", "set", "min-replicas-to-write", "9"), asks("config", "set", "min-replicas-to-write", "0"), 69, worksOn, "NOREPLICAS", "rejects writes", false, []int{69}},
	{"behind a password", asks("config", "set", "requirepass", "s3cret"), asks("config", "set", "requirepass", ""), 77, 77, "", "requires a password", true, []int{143, 77}},
	{"stopped", func(t *testing.T, s *redistest.Server) { require.NoError(t, s.Pause()) },
		func(t *testing.T, s *redistest.Server) { require.NoError(t, s.Resume()) }, 69, 69, "no answer from Redis", "and that Redis runs there", false, []int{69}},
	{"killed", func(_ *testing.T, s *redistest.Server) { s.Kill() }, nil, 69, 69, "", "", false, []int{69}},
}

func TestMatrix_EveryVerbReportsEveryTroubleAndLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, open := range places {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := open(t)
			for _, tr := range troubles {
				if !t.Run(tr.name, func(t *testing.T) { p.befalls(t, tr) }) {
					return // it may not be healed
				}
			}
		})
	}
}

// befalls has a trouble befall p while one command holds a lock and one waits for it, calls every verb, and looks at
// what becomes of all of them.
func (p place) befalls(t *testing.T, tr trouble) {
	holder := start(t, p.url, "run", "--ttl", "1s", "held", "--", "sh", "-c", "echo ready; exec sleep 60")
	holder.awaitOut(t, "ready")
	waiter := start(t, p.url, "run", "-v", "--ttl", "1s", "held", "--", "echo", "ran")
	redistest.Eventually(t, "it waits", func() bool { return strings.Contains(waiter.err.String(), "lock contended") })
	// The connection of the renewals is open then, which matters if a new one needs a password.
	last := time.Duration(0)
	redistest.Eventually(t, "a renewal", func() bool {
		left := p.rdb.PTTL(t.Context(), "held").Val()
		renewed := last > 0 && left > last
		last = left
		return renewed
	})
	for _, s := range p.servers {
		tr.strike(t, s)
	}
	p.everyVerb(t, tr)
	if tr.held {
		_ = waiter.cmd.Process.Signal(sigTerm) // it may have ended
		redistest.Receive(t, waiter.ended)     // before it could have the lock
		holder.signal(t, sigTerm)
		require.Equal(t, 143, holder.wait(t))
	} else {
		require.Equal(t, 124, holder.wait(t), "its lease is over")
		require.Contains(t, holder.err.String(), "ending the command: ")
	}
	require.Contains(t, tr.waits, waiter.wait(t), waiter.err)
	require.Empty(t, waiter.out.String())
	if tr.heal == nil {
		return
	}
	for _, s := range p.servers {
		tr.heal(t, s)
	}
	require.NoError(t, p.ready())
	redistest.Eventually(t, "no key is left that does not end by itself", func() bool {
		left, err := keysLeft(t.Context(), p.rdb)
		for _, key := range left {
			// What a relock says of itself outlives a Redis that does not let it take that back.
			if !strings.HasPrefix(key, "relock_client:") || p.rdb.PTTL(t.Context(), key).Val() <= 0 {
				return false
			}
			p.rdb.Del(t.Context(), key)
		}
		return err == nil
	})
}

// everyVerb calls all verbs at once, for locks that are free.
func (p place) everyVerb(t *testing.T, tr trouble) {
	kinds := []string{"", "-n", "-w 30s", "--fair", "--shared", "--exclusive", "--slots 2"}
	runs := make([]*process, len(kinds))
	for i, kind := range kinds {
		runs[i] = start(t, p.url, append(append([]string{"run", "--ttl", "1s"}, strings.Fields(kind)...), "run"+kind, "--", "echo", "ran")...)
	}
	looks := map[string]*process{}
	for verb, fine := range map[string]int{"ls": 0, "state free": 1, "force free": 1, "watch free": 143, "doctor": 2} {
		l := start(t, p.url, strings.Fields(verb)...)
		looks[verb] = l
		code := tr.look
		switch {
		case verb == "doctor":
			code = 2
		case code == worksOn:
			code = fine
		}
		if code == 143 {
			l.awaitOut(t, "free")
			l.signal(t, sigTerm)
		}
		require.Equal(t, code, l.wait(t), "%s: %s%s", verb, l.out, l.err)
		if code != fine {
			require.Contains(t, l.err.String(), tr.hint, verb)
		}
	}
	for i, r := range runs {
		code := tr.run
		if p.quorum && i > 2 {
			code = 64
		}
		require.Equal(t, code, r.wait(t), "run %s: %s", kinds[i], r.err)
		require.Empty(t, r.out.String(), "run %s", kinds[i])
		if code != 64 {
			require.Contains(t, r.err.String(), tr.says)
			require.Contains(t, r.err.String(), tr.hint)
			require.Contains(t, r.err.String(), `"run`+kinds[i]+`"`, "which lock")
		}
	}
}
