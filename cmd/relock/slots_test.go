//go:build unix

package main_test

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// permits returns the IDs of the permits of name that are in use.
func permits(t *testing.T, rdb redis.UniversalClient, name string) (ids []string) {
	t.Helper()
	locks, err := relock.New(rdb)
	require.NoError(t, err)
	defer locks.Close()
	state, err := locks.Semaphore(name, 1).State(t.Context())
	require.NoError(t, err)
	for _, p := range state.Permits {
		ids = append(ids, p.ID)
	}
	return ids
}

const readyAndWait = "echo ready; exec sleep 60"

func TestSlots_SoManyCommandsRunAtATime(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	rdb := s.Client(t)
	slots := func(more ...string) []string { return append([]string{"run", "--slots", "2"}, more...) }
	var holders []*process
	for range 2 {
		p := start(t, url, slots("a", "--", "sh", "-c", readyAndWait)...)
		p.awaitOut(t, "ready")
		holders = append(holders, p)
	}
	for _, kind := range [][]string{{"-n"}, {"-w", "0"}, {"-w", "100ms"}} {
		code, out, stderr := run(t, url, slots(append(kind, "a", "--", "echo", "ran")...)...)
		require.Equal(t, 75, code, "%v: %s", kind, stderr)
		require.Empty(t, out)
		code, _, _ = run(t, url, slots(append(append([]string{"-E", "0"}, kind...), "a", "--", "true")...)...)
		require.Equal(t, 0, code, "%v", kind)
	}
	code, out, _ := run(t, url, "run", "-n", "--slots", "3", "a", "--", "sh", "-c", `echo "$RELOCK_NAME ${RELOCK_TOKEN-none}"; exit 5`)
	require.Equal(t, 5, code, "another limit")
	require.Equal(t, "a none\n", out)

	waiter := start(t, url, slots("a", "--", "sh", "-c", "echo ran; exit 3")...)
	awaitWaiters(t, rdb, "a", 1)
	require.Empty(t, waiter.out.String())
	holders[0].signal(t, sigTerm)
	require.Equal(t, 143, holders[0].wait(t))
	require.Equal(t, 3, waiter.wait(t))
	require.Equal(t, "ran\n", waiter.out.String())
	require.Len(t, permits(t, rdb, "a"), 1)
}

func TestSlots_WrongCallIs64BeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	const quorum = "redis://127.0.0.1:1 redis://127.0.0.1:2 redis://127.0.0.1:3"
	for _, c := range []struct{ url, flags, says string }{
		{"redis://127.0.0.1:1", "--slots 0", "--slots 0: must be at least 1"},
		{"redis://127.0.0.1:1", "--slots -3", "--slots -3: must be at least 1"},
		{"redis://127.0.0.1:1", "--slots 10001", "a semaphore with the limit 10001: it must be from 1 to 10000"},
		{"redis://127.0.0.1:1", "--slots many", "invalid syntax"},
		{"redis://127.0.0.1:1", "--slots 2 --fair", "contradicts --fair"},
		{"redis://127.0.0.1:1", "--slots 2 --shared", "contradicts --shared"},
		{"redis://127.0.0.1:1", "--slots 2 --exclusive", "contradicts --shared and --exclusive"},
		{quorum, "--slots 2", "a quorum supports only"},
	} {
		code, out, stderr := run(t, c.url, slices.Concat([]string{"run"}, strings.Fields(c.flags), []string{"a", "--", "echo", "ran"})...)
		require.Equal(t, 64, code, "%s: %s", c.flags, stderr)
		require.Contains(t, stderr, c.says, c.flags)
		require.Empty(t, out)
	}
}

func TestSlots_NameIsALockOrASemaphore(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	start(t, url, "run", "lock", "--", "sh", "-c", readyAndWait).awaitOut(t, "ready")
	start(t, url, "run", "--slots", "2", "slots", "--", "sh", "-c", readyAndWait).awaitOut(t, "ready")
	for _, args := range [][]string{{"--slots", "2", "lock"}, {"slots"}, {"--fair", "slots"}, {"--shared", "slots"}} {
		code, out, stderr := run(t, url, slices.Concat([]string{"run"}, args, []string{"--", "echo", "ran"})...)
		require.Equal(t, 64, code, "%v: %s", args, stderr)
		require.Contains(t, stderr, "use another name")
		require.Empty(t, out)
	}
	code, _, stderr := run(t, url, "force", "lock", "--permit", someOwner+":1")
	require.Equal(t, 64, code)
	require.Contains(t, stderr, "is not a semaphore")
	code, _, stderr = run(t, url, "force", "slots")
	require.Equal(t, 64, code)
	require.Contains(t, stderr, "--permit ID")
}

