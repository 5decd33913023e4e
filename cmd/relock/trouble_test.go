//go:build unix

package main_test

import (
	"encoding/json"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// findings are what doctor --json says: the status of each check.
func findings(t *testing.T, redisURL string, args ...string) (code int, all map[string]string, text string) {
	t.Helper()
	code, out, stderr := run(t, redisURL, append([]string{"doctor", "--json"}, args...)...)
	var list []struct{ Status, Check, Finding string }
	require.NoError(t, json.Unmarshal([]byte(out), &list), "%s%s", out, stderr)
	all = make(map[string]string)
	for _, f := range list {
		if all[f.Check] == "" || all[f.Check] == "ok" {
			all[f.Check] = f.Status
		}
	}
	return code, all, out
}

func TestTrouble_UnreachableRedisIs69(t *testing.T) {
	t.Parallel()
	const nowhere = "redis://127.0.0.1:1"
	for _, args := range [][]string{{"run", "a", "--", "true"}, {"run", "-n", "a", "--", "true"}, {"ls"}, {"state", "a"}, {"force", "a"}, {"watch", "a"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			code, _, stderr := run(t, nowhere, args...)
			require.Equal(t, 69, code, "%v", args)
			require.Contains(t, stderr, "127.0.0.1:1")
		})
	}
	code, all, _ := findings(t, nowhere)
	require.Equal(t, 2, code)
	require.Equal(t, "broken", all["reach"])
}

func TestTrouble_SilentRedisIs69(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	require.NoError(t, s.Pause())
	defer func() { _ = s.Resume() }()
	url += "?read_timeout=300ms&dial_timeout=300ms"
	for _, args := range [][]string{
		{"run", "--ttl", "2s", "a", "--", "true"},
		// -E is for a lock that another owner holds, and nobody knows that here.
		{"run", "-w", "50ms", "-E", "0", "a", "--", "true"}, {"run", "-w", "1s", "-E", "0", "--slots", "2", "a", "--", "true"},
		{"ls"}, {"state", "a"},
	} {
		code, _, _ := run(t, url, args...)
		require.Equal(t, 69, code, "%v", args)
	}
	code, _, _ := findings(t, url)
	require.Equal(t, 2, code)
}

func TestTrouble_FullRedisIs69AndReleasesWhatIsHeld(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	rdb := s.Client(t)
	p := start(t, url, "run", "a", "--", "sh", "-c", "echo ready; read x < "+fifo(t))
	p.awaitOut(t, "ready")
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	code, _, stderr := run(t, url, "run", "b", "--", "true")
	require.Equal(t, 69, code)
	require.Contains(t, stderr, "OOM")
	code, out, _ := run(t, url, "ls")
	require.Equal(t, 0, code)
	require.Contains(t, out, "a ")
	code, all, _ := findings(t, url)
	require.Equal(t, 2, code)
	require.Equal(t, "broken", all["locks"])
	p.signal(t, sigTerm)
	require.Equal(t, 143, p.wait(t))
	requireFree(t, rdb, "a")
}

func TestTrouble_ReplicaIs69AndCanBeInspected(t *testing.T) {
	t.Parallel()
	master, url := server(t)
	replica, replicaURL := server(t, "--replicaof", "127.0.0.1 "+portOf(master))
	start(t, url, "run", "a", "--", "sh", "-c", "echo ready; exec sleep 60").awaitOut(t, "ready")
	redistest.Eventually(t, "the replica has it", func() bool { return replica.Client(t).Exists(t.Context(), "a").Val() == 1 })
	code, _, stderr := run(t, replicaURL, "run", "b", "--", "true")
	require.Equal(t, 69, code)
	require.Contains(t, stderr, "a replica: use the address of the master")
	_, out, _ := run(t, replicaURL, "ls")
	require.Contains(t, out, "a ")
	code, all, _ := findings(t, replicaURL)
	require.Equal(t, 2, code)
	require.Equal(t, "broken", all["role"])
}

func portOf(s *redistest.Server) string {
	u, err := url.Parse("redis://" + s.Addr)
	if err != nil {
		panic(err)
	}
	return u.Port()
}

func TestTrouble_WrongPasswordIs77AndNeverPrinted(t *testing.T) {
	t.Parallel()
	s, url := server(t, "--requirepass", "s3cret")
	for _, given := range []string{"", "wr0ng@", ":wr0ng@"} {
		for _, args := range [][]string{{"run", "a", "--", "true"}, {"ls"}, {"state", "a"}, {"force", "a"}} {
			code, out, stderr := run(t, "redis://"+given+s.Addr, args...)
			require.Equal(t, 77, code, "%v: %s", args, stderr)
			require.NotContains(t, out+stderr, "wr0ng")
		}
	}
	_ = url
	right := "redis://:s3cret@" + s.Addr
	for _, args := range [][]string{{"run", "-v", "a", "--", "true"}, {"ls"}, {"doctor"}, {"run", "--help"}, {"ls", "--redis", right, "--nonsense"}} {
		_, out, stderr := run(t, right, args...)
		require.NotContains(t, out+stderr, "s3cret", "%v", args)
	}
	code, _, _ := run(t, right, "run", "a", "--", "true")
	require.Equal(t, 0, code)
}

// acl is what docs/operations.md says that a user of orders:* needs.
var acl = []any{"acl", "setuser", "app", "on", ">secret", "resetkeys", "resetchannels", "-@all", "~orders:*", "~redisson_lock_token:{orders:*", "~redisson_lock_queue:{orders:*",
	"~relock_line*:{orders:*", "~relock_rw_claim:{orders:*", "~{orders:*", "~relock_client:*", "&redisson_lock__channel:{orders:*", "&relock_line_grants:{orders:*", "&relock_wanted:{orders:*", "&redisson_rwlock:{orders:*",
	"+eval", "+evalsha", "+subscribe", "+unsubscribe", "+ping", "+hlen", "+hexists", "+hgetall", "+hset", "+hdel", "+pttl", "+pexpire", "+time", "+get", "+set", "+lindex", "+pubsub|numsub", "+publish",
	"+hget", "+exists", "+del", "+hmget", "+hkeys", "+hrandfield", "+zadd", "+zcard", "+zrange", "+zrem", "+zrevrange", "+zscore"}

