package redisexec

import (
	"errors"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redistest"
)

// touching is a script that writes all of its keys, and needs memory for that.
var touching = NewScript("for _, key in ipairs(KEYS) do redis.call('set', key, 1) end return 1")

func TestVerdict_NetworkErrorDependsOnWhetherTheScriptMayHaveRun(t *testing.T) {
	t.Parallel()
	for name, m := range redistest.Mishaps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := redistest.NewWay(t, m, touching.Source())
			x, key := executorOn(t, w.Rdb), redistest.Key(t)
			x.Unpipelined = x.Unpipelined || m.Narrow // a pipeline needs no connection of the pool
			m.Befall(w)
			_, out := x.Run(t.Context(), once, touching, []any{key})
			is := m.Is
			if m.Silent { // that is noticed by go-redis or by the executor, whichever looks first
				is = []error{lockerr.ErrNoAnswer, os.ErrDeadlineExceeded}
			}
			require.True(t, slices.ContainsFunc(is, func(is error) bool { return errors.Is(out.Err, is) }), "%T: %v", out.Err, out.Err)
			requireJudged(t, m.Means, out)
			w.Clear()
			ran := func() bool { return w.Admin.Exists(t.Context(), key).Val() == 1 }
			if m.Executed {
				redistest.Eventually(t, "executed", ran)
			} else {
				require.Never(t, ran, 100*time.Millisecond, redistest.LookEvery, "it was executed")
			}
		})
	}
}

// requireJudged requires that a call has ended as one whose copy failed with that.
func requireJudged(t *testing.T, m redistest.Meaning, out Outcome) {
	t.Helper()
	require.Equal(t, meant(m), judge(out.Err), "%T: %v", out.Err, out.Err)
	require.Equal(t, !m.NotExecuted, out.Ambiguous)
	require.Equal(t, m.Permanent, out.Permanent)
}

func TestVerdict_FullServerIsWorthAnotherTry(t *testing.T) {
	t.Parallel() // go-redis takes a second to give up
	for name, node := range map[string]bool{"alone": false, "a node": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, admin := redistest.NewFullServer(t, node)
			conn, err := net.Dial("tcp", server.Addr)
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			reply, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.Contains(t, string(reply), "-ERR max number of clients")
			require.Equal(t, transient, judgeReply(strings.TrimSpace(string(reply[1:]))), "%s", reply)

			rdb := redis.NewClient(&redis.Options{Addr: server.Addr, DialerRetries: 1})
			t.Cleanup(func() { _ = rdb.Close() })
			_, out := executorOn(t, rdb).Run(t.Context(), once, touching, []any{"key"})
			require.Error(t, out.Err)
			v := judge(out.Err)
			require.True(t, v.resend, "%T: %v", out.Err, out.Err)
			require.False(t, v.permanent)
			require.Zero(t, admin.DBSize(t.Context()).Val(), "something was executed")
		})
	}
}

func TestVerdict_RefusalDependsOnWhetherItPasses(t *testing.T) {
	t.Parallel()
	for name, d := range redistest.Distresses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.RequireVersion(t, d.Since)
			requireRefused(t, d, d.Admit(t))
		})
	}
}

// requireRefused brings a server into distress, and requires that it refuses a script, which is
// judged by that.
func requireRefused(t *testing.T, d *redistest.Distress, p *redistest.Patient) {
	t.Helper()
	loadScripts(t, p.Admin, touching)
	x, names := executorOn(t, p.Rdb), p.Names("free")
	keys := make([]any, len(names))
	for i, name := range names {
		keys[i] = name
	}
	require.NoError(t, p.Rdb.Ping(t.Context()).Err()) // from here on it is connected
	d.Strike(p)
	redistest.Eventually(t, d.Contains, func() bool { // what was connected may fail otherwise, once
		_, out := x.Run(t.Context(), once, touching, keys)
		require.Error(t, out.Err)
		if !regexp.MustCompile(d.Contains).MatchString(out.Err.Error()) {
			return false
		}
		requireJudged(t, d.Means, out)
		return true
	})
	d.Heal(p)
	if p.Ill != nil {
		redistest.Receive(t, p.Ill)
	}
	redistest.Eventually(t, "well", func() bool { return p.Admin.Exists(t.Context(), names[0]).Err() == nil })
	for _, name := range names {
		require.Zero(t, p.Admin.Exists(t.Context(), name).Val(), "%s: something was executed", name)
	}
}

func TestVerdict_RefusalByAClusterNodeDependsOnWhetherItPasses(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	for name, d := range redistest.ClusterDistresses {
		t.Run(name, func(t *testing.T) { requireRefused(t, d, redistest.NewWard(t, cluster)) })
	}
	for name, m := range redistest.Misroutings {
		t.Run(name, func(t *testing.T) {
			p := redistest.NewWard(t, cluster)
			rdb, names := m.Ask(p)
			keys := make([]any, len(names))
			for i, name := range names {
				keys[i] = name
			}
			_, out := executorOn(t, rdb).Run(t.Context(), once, touching, keys)
			require.ErrorContains(t, out.Err, m.Contains)
			requireJudged(t, m.Means, out)
			m.After(p)
			for _, name := range names {
				require.Zero(t, p.Admin.Exists(t.Context(), name).Val())
			}
		})
	}
}