func TestSlots_StopEndsAWaitAndTheCommandIsNeverStarted(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	start(t, url, "run", "--slots", "1", "a", "--", "sh", "-c", readyAndWait).awaitOut(t, "ready")
	for sig, code := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130} {
		p := start(t, url, "run", "--slots", "1", "a", "--", "echo", "ran")
		awaitWaiters(t, s.Client(t), "a", 1)
		p.signal(t, sig)
		require.Equal(t, code, p.wait(t))
		require.Contains(t, p.err.String(), "while waiting for the permit: the command was not started")
		require.Empty(t, p.out.String())
		awaitWaiters(t, s.Client(t), "a", 0)
	}
}

func TestSlots_ForcedPermitEndsItsCommandAlone(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	rdb := s.Client(t)
	for _, stubborn := range []bool{false, true} {
		name := "a" + strconv.FormatBool(stubborn)
		args := []string{"run", "--slots", "2", "--ttl", "1s", "--kill-after", "300ms", name, "--", "sh", "-c"}
		p := start(t, url, append(args, beating(inDir(t, "beats"), inDir(t, "terminated"), stubborn))...)
		p.awaitOut(t, "ready")
		id := permits(t, rdb, name)[0]
		other := start(t, url, append(args, readyAndWait)...)
		other.awaitOut(t, "ready")
		waiter := start(t, url, append(args, "echo ran")...)
		awaitWaiters(t, rdb, name, 1)

		code, out, stderr := run(t, url, "force", name, "--permit", id)
		require.Equal(t, 0, code, stderr)
		require.Contains(t, out, name+": released, was held by "+id[:8])
		require.Equal(t, 1, strings.Count(out, "\n"), "that permit alone")
		require.Equal(t, 0, waiter.wait(t), "it got the share")
		want := 124
		if stubborn {
			want = 137
		}
		require.Equal(t, want, p.wait(t))
		require.Len(t, permits(t, rdb, name), 1)
		code, out, _ = run(t, url, "force", name, "--permit", id)
		require.Equal(t, 1, code)
		require.Contains(t, out, "no such permit is in use")
		other.signal(t, sigTerm)
		require.Equal(t, 143, other.wait(t))
	}
	code, _, _ := run(t, url, "force", "free", "--permit", someOwner+":1")
	require.Equal(t, 1, code)
}

func TestSlots_LossFoundByTheReleaseIsReported(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	fifo := fifo(t)
	p := start(t, url, "run", "--slots", "2", "a", "--", "sh", "-c", "echo ready; read x < "+fifo)
	p.awaitOut(t, "ready")
	require.NoError(t, s.Client(t).Del(t.Context(), "a").Err())
	require.NoError(t, os.WriteFile(fifo, []byte("\n"), 0))
	require.Equal(t, 124, p.wait(t))
}

