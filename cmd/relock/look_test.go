//go:build unix

package main_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
)

type lockJSON struct {
	Name    string
	Kind    string
	Held    bool
	TTLms   int64 `json:"ttl_ms"`
	Token   int64
	Waiting int
	InUse   int `json:"in_use"`
	Holders []struct {
		Owner, Side   string
		Count, Weight int
		MinHold       bool `json:"min_hold"`
	}
	Waiters []struct{ Owner, Queue, State string }
}

func listed(t *testing.T, url string, args ...string) map[string]lockJSON {
	t.Helper()
	code, out, stderr := run(t, url, append([]string{"ls", "--json"}, args...)...)
	require.Equal(t, 0, code, stderr)
	var all []lockJSON
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	byName := make(map[string]lockJSON)
	for _, l := range all {
		byName[l.Name] = l
	}
	return byName
}

func TestLs_ListsLocksOfEveryKindAndNothingElse(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	rdb, ctx := s.Client(t), t.Context()
	locks, err := relock.New(rdb)
	require.NoError(t, err)
	defer locks.Close()
	require.NoError(t, locks.Mutex("plain", relock.WithFencing()).Lock(ctx))
	require.NoError(t, locks.FairMutex("fair").Lock(ctx))
	require.NoError(t, locks.FairMutex("fair").Lock(ctx))
	require.NoError(t, locks.MultiMutex([]string{"m1", "m2"}).Lock(ctx))
	require.NoError(t, locks.RWMutex("w{tag}").Lock(ctx))
	require.NoError(t, locks.RWMutex("r").RLock(ctx))
	require.NoError(t, locks.RWMutex("r", relock.WithOwner("other")).RLock(ctx))
	start(t, url, "run", "fair", "--", "true")
	start(t, url, "run", "--exclusive", "r", "--", "true")
	awaitWaiters(t, rdb, "fair", 1)
	put(t, rdb,
		"hset java "+someOwner+" 2", "pexpire java 30000",
		"hset java:rw mode write "+someOwner+":write 1 "+someOwner+" 1", "pexpire java:rw 30000",
		"set {java:rw}:"+someOwner+":rwlock_timeout:1 1 px 30000",
		"hset java:fair "+someOwner+" 1", "pexpire java:fair 30000", "rpush redisson_lock_queue:{java:fair} "+otherOwner,
		"rpush redisson_lock_queue:{java:next} "+otherOwner,
		"hset forever "+someOwner+" 1",
		"hset dead mode read "+someOwner+" 1",
		"hset user:1 name Ada", "hset user:2 a:b 3", "hset user:3 "+someOwner+" x", "set text 1", "zadd set 1 a", "hset mixed "+someOwner+" 1 x y",
		"hset a{b "+someOwner+" 1")
	all := listed(t, url)
	var names []string
	for name := range all {
		names = append(names, name)
	}
	require.ElementsMatch(t, []string{"plain", "fair", "m1", "m2", "w{tag}", "r", "java", "java:rw", "java:fair", "java:next", "forever"}, names)
	require.Equal(t, "mutex", all["plain"].Kind)
	require.NotZero(t, all["plain"].Token)
	require.Equal(t, 2, all["fair"].Holders[0].Count)
	require.Equal(t, 1, all["fair"].Waiting)
	require.Equal(t, "write", all["w{tag}"].Holders[0].Side)
	require.Len(t, all["r"].Holders, 2)
	require.Equal(t, "read", all["r"].Holders[0].Side)
	require.Equal(t, someOwner, all["java"].Holders[0].Owner)
	require.Equal(t, []string{"write", "read"}, []string{all["java:rw"].Holders[0].Side, all["java:rw"].Holders[1].Side})
	require.Equal(t, "redisson", all["java:fair"].Waiters[0].Queue)
	require.False(t, all["java:next"].Held)
	require.EqualValues(t, -1, all["forever"].TTLms)
	require.Len(t, listed(t, url, "java:*"), 3)
	require.Len(t, listed(t, url, "m[12]"), 2)
	require.NotContains(t, rdb.Info(ctx, "commandstats").Val(), "cmdstat_keys:")

	code, _, stderr := run(t, url, "state", "user:1")
	require.Equal(t, 64, code)
	require.Contains(t, stderr, "is not a lock: it is a hash of another program")
	code, _, stderr = run(t, url, "ls", "[z-a]")
	require.Equal(t, 64, code)
	require.Contains(t, stderr, `the pattern cannot be read, because of what is between its brackets: "[z-a]"`)
	code, _, _ = run(t, url, "state", "dead")
	require.Equal(t, 1, code)
	code, out, _ := run(t, url, "force", "java:rw")
	require.Equal(t, 0, code, out)
	require.Equal(t, 2, strings.Count(out, "\n"), "the writer and its own read")
}

func TestWatch_FollowsWithAndWithoutMessages(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	require.NoError(t, s.Client(t).Do(t.Context(), "acl", "setuser", "nochannels", "on", ">x", "~*", "+@all", "resetchannels").Err())
	for name, at := range map[string][]string{"a": {url, "1h"}, "b": {"redis://nochannels:x@" + s.Addr, "50ms"}} {
		t.Run(at[1], func(t *testing.T) {
			t.Parallel()
			w := start(t, at[0], "watch", "--json", "--interval", at[1], name)
			w.awaitOut(t, `"free"`)
			holder := start(t, url, "run", "--fair", name, "--", "sh", "-c", "echo ready; read x < "+fifo(t))
			holder.awaitOut(t, "ready")
			if at[1] != "1h" { // to acquire a free lock sends no message
				w.awaitOut(t, `"held"`)
			}
			waiter := start(t, url, "run", "--fair", name, "--", "sh", "-c", "read x < "+fifo(t))
			awaitWaiters(t, s.Client(t), name, 1)
			before := strings.Count(w.out.String(), `"held"`)
			holder.signal(t, sigTerm)
			awaitCount(t, w, `"held"`, before+1)
			waiter.signal(t, sigTerm)
			awaitCount(t, w, `"free"`, 2)
			for line := range strings.Lines(w.out.String()) {
				require.True(t, json.Valid([]byte(line)), line)
			}
		})
	}
}

func TestWatch_EndOfAMinHoldIsNoExpiry(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	w := start(t, url, "watch", "--json", "--interval", "50ms", "a")
	w.awaitOut(t, `"free"`)
	code, _, stderr := run(t, url, "run", "--min-hold", "1s", "a", "--", "true")
	require.Equal(t, 0, code, stderr)
	awaitCount(t, w, `"free"`, 2)
	require.Contains(t, w.out.String(), `"min hold"`)
	require.NotContains(t, w.out.String(), `"expired"`)
}
