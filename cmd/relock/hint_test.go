//go:build unix

package main_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// advices are what doctor says that can be done about what is broken.
func advices(t *testing.T, url string, args ...string) string {
	t.Helper()
	code, out, stderr := run(t, url, append([]string{"doctor", "--json"}, args...)...)
	require.Equal(t, 2, code, out+stderr)
	var all []struct{ Status, Advice string }
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	var broken []string
	for _, f := range all {
		if f.Status == "broken" {
			broken = append(broken, f.Advice)
		}
	}
	return strings.Join(broken, "\n")
}

func TestHint_AWrongKindOfURLIsNamed(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	port := freePort(t)
	_, plain := server(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
	addr, withTLS := strings.TrimPrefix(plain, "redis://"), "127.0.0.1:"+port
	const hangsUp, silent = "if it requires TLS, use rediss://", "with TLS for rediss://"
	requireHint(t, "redis://"+withTLS, hangsUp)
	requireHint(t, "redis-cluster://"+withTLS, hangsUp)
	requireHint(t, "rediss://"+addr, silent)
	requireHint(t, "redis-cluster://"+addr, "not in a Cluster: use redis://")
	requireHint(t, "redis-sentinel://"+addr+"/m", "not a Sentinel: use redis://")
	// go-redis takes its time to try Sentinels.
	require.Contains(t, advices(t, "redis-sentinel://"+withTLS+"/m", "--timeout", "12s"), hangsUp)
	require.Contains(t, advices(t, "rediss-cluster://"+addr, "--timeout", "300ms"), silent)
}

func TestHint_ASentinelIsNamed(t *testing.T) {
	t.Parallel()
	s := redistest.NewSentinel(t)
	requireHint(t, "redis://"+s.Addrs()[0], "use redis-sentinel://HOST/MASTER")
	code, _, stderr := run(t, "redis-sentinel://"+s.Addrs()[0]+"/other", "state", "a")
	require.Equal(t, 69, code)
	require.Contains(t, stderr, "have no master of that name")
}

func TestHint_ANodeOfAClusterIsNamed(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t)
	noKeyLeft(t, c.Client(t))
	away, err := c.Master(t.Context(), "b")
	require.NoError(t, err)
	requireHint(t, "redis://"+away.Addr, "use redis-cluster://")
	_, _, stderr := run(t, "redis://"+away.Addr, "run", "a", "--", "true")
	require.Contains(t, stderr, "this server is a node of a Cluster: use a *redis.ClusterClient: MOVED", "the error of the library")
}

// requireHint checks what run, state and doctor say about a URL that is wrong.
func requireHint(t *testing.T, url, hint string) {
	t.Helper()
	timeout, ttl := "12s", "30s"
	if strings.HasPrefix(url, "rediss") { // which a server without TLS takes for a command that is not complete
		timeout, ttl = "300ms", "1s"
	}
	for _, args := range [][]string{{"run", "--ttl", ttl, "a", "--", "true"}, {"state", "--timeout", timeout, "a"}} {
		code, _, stderr := run(t, url, args...)
		require.Equal(t, 69, code, "%s %v: %s", url, args, stderr)
		require.Contains(t, stderr, hint, "%s %v", url, args)
	}
	require.Contains(t, advices(t, url, "--timeout", timeout), hint, url)
}

func TestHint_DoctorBlamesTheACLForNothingElse(t *testing.T) {
	t.Parallel()
	full, fullURL := server(t)
	require.NoError(t, full.Client(t).ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, replicaURL := server(t, "--replicaof", "127.0.0.1 "+portOf(full))
	for url, hint := range map[string]string{fullURL: "raise maxmemory", replicaURL: "use the address of the master"} {
		all := advices(t, url)
		require.Contains(t, all, hint)
		require.NotContains(t, all, "allow ")
		require.NotContains(t, all, "ACL")
	}
	guarded, _ := server(t)
	require.NoError(t, guarded.Client(t).Do(t.Context(), "acl", "setuser", "app", "on", ">secret", "~*", "&*", "+@all", "-eval").Err())
	require.Contains(t, advices(t, "redis://app:secret@"+guarded.Addr), "allow +eval")
}

func TestHint_AKeyThatIsNoLockIsNamedForWhatItIs(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	put(t, s.Client(t), "set text 1", "rpush list 1", "sadd set 1", "zadd zset 1 a", "xadd stream * a 1", "hset hash a 1")
	for name, what := range map[string]string{"text": "a string", "list": "a list", "set": "a set", "zset": "a sorted set",
		"stream": "a stream", "hash": "a hash of another program"} {
		for _, args := range [][]string{{"run", name, "--", "true"}, {"run", "-n", name, "--", "true"}, {"run", "--exclusive", name, "--", "true"},
			{"state", name}, {"force", name}, {"watch", name}} {
			code, _, stderr := run(t, url, args...)
			require.Equal(t, 64, code, "%v: %s", args, stderr)
			require.Contains(t, stderr, `"`+name+`" is not a lock: it is `+what, "%v", args)
			require.NotContains(t, stderr, "invalid name")
		}
	}
}

func TestTimeout_BoundsEachAnswerThatALookWaitsFor(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	c := redistest.NewCluster(t)
	behind := redistest.NewSentinel(t)
	var paused []*redistest.Server
	paused = append(append(append(paused, s), c.Nodes...), behind.Sentinels...)
	for _, server := range paused {
		require.NoError(t, server.Pause())
	}
	defer func() {
		for _, server := range paused {
			_ = server.Resume()
		}
	}()
	for _, url := range []string{url, "redis-cluster://" + strings.Join(c.Addrs(), ","), "redis-sentinel://" + strings.Join(behind.Addrs(), ",") + "/" + redistest.MasterName} {
		for _, args := range [][]string{{"ls"}, {"state", "a"}, {"force", "a"}, {"watch", "a"}} {
			code, _, stderr := run(t, url, append(args, "--timeout", "300ms")...)
			require.Equal(t, 69, code, "%s %v: %s", url, args, stderr)
			require.Contains(t, stderr, "no answer from Redis within 300ms", "%s %v", url, args)
		}
		require.Contains(t, advices(t, url, "--timeout", "300ms"), "and that Redis runs there", url)
	}
	code, _, stderr := run(t, url, "ls", "--timeout", "0s")
	require.Equal(t, 64, code, stderr)
}
