//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// everyVerb uses the lock "a" on a deployment in every way.
func everyVerb(t *testing.T, url string) {
	t.Helper()
	code, out, stderr := run(t, url, "run", "a", "--", "echo", "ran")
	require.Equal(t, 0, code, stderr)
	require.Equal(t, "ran\n", out)
	holder := start(t, url, "run", "--ttl", "1500ms", "a", "--", "sh", "-c", "echo ready; exec sleep 60")
	holder.awaitOut(t, "ready")
	code, _, _ = run(t, url, "run", "-n", "a", "--", "true")
	require.Equal(t, 75, code)
	code, _, _ = run(t, url, "run", "-w", "200ms", "a", "--", "true")
	require.Equal(t, 75, code)
	code, out, stderr = run(t, url, "ls", "--json", "a*")
	require.Equal(t, 0, code, stderr)
	var locks []struct{ Name string }
	require.NoError(t, json.Unmarshal([]byte(out), &locks))
	require.Len(t, locks, 1)
	require.Equal(t, "a", locks[0].Name)
	code, out, stderr = run(t, url, "state", "a")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, out, "held (mutex)")
	watcher := start(t, url, "watch", "a")
	watcher.awaitOut(t, "held ")
	code, _, stderr = run(t, url, "force", "a")
	require.Equal(t, 0, code, stderr)
	watcher.awaitOut(t, "free")
	require.Equal(t, 124, holder.wait(t))
	code, _, _ = run(t, url, "state", "a")
	require.Equal(t, 1, code)
	stopped := start(t, url, "run", "a", "--", "sh", "-c", "echo ready; exec sleep 60")
	stopped.awaitOut(t, "ready")
	stopped.signal(t, sigTerm)
	require.Equal(t, 143, stopped.wait(t))
	code, _, _ = run(t, url, "state", "a")
	require.Equal(t, 1, code)
}

func TestVerbs_WorkOnOneServer(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	everyVerb(t, url)
}

func TestVerbs_WorkBehindSentinel(t *testing.T) {
	t.Parallel()
	s := redistest.NewSentinel(t)
	noKeyLeft(t, s.Client(t))
	url := "redis-sentinel://" + strings.Join(s.Addrs(), ",") + "/" + redistest.MasterName
	everyVerb(t, url)
	code, all, text := findings(t, url)
	require.Equal(t, 0, code, text)
	require.Equal(t, "ok", all["replicas"])
}

func TestVerbs_WorkOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t)
	noKeyLeft(t, c.Client(t))
	url := "redis-cluster://" + strings.Join(c.Addrs(), ",")
	everyVerb(t, url)
	code, all, text := findings(t, url)
	require.Equal(t, 0, code, text)
	require.Equal(t, "ok", all["sharded messages"])
	rdb := c.Client(t)
	for _, name := range []string{"x1", "x2", "x3", "x4", "x5"} { // on several masters
		put(t, rdb, "hset "+name+" "+someOwner+" 1")
	}
	_, out, _ := run(t, url, "ls", "x*")
	require.Equal(t, 6, strings.Count(out, "\n"), out)
	code, _, stderr := run(t, "redis://"+c.Addrs()[0], "ls", "x*")
	require.Equal(t, 64, code)
	require.Contains(t, stderr, "use redis-cluster://")
	code, all, _ = findings(t, "redis://"+c.Addrs()[0])
	require.Equal(t, 2, code)
	require.Equal(t, "broken", all["role"])
}

func TestVerbs_WorkOnAQuorumAndShowDisagreement(t *testing.T) {
	t.Parallel()
	var urls []string
	var nodes []*redistest.Server
	for range 3 {
		s, url := server(t, "--appendonly", "yes")
		nodes, urls = append(nodes, s), append(urls, url)
	}
	url := strings.Join(urls, " ")
	everyVerb(t, url)
	code, all, text := findings(t, url)
	require.Equal(t, 0, code, text)
	require.Equal(t, "ok", all["quorum"])
	for i, owner := range []string{someOwner, someOwner, otherOwner} {
		put(t, nodes[i].Client(t), "hset b "+owner+" 1")
	}
	put(t, nodes[0].Client(t), "hset c "+otherOwner+" 1")
	nodes[2].Kill()
	code, out, _ := run(t, url, "ls", "--json")
	require.Equal(t, 0, code)
	var locks []struct {
		Name     string
		Held     bool
		Disagree []string
	}
	require.NoError(t, json.Unmarshal([]byte(out), &locks))
	require.Len(t, locks, 2)
	require.True(t, locks[0].Held, "b is held on two of three")
	require.False(t, locks[1].Held, "c is held on one of three")
	require.Contains(t, strings.Join(locks[0].Disagree, ";"), nodes[2].Addr+" does not answer")
	_, out, _ = run(t, url, "ls")
	require.Regexp(t, `c +01234567:7 .*on 1 of 3: does not hold it`, out)
	code, _, _ = run(t, url, "run", "d", "--", "true")
	require.Equal(t, 0, code)
	code, all, _ = findings(t, url)
	require.Equal(t, 2, code)
	require.Equal(t, "warning", all["quorum"])
	code, _, stderr := run(t, url, "run", "--fair", "d", "--", "true")
	require.Equal(t, 64, code, stderr)
}

const (
	someOwner  = "8743c9c0-0795-4907-87fd-6c719a6b4586:1"
	otherOwner = "01234567-0795-4907-87fd-6c719a6b4586:7"
)

// put writes keys as locks of Java, and other programs, have them, until t ends.
func put(t *testing.T, rdb redis.UniversalClient, commands ...string) {
	t.Helper()
	for _, command := range commands {
		var words []any
		for _, word := range strings.Fields(command) {
			words = append(words, word)
		}
		require.NoError(t, rdb.Do(t.Context(), words...).Err(), command)
		t.Cleanup(func() { rdb.Del(context.Background(), words[1].(string)) })
	}
}
