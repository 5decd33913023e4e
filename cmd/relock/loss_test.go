//go:build unix

package main_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// beating is a script that writes to a file all the time that it runs. It records when it gets SIGTERM, and
// goes on if it is stubborn.
func beating(file, terminated string, stubborn bool) string {
	then := "exit 9"
	if stubborn {
		then = ":"
	}
	return `trap 'date +%s%N > ` + terminated + `; ` + then + `' TERM; echo ready; ` + loop("date +%s%N >> "+file+"; sleep 0.02")
}

func TestLoss_SilentRedisEndsTheCommandBeforeTheLease(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stubborn bool
		flags    []string
	}{
		"obedient": {}, "stubborn": {stubborn: true}, "with a permit": {flags: []string{"--slots", "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, url := server(t)
			stubborn, run := c.stubborn, append([]string{"run"}, c.flags...)
			file, terminated, next := inDir(t, "beats"), inDir(t, "terminated"), inDir(t, "next")
			holder := start(t, url, append(run, "--ttl", "3s", "--kill-after", "1s", "a", "--", "sh", "-c", beating(file, terminated, stubborn))...)
			holder.awaitOut(t, "ready")
			waiter := start(t, url, append(run, "--ttl", "20s", "a", "--", "sh", "-c", "date +%s%N > "+next+"; echo next; exec sleep 60")...)
			awaitWaiters(t, s.Client(t), "a", 1)
			left := s.Client(t).PTTL(t.Context(), "a").Val()
			read := time.Now()
			require.NoError(t, s.Pause())
			// A renewal may have been under way, which makes the lease longer, not shorter.
			time.Sleep(time.Until(read.Add(left + 20*time.Millisecond)))
			require.NoError(t, s.Resume())
			waiter.awaitOut(t, "next")
			if stubborn {
				require.Equal(t, 137, holder.wait(t))
			} else {
				require.Equal(t, 124, holder.wait(t))
			}
			all := beats(t, file)
			last, begun := all[len(all)-1], beats(t, next)[0]
			require.True(t, last.Before(begun), "it ran until %v, and the next holder from %v", last, begun)
			term := beats(t, terminated)[0]
			require.Less(t, term.Sub(read), left-900*time.Millisecond, "SIGTERM came so long before the end of the lease")
			if stubborn {
				require.InDelta(t, time.Second, last.Sub(term), float64(150*time.Millisecond), "it had --kill-after")
			}
			waiter.signal(t, syscall.SIGTERM)
			waiter.wait(t)
		})
	}
}

func TestLoss_RedisThatReturnsInTimeDisturbsNoOne(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := start(t, url, "run", "--ttl", "4s", "--kill-after", "1s", "a", "--", "sh", "-c", "echo ready; sleep 4; echo done")
	p.awaitOut(t, "ready")
	require.NoError(t, s.Pause())
	time.Sleep(1500 * time.Millisecond)
	require.NoError(t, s.Resume())
	require.Equal(t, 0, p.wait(t))
	require.Contains(t, p.out.String(), "done")
	requireFree(t, s.Client(t), "a")
}

func TestLoss_KilledRedisEndsTheCommandBeforeTheLease(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := start(t, url, "run", "--ttl", "2s", "a", "--", "sh", "-c", "echo ready; exec sleep 60")
	p.awaitOut(t, "ready")
	began := time.Now()
	s.Kill()
	require.Equal(t, 124, p.wait(t))
	require.Less(t, time.Since(began), 6*time.Second)
}

func TestLoss_CommandThatEndsDuringAnOutageHasItsOwnCode(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := start(t, url, "run", "--ttl", "10s", "a", "--", "sh", "-c", "echo ready; sleep 0.5; exit 6")
	p.awaitOut(t, "ready")
	s.Kill()
	require.Equal(t, 6, p.wait(t))
	require.Contains(t, p.err.String(), "free when its lease ends")
}

func TestLoss_OfATakenLockEndsTheCommand(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	for _, stubborn := range []bool{false, true} {
		name := "a" + strconv.FormatBool(stubborn)
		p := start(t, url, "run", "--ttl", "1s", "--kill-after", "300ms", name, "--", "sh", "-c", beating(inDir(t, "beats"), inDir(t, "terminated"), stubborn))
		p.awaitOut(t, "ready")
		code, out, _ := run(t, url, "force", name)
		require.Equal(t, 0, code)
		require.Contains(t, out, name+": released, was held by ")
		want := 124
		if stubborn {
			want = 137
		}
		require.Equal(t, want, p.wait(t))
		code, _, _ = run(t, url, "force", name)
		require.Equal(t, 1, code)
	}
}

