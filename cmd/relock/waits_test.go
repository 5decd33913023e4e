//go:build unix

package main_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// Two goroutines of two clients lock two names in opposite orders. The deadlock is only reported, so that it stays.
func TestLs_ShowsWhoWaitsForWhomAndDeadlocks(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	ctx, cancel := context.WithCancel(t.Context())
	found, ended := make(chan struct{}, 2), make(chan error, 2)
	holds := make(chan struct{}, 2)
	for _, names := range [][]string{{"a", "b"}, {"b", "a"}} {
		locks, err := relock.New(s.Client(t), relock.WithDeadlockCheck(100*time.Millisecond), relock.WithDeadlockReport(),
			relock.WithHooks(relock.Hooks{Deadlock: func(relock.Event) { found <- struct{}{} }}))
		require.NoError(t, err)
		defer locks.Close()
		go func() {
			err := locks.Mutex(names[0]).Lock(ctx)
			holds <- struct{}{}
			if err == nil {
				for len(holds) < 2 {
					time.Sleep(time.Millisecond)
				}
				_ = locks.Mutex(names[1]).Lock(ctx)
				err = locks.Mutex(names[0]).Unlock()
			}
			ended <- err
		}()
	}
	<-found
	code, out, stderr := run(t, url, "ls", "--waits")
	require.Equal(t, 0, code, stderr)
	require.Regexp(t, `(?m)^OWNER +HOLDS +WAITS FOR +HELD BY +FOR +WHERE$`, out)
	require.Regexp(t, `(?m)^[0-9a-f]{8}:\d+ +a +b +[0-9a-f]{8}:\d+ +`, out)
	require.Regexp(t, `(?m)^deadlock: goroutine \d+ on .* waits for "b", held by goroutine \d+ on .*, who waits for "a", held by goroutine \d+`, out)
	code, out, stderr = run(t, url, "ls", "--dot")
	require.Equal(t, 0, code, stderr)
	require.Regexp(t, `(?s)^digraph waits \{\n  "[0-9a-f]{8}:\d+" -> "[0-9a-f]{8}:\d+" \[label="b"\];\n.*\[label="a"\];\n  // deadlock: .*\n\}\n$`, out)
	_, out, _ = run(t, url, "doctor")
	require.Regexp(t, `(?m)^warning +deadlocks +goroutine \d+ on .* waits for "b"`, out)
	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
	_, out, _ = run(t, url, "doctor")
	require.Regexp(t, `(?m)^ok +deadlocks +none`, out)
	_, out, _ = run(t, url, "ls", "--waits", "nothing*")
	require.NotContains(t, out, "deadlock")
}

// On a quorum no process publishes what it waits for, so no node has to answer for that.
func TestLs_WaitsOfAQuorumDependOnNoSingleNode(t *testing.T) {
	t.Parallel()
	var urls []string
	var nodes []*redistest.Server
	for range 3 {
		s, url := server(t)
		nodes, urls = append(nodes, s), append(urls, url)
	}
	nodes[0].Kill()
	for _, s := range nodes[1:] {
		put(t, s.Client(t), "hset a "+someOwner+" 1")
	}
	url := strings.Join(urls, " ")
	code, out, stderr := run(t, url, "ls", "--waits")
	require.Equal(t, 0, code, stderr)
	require.Regexp(t, `^OWNER +HOLDS +WAITS FOR +HELD BY +FOR +WHERE\n$`, out)
	code, out, stderr = run(t, url, "ls", "--dot")
	require.Equal(t, 0, code, stderr)
	require.Equal(t, "digraph waits {\n}\n", out)
	require.True(t, listed(t, url, "--waits")["a"].Held)
}