// Whoever may write to Redis chooses the names of owners.
func TestTrouble_TextFromRedisCannotSteerTheTerminal(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	rdb := s.Client(t)
	require.NoError(t, rdb.HSet(t.Context(), "a", "x:\x1b]0;title\a\x1b[2J\nrelock: lock acquired", 1).Err())
	require.NoError(t, rdb.PExpire(t.Context(), "a", time.Minute).Err())
	code, _, stderr := run(t, url, "run", "-w", "200ms", "a", "--", "true")
	require.Equal(t, 75, code, stderr)
	require.Contains(t, stderr, "held by x:?]0;title??[2J?relock: lock acquired")
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	require.NoError(t, rdb.Del(t.Context(), "a").Err())
}

func TestTrouble_ManualThatCannotBeWrittenIs64(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "relock.1"), 0o755))
	code, _, stderr := run(t, "", "man", "--dir", dir)
	require.Equal(t, 64, code, stderr)
}

func TestTrouble_ACLIsObeyedAndShownByDoctor(t *testing.T) {
	t.Parallel()
	s, admin := server(t)
	rdb := s.Client(t)
	require.NoError(t, rdb.Do(t.Context(), acl...).Err())
	app := "redis://app:secret@" + s.Addr
	code, _, stderr := run(t, app, "run", "orders:1", "--", "true")
	require.Equal(t, 0, code, stderr)
	code, _, stderr = run(t, app, "run", "other", "--", "true")
	require.Equal(t, 77, code, stderr)
	code, all, _ := findings(t, app, "--name", "orders:doctor")
	require.Equal(t, 1, code, "INFO is not allowed")
	require.Equal(t, map[string]string{"reach": "ok", "info": "warning", "scripts": "ok", "messages": "ok", "locks": "ok"}, all)
	code, all, _ = findings(t, app)
	require.Equal(t, 2, code)
	require.Equal(t, "broken", all["locks"])

	code, all, text := findings(t, admin, "--user", "app", "--name", "orders:doctor")
	require.Equal(t, 0, code, text)
	require.Equal(t, "ok", all["permissions"])
	require.NoError(t, rdb.Do(t.Context(), "acl", "setuser", "app", "-zadd").Err())
	code, all, text = findings(t, admin, "--user", "app", "--name", "orders:doctor")
	require.Equal(t, 1, code)
	require.Equal(t, "warning", all["permissions"])
	require.Contains(t, text, "zadd")
	require.NoError(t, rdb.Do(t.Context(), "acl", "setuser", "app", "-hset").Err())
	code, _, _ = findings(t, admin, "--user", "app", "--name", "orders:doctor")
	require.Equal(t, 2, code)
}

func TestDoctor_FindsEviction(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	code, all, _ := findings(t, url)
	require.Equal(t, 0, code, all)
	require.NoError(t, s.Client(t).ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	code, all, _ = findings(t, url)
	require.Equal(t, 1, code)
	require.Equal(t, "warning", all["memory"])
	require.Empty(t, s.Client(t).Keys(t.Context(), "*").Val(), "it leaves nothing")
}

// aclOnQuorum is what docs/operations.md says that a user of orders:* needs on a quorum.
var aclOnQuorum = []any{"acl", "setuser", "app", "on", ">secret", "resetkeys", "resetchannels", "-@all", "~orders:*", "~redisson_lock_token:{orders:*", "~redisson_lock_queue:{orders:*",
	"~relock_client:*", "&redisson_lock__channel:{orders:*", "+eval", "+evalsha", "+subscribe", "+unsubscribe", "+ping", "+hlen", "+hexists", "+hgetall", "+hset", "+hdel", "+pttl",
	"+pexpire", "+time", "+get", "+set", "+lindex", "+pubsub|numsub", "+publish", "+info"}

func TestDoctor_PermissionsOnAQuorumAreThoseForItsLocks(t *testing.T) {
	t.Parallel()
	var admins, apps []string
	for range 3 {
		s, url := server(t, "--appendonly", "yes")
		require.NoError(t, s.Client(t).Do(t.Context(), aclOnQuorum...).Err())
		admins, apps = append(admins, url), append(apps, "redis://app:secret@"+s.Addr)
	}
	code, _, stderr := run(t, strings.Join(apps, " "), "run", "orders:1", "--", "true")
	require.Equal(t, 0, code, stderr)
	code, all, text := findings(t, strings.Join(admins, " "), "--user", "app", "--name", "orders:doctor")
	require.Equal(t, 0, code, text)
	require.Equal(t, "ok", all["permissions"])
	code, all, text = findings(t, strings.Join(admins, " "), "--user", "app")
	require.Equal(t, 2, code, text)
	require.Equal(t, "broken", all["permissions"])
}

// The server accepts connections, and never answers, so that the signal arrives during the examination.
func TestDoctor_SignalEndsItWithoutFindings(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			require.NoError(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(redistest.SoonEnough)))
			p := start(t, "redis://"+l.Addr().String(), "doctor", "--timeout", "2s")
			conn, err := l.Accept()
			require.NoError(t, err)
			defer conn.Close()
			p.signal(t, sig)
			require.Equal(t, 128+int(sig), p.wait(t))
			require.Empty(t, p.out.String()+p.err.String())
		})
	}
}