func TestLoss_FoundByTheReleaseIsReported(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := start(t, url, "run", "a", "--", "sh", "-c", "echo ready; read x < "+fifo(t)+"; exit 0")
	p.awaitOut(t, "ready")
	require.NoError(t, s.Client(t).Del(t.Context(), "a").Err())
	require.NoError(t, os.WriteFile(p.cmd.Args[len(p.cmd.Args)-1][len("echo ready; read x < "):len(p.cmd.Args[len(p.cmd.Args)-1])-len("; exit 0")], []byte("\n"), 0))
	require.Equal(t, 124, p.wait(t))
}

func fifo(t *testing.T) string {
	path := inDir(t, "fifo")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	return path
}

func TestLoss_MaxHoldEndsTheCommandAndItsChildren(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := start(t, url, "run", "--max-hold", "300ms", "--kill-after", "300ms", "a", "--", "sh", "-c",
		`sh -c 'trap "" TERM; echo $$; `+loop("sleep 0.05")+`' & exec sleep 60`)
	p.awaitOut(t, "\n")
	require.Equal(t, 137, p.wait(t), "a part of it had to be killed")
	pid, err := strconv.Atoi(strings.TrimSpace(p.out.String()))
	require.NoError(t, err)
	redistest.Eventually(t, "all of it is gone", func() bool { return !alive(pid) })
	requireFree(t, s.Client(t), "a")
	code, _, stderr := run(t, url, "run", "--max-hold", "200ms", "a", "--", "sleep", "60")
	require.Equal(t, 124, code)
	require.Contains(t, stderr, "--max-hold 200ms reached")
}

// The inner relock has its command in a process group of its own.
func TestLoss_EndsTheCommandOfARelockInside(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	registrationsRemain(t, s)
	for name, c := range map[string]struct {
		script string
		code   int
	}{
		"stubborn":              {`sh -c 'trap "" TERM; echo $$; exec >/dev/null 2>&1; ` + loop("sleep 0.05") + `' & wait`, 137},
		"stubborn, without one": {`sh -c 'trap "" TERM; echo $$; exec >/dev/null 2>&1; ` + loop("sleep 0.05") + `' & trap "exit 0" TERM; wait`, 137},
		"slow":                  {`sh -c 'trap "sleep 0.2; exit" TERM; echo $$; exec >/dev/null 2>&1; ` + loop("sleep 0.02") + `'; true`, 124},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock := "a " + name
			p := start(t, url, "run", "--ttl", "3s", "--kill-after", "1s", lock, "--", program, "run", "--ttl", "6s", "b "+name, "--", "sh", "-c", c.script)
			p.awaitOut(t, "\n")
			pid, err := strconv.Atoi(strings.TrimSpace(p.out.String()))
			require.NoError(t, err)
			code, _, _ := run(t, url, "force", lock)
			require.Equal(t, 0, code)
			require.Equal(t, c.code, p.wait(t))
			require.False(t, alive(pid), "it is gone when relock is")
			requireFree(t, s.Client(t), lock)
		})
	}
}

func TestLoss_StandardErrorThatNobodyReadsDelaysNothing(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	registrationsRemain(t, s)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	defer write.Close()
	require.NoError(t, write.SetWriteDeadline(time.Now().Add(200*time.Millisecond)))
	for err == nil {
		_, err = write.Write(make([]byte, 1<<12))
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "the pipe is full")
	file := inDir(t, "beats")
	cmd := command(t, url, "run", "--ttl", "3s", "--kill-after", "500ms", "a", "--", "sh", "-c", "echo ready; exec 2>/dev/null; "+loop("date +%s%N >> "+file+"; sleep 0.02"))
	p := &process{cmd: cmd, out: &output{}, err: &output{}, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.out, write
	require.NoError(t, cmd.Start())
	go func() {
		defer close(p.ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(p.stop)
	p.awaitOut(t, "ready")
	require.NoError(t, s.Pause())
	paused := time.Now()
	require.Equal(t, 124, p.wait(t))
	require.NoError(t, s.Resume())
	all := beats(t, file)
	require.Less(t, all[len(all)-1].Sub(paused), 3*time.Second, "its lease was over by then")
}

// registrationsRemain deletes what a relock has registered that could not remove it, because it or Redis was stopped.
func registrationsRemain(t *testing.T, s *redistest.Server) {
	rdb := s.Client(t)
	t.Cleanup(func() {
		ctx := context.Background() // the context of t is over
		rdb.Del(ctx, rdb.Keys(ctx, "relock_client:*").Val()...)
	})
}