// The share of a relock that is killed comes back after its TTL, and its command is gone by then.
func TestSlots_SIGKILLTakesTheCommandAlong(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := start(t, url, "run", "--slots", "1", "--ttl", "2s", "a", "--", "sh", "-c", "echo $$; exec sleep 60")
	p.awaitOut(t, "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(p.out.String()))
	require.NoError(t, err)
	waiter := start(t, url, "run", "--slots", "1", "a", "--", "true")
	awaitWaiters(t, s.Client(t), "a", 1)
	began := time.Now()
	p.signal(t, syscall.SIGKILL)
	p.wait(t)
	redistest.Eventually(t, "the command is gone", func() bool { return !alive(pid) })
	require.Equal(t, 0, waiter.wait(t))
	require.Less(t, time.Since(began), 5*time.Second)
	s.Client(t).Del(t.Context(), s.Client(t).Keys(t.Context(), "relock_client:*").Val()...)
}

func TestSlots_MinHoldAndMaxHoldAreThoseOfALock(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	began := time.Now()
	code, _, _ := run(t, url, "run", "--slots", "1", "--min-hold", "1500ms", "a", "--", "true")
	require.Equal(t, 0, code)
	code, _, _ = run(t, url, "run", "--slots", "1", "-n", "a", "--", "true")
	require.Equal(t, 75, code)
	_, out, _ := run(t, url, "ls")
	require.Contains(t, out, "semaphore (min hold)")
	code, _, _ = run(t, url, "run", "--slots", "1", "a", "--", "true")
	require.Equal(t, 0, code)
	require.Greater(t, time.Since(began), 1500*time.Millisecond)

	code, _, stderr := run(t, url, "run", "--slots", "1", "--max-hold", "200ms", "a", "--", "sleep", "60")
	require.Equal(t, 124, code)
	require.Contains(t, stderr, "--max-hold 200ms reached")
}

func TestSlots_LsAndStateShowEachPermit(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	rdb := s.Client(t)
	locks, err := relock.New(rdb)
	require.NoError(t, err)
	defer locks.Close()
	for _, name := range []string{"llm", "w{tag}"} {
		_, err := locks.Semaphore(name, 20).AcquireN(t.Context(), 3)
		require.NoError(t, err)
	}
	holder := start(t, url, "run", "--slots", "4", "llm", "--", "sh", "-c", readyAndWait)
	holder.awaitOut(t, "ready")
	start(t, url, "run", "--slots", "4", "llm", "--", "true")
	start(t, url, "run", "--slots", "3", "w{tag}", "--", "true")
	awaitWaiters(t, rdb, "llm", 1)
	put(t, rdb, "zadd users 1 ada", "zadd mixed 1 "+someOwner+":1 2 x", "zadd inside 1 "+someOwner+":1 9e15 y 9.1e15 "+someOwner+":2",
		"zadd over 1 "+someOwner+":1", "zadd kept 9e15 "+someOwner+".kept:2 9e15 "+someOwner+".kept:2:2")

	// The permits of a process that died are over, and another process waits still.
	waits := otherOwner + ":2"
	put(t, rdb, "zadd relock_line_permits:{next} 1 "+waits)
	require.NoError(t, rdb.HSet(t.Context(), "relock_line_permit_entries:{next}", waits, "9000000000000000 5000 4 1 0 channel").Err())
	t.Cleanup(func() { rdb.Del(context.Background(), "relock_line_permit_entries:{next}") })

	all := listed(t, url)
	var names []string
	for name := range all {
		names = append(names, name)
	}
	require.ElementsMatch(t, []string{"llm", "w{tag}", "kept", "next"}, names, "and no sorted set of another program")
	llm := all["llm"]
	require.Equal(t, "semaphore", llm.Kind)
	require.True(t, llm.Held)
	require.Equal(t, 4, llm.InUse)
	require.Equal(t, 1, llm.Waiting)
	require.Equal(t, "line", llm.Waiters[0].Queue)
	require.Len(t, llm.Holders, 2)
	require.ElementsMatch(t, []int{1, 3}, []int{llm.Holders[0].Weight, llm.Holders[1].Weight})
	require.ElementsMatch(t, permits(t, rdb, "llm"), []string{llm.Holders[0].Owner, llm.Holders[1].Owner})
	require.InDelta(t, 30_000, llm.TTLms, 15_000)
	require.Equal(t, 3, all["w{tag}"].InUse)
	require.Len(t, all["kept"].Holders, 1)
	require.True(t, all["kept"].Holders[0].MinHold)
	require.Equal(t, "semaphore", all["next"].Kind)
	require.False(t, all["next"].Held)
	require.Equal(t, 1, all["next"].Waiting)
	require.Len(t, listed(t, url, "ll*"), 1)

	host, err := os.Hostname()
	require.NoError(t, err)
	process := host + " relock[" + strconv.Itoa(holder.cmd.Process.Pid) + "]"
	redistest.Eventually(t, "it is registered", func() bool {
		_, out, _ := run(t, url, "ls")
		return strings.Contains(out, process)
	})
	code, out, stderr := run(t, url, "state", "llm")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, out, "4 in use (semaphore)")
	require.Contains(t, out, "1 in line\n", "listeners are not those for permits")
	require.Contains(t, out, process)
	for _, id := range permits(t, rdb, "llm") {
		require.Contains(t, out, id)
	}
	for name, is := range map[string]string{"users": "a sorted set", "mixed": "a sorted set", "inside": "a sorted set"} {
		code, _, stderr := run(t, url, "state", name)
		require.Equal(t, 64, code, name)
		require.Contains(t, stderr, "is not a lock: it is "+is)
	}
	code, _, _ = run(t, url, "state", "over")
	require.Equal(t, 1, code, "its leases are over")
}

func TestSlots_WatchFollowsEachPermit(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	w := start(t, url, "watch", "--interval", "50ms", "a")
	w.awaitOut(t, "free")
	var holders []*process
	for n := range 2 {
		p := start(t, url, "run", "--slots", "2", "a", "--", "sh", "-c", readyAndWait)
		p.awaitOut(t, "ready")
		awaitCount(t, w, "held ", n+1)
		holders = append(holders, p)
	}
	waiter := start(t, url, "run", "--slots", "2", "a", "--", "sh", "-c", readyAndWait)
	awaitWaiters(t, s.Client(t), "a", 1)
	w.awaitOut(t, "waits ")
	holders[0].signal(t, sigTerm)
	awaitCount(t, w, "held ", 3)
	awaitCount(t, w, "ended ", 1)
	waiter.awaitOut(t, "ready")
	for _, p := range []*process{holders[1], waiter} {
		p.signal(t, sigTerm)
		require.Equal(t, 143, p.wait(t))
	}
	awaitCount(t, w, "free", 2)
	require.NotContains(t, w.out.String(), "left ", "the waiter got a permit")
}
