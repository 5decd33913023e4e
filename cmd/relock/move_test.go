//go:build unix

package main_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// moves has name move to another server while one command holds it and another waits, and checks that neither
// notices, in each kind of lock that has a line.
func moves(t *testing.T, rdb redis.UniversalClient, url string, move func()) {
	t.Helper()
	file, fifo := inDir(t, "log"), fifo(t)
	script := func(id, wait string) string {
		return `echo "+` + id + ` $RELOCK_TOKEN" >> ` + file + `; echo ready; ` + wait + `; echo "-` + id + ` $RELOCK_TOKEN" >> ` + file
	}
	holder := start(t, url, "run", "--ttl", "20s", "a", "--", "sh", "-c", script("1", "read x < "+fifo))
	holder.awaitOut(t, "ready")
	var waiters []*process
	for i, kind := range [][]string{{"run"}, {"run", "--fair"}} {
		waiters = append(waiters, start(t, url, append(kind, "--ttl", "20s", "a", "--", "sh", "-c", script(strconv.Itoa(i+2), "true"))...))
		awaitWaiters(t, rdb, "a", int64(i+1))
	}
	watcher := start(t, url, "watch", "a")
	watcher.awaitOut(t, "held")
	move()
	redistest.Eventually(t, "it is seen where it is now", func() bool {
		code, out, _ := run(t, url, "state", "a")
		return code == 0 && strings.Contains(out, "held (mutex)")
	})
	require.NoError(t, os.WriteFile(fifo, []byte("\n"), 0))
	require.Equal(t, 0, holder.wait(t), "it held the lock all the time")
	for _, w := range waiters {
		require.Equal(t, 0, w.wait(t))
	}
	watcher.awaitOut(t, "free")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var inside string
	var last int64
	for line := range strings.Lines(string(text)) { // one at a time, and tokens that rise
		id, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		token, err := strconv.ParseInt(number, 10, 64)
		require.NoError(t, err)
		if id[0] == '+' {
			require.Empty(t, inside, string(text))
			require.Greater(t, token, last)
			inside, last = id[1:], token
			continue
		}
		require.Equal(t, inside, id[1:], string(text))
		inside = ""
	}
	require.Equal(t, 6, strings.Count(string(text), "\n"))
	requireFree(t, rdb, "a")
}

func TestFailover_HoldAndWaitersOutliveItBehindSentinel(t *testing.T) {
	t.Parallel()
	s := redistest.NewSentinel(t)
	noKeyLeft(t, s.Client(t))
	url := "redis-sentinel://" + strings.Join(s.Addrs(), ",") + "/" + redistest.MasterName
	moves(t, s.Client(t), url, func() {
		old, err := s.Master(t.Context())
		require.NoError(t, err)
		inSync(t, old)
		old.Kill()
		_, err = s.AwaitFailover(t.Context(), old)
		require.NoError(t, err)
	})
}

// inSync waits until two replicas have all that s has: what a failover forgets otherwise is not the subject.
func inSync(t *testing.T, s *redistest.Server) {
	t.Helper()
	rdb := s.Client(t).Conn()
	defer rdb.Close()
	require.NoError(t, rdb.Do(t.Context(), "publish", "nothing", "0").Err())
	n, err := rdb.Do(t.Context(), "wait", 2, 5000).Int()
	require.NoError(t, err)
	require.Equal(t, 2, n)
}

func TestFailover_HoldAndWaitersOutliveItOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t)
	noKeyLeft(t, c.Client(t))
	url := "redis-cluster://" + strings.Join(c.Addrs(), ",")
	moves(t, c.Client(t), url, func() {
		_, err := c.Failover(t.Context(), "a")
		require.NoError(t, err)
	})
	moves(t, c.Client(t), url, func() { moveSlot(t, c, "a") })
}

// moveSlot moves the slot of a name to another master.
func moveSlot(t *testing.T, c *redistest.Cluster, name string) {
	t.Helper()
	from, err := c.Master(t.Context(), name)
	require.NoError(t, err)
	to, err := c.Master(t.Context(), "b") // of another slot
	require.NoError(t, err)
	require.NotEqual(t, from.Addr, to.Addr)
	source, target := from.Client(t), to.Client(t)
	ctx := t.Context()
	slot := source.ClusterKeySlot(ctx, name).Val()
	id := target.Do(ctx, "cluster", "myid").Val()
	require.NoError(t, target.Do(ctx, "cluster", "setslot", slot, "importing", source.Do(ctx, "cluster", "myid").Val()).Err())
	require.NoError(t, source.Do(ctx, "cluster", "setslot", slot, "migrating", id).Err())
	host, port, _ := strings.Cut(to.Addr, ":")
	redistest.Eventually(t, "all keys have moved", func() bool {
		for _, key := range source.ClusterGetKeysInSlot(ctx, int(slot), 100).Val() {
			require.NoError(t, source.Migrate(ctx, host, port, key, 0, time.Second).Err())
		}
		return len(source.ClusterGetKeysInSlot(ctx, int(slot), 100).Val()) == 0
	})
	require.NoError(t, target.Do(ctx, "cluster", "setslot", slot, "node", id).Err())
	require.NoError(t, source.Do(ctx, "cluster", "setslot", slot, "node", id).Err())
	require.NoError(t, c.AwaitMaster(ctx, name, to))
}
