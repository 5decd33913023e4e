//go:build unix

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/pagetest"
	"github.com/relock-go/relock/internal/redistest"
)

func TestRun_ExitCodeIsThatOfTheCommand(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	for code, script := range map[int]string{0: "true", 3: "exit 3", 255: "exit 255", 143: "kill -TERM $$", 137: "kill -KILL $$", 129: "kill -HUP $$"} {
		got, _, _ := run(t, url, "run", "a", "--", "sh", "-c", script)
		require.Equal(t, code, got, script)
	}
	requireFree(t, s.Client(t), "a")
}

func TestRun_UnrunnableCommandIsReportedAsByAShell(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	plain := inDir(t, "plain")
	require.NoError(t, os.WriteFile(plain, []byte("x"), 0o600))
	for path, code := range map[string]int{"no-such-command": 127, "/no/such/file": 127, plain: 126, "/": 126} {
		for _, flags := range [][]string{nil, {"--min-hold", "1m"}} {
			got, _, stderr := run(t, url, slices.Concat([]string{"run"}, flags, []string{"a", "--", path})...)
			require.Equal(t, code, got, path)
			require.Contains(t, stderr, path)
			requireFree(t, s.Client(t), "a")
		}
	}
}

func TestRun_TakenLockIs75OrTheChosenCode(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	start(t, url, "run", "a", "--", "sh", "-c", "echo held; sleep 60").awaitOut(t, "held")
	for _, kind := range [][]string{{"-n"}, {"-w", "0"}, {"-w", "100ms"}, {"--fair", "-n"}, {"--fair", "-w", "100ms"}} {
		args := append(append([]string{"run"}, kind...), "a", "--", "echo", "ran")
		code, out, _ := run(t, url, args...)
		require.Equal(t, 75, code, "%v", kind)
		require.Empty(t, out)
		code, _, _ = run(t, url, append([]string{args[0], "-E", "0"}, args[1:]...)...)
		require.Equal(t, 0, code, "%v", kind)
	}
}

func TestRun_WrongCallIs64(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"run", "a", "true"}, {"run", "--", "true"}, {"run", "a", "b", "--", "true"}, {"run", "a", "--"}, {"run", "--nonsense", "a", "--", "true"},
		{"run", "-w", "-1s", "a", "--", "true"}, {"run", "-w", "x", "a", "--", "true"}, {"run", "-n", "-w", "1s", "a", "--", "true"},
		{"run", "--ttl", "1ms", "a", "--", "true"}, {"run", "--ttl", "-5s", "a", "--", "true"}, {"run", "--kill-after", "20s", "a", "--", "true"}, {"run", "-E", "256", "a", "--", "true"},
		{"run", "--fair", "--shared", "a", "--", "true"}, {"run", "--max-hold", "0", "a", "--", "true"}, {"run", "--min-hold", "0s", "a", "--", "true"}, {"run", "--log", "xml", "a", "--", "true"},
		{"run", "a{b", "--", "true"}, {"run", "", "--", "true"}, {"run", "--redis", "http://x", "a", "--", "true"}, {"nonsense"},
		{"state"}, {"state", "a", "b"}, {"force"}, {"watch"}, {"ls", "a", "b"}, {"ls", "--dot", "--json"}, {"doctor", "x"}, {"man", "nonsense"}, {"man", "run", "ls"}, {"version", "x"},
	} {
		code, out, stderr := run(t, "redis://127.0.0.1:1", args...)
		require.Equal(t, 64, code, "%v: %s", args, stderr)
		require.Empty(t, out, "%v", args)
		require.Regexp(t, "^relock: .", stderr, "%v", args)
	}
}

func TestRun_CommandGetsTheNameAndARisingToken(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	last := int64(0)
	for _, kind := range []string{"", "--fair", "--exclusive"} {
		name := "n" + kind
		for range 2 {
			args := append(append([]string{"run"}, strings.Fields(kind)...), name, "--", "sh", "-c", "echo $RELOCK_NAME $RELOCK_TOKEN")
			_, out, _ := run(t, url, args...)
			fields := strings.Fields(out)
			require.Len(t, fields, 2, out)
			token, err := strconv.ParseInt(fields[1], 10, 64)
			require.NoError(t, err)
			require.Equal(t, name, fields[0])
			require.Greater(t, token, last)
			last = token
		}
	}
	_, out, _ := run(t, url, "run", "outer", "--", program, "run", "--shared", "inner", "--", "sh", "-c", "echo $RELOCK_NAME ${RELOCK_TOKEN-none}")
	require.Equal(t, "inner none\n", out)
}

func TestRun_ReadersShareAndAWriterIsAlone(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	reader := start(t, url, "run", "--shared", "a", "--", "sh", "-c", "echo reads; sleep 60")
	reader.awaitOut(t, "reads")
	code, _, _ := run(t, url, "run", "--shared", "-n", "a", "--", "true")
	require.Equal(t, 0, code)
	code, _, _ = run(t, url, "run", "--exclusive", "-n", "a", "--", "true")
	require.Equal(t, 75, code)
	code, _, stderr := run(t, url, "run", "-n", "a", "--", "true")
	require.Equal(t, 64, code, stderr)
	reader.signal(t, syscall.SIGTERM)
	require.Equal(t, 143, reader.wait(t))
	code, _, _ = run(t, url, "run", "--exclusive", "-n", "a", "--", "true")
	require.Equal(t, 0, code)
}

func TestRun_SignalsReachTheCommandsGroup(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH} {
		number := strconv.Itoa(int(sig))
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			name := "a" + number
			alsoTerm, wait := "", "wait; exit 5"
			if sig == syscall.SIGINT || sig == syscall.SIGQUIT {
				alsoTerm, wait = `trap "exit 5" TERM;`, ":"
			}
			inner := `trap "echo inner; exit" ` + number + `; echo ready; ` + loop("sleep 0.02")
			p := start(t, url, "run", name, "--", "sh", "-c", `sh -c '`+inner+`' & trap "echo outer; `+wait+`" `+number+`; `+alsoTerm+` echo steady; `+loop("sleep 0.02"))
			p.awaitOut(t, "ready")
			p.awaitOut(t, "steady")
			p.signal(t, sig)
			if sig == syscall.SIGINT || sig == syscall.SIGQUIT { // which a shell has its background ignore
				p.awaitOut(t, "outer")
				p.signal(t, syscall.SIGTERM)
				require.Equal(t, 5, p.wait(t))
				return
			}
			require.Equal(t, 5, p.wait(t))
			require.Contains(t, p.out.String(), "inner")
			require.Contains(t, p.out.String(), "outer")
			requireFree(t, s.Client(t), name)
		})
	}
}

func TestRun_StopEndsAWaitAndTheCommandIsNeverStarted(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	rdb := s.Client(t)
	holder := start(t, url, "run", "a", "--", "sh", "-c", "echo held; sleep 60")
	holder.awaitOut(t, "held")
	for _, kind := range []string{"", "--fair"} {
		for sig, code := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130, syscall.SIGHUP: 129, syscall.SIGUSR1: 138} {
			p := start(t, url, append(append([]string{"run"}, strings.Fields(kind)...), "a", "--", "echo", "ran")...)
			awaitWaiters(t, rdb, "a", 1)
			began := time.Now()
			p.signal(t, sig)
			require.Equal(t, code, p.wait(t))
			require.Less(t, time.Since(began), 3*time.Second)
			require.Empty(t, p.out.String())
			awaitWaiters(t, rdb, "a", 0)
		}
	}
	holder.signal(t, syscall.SIGTERM)
	require.Equal(t, 143, holder.wait(t))
	requireFree(t, rdb, "a")
}

func TestRun_StopDuringTheGrantIsNotLost(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	rdb := s.Client(t)
	for i := range 12 {
		holder := start(t, url, "run", "a", "--", "sh", "-c", "echo held; exec sleep 60")
		holder.awaitOut(t, "held")
		p := start(t, url, "run", "a", "--", "sh", "-c", "echo ran; exec sleep 60")
		awaitWaiters(t, rdb, "a", 1)
		go func() { _ = holder.cmd.Process.Signal(syscall.SIGTERM) }()
		time.Sleep(time.Duration(i) * 2 * time.Millisecond) // before the grant, and after it
		p.signal(t, syscall.SIGTERM)
		require.Equal(t, 143, p.wait(t))
		holder.wait(t)
		requireFree(t, rdb, "a")
	}
}

func TestRun_SIGKILLTakesTheCommandAlongAndTheNameIsFreeAfterTheTTL(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := start(t, url, "run", "--ttl", "2s", "a", "--", "sh", "-c", "echo $$; exec sleep 60")
	p.awaitOut(t, "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(p.out.String()))
	require.NoError(t, err)
	require.True(t, alive(pid))
	began := time.Now()
	p.signal(t, syscall.SIGKILL)
	p.wait(t)
	redistest.Eventually(t, "the command is gone", func() bool { return !alive(pid) })
	code, _, _ := run(t, url, "run", "a", "--", "true")
	require.Equal(t, 0, code)
	require.Less(t, time.Since(began), 5*time.Second)
	for _, key := range s.Client(t).Keys(t.Context(), "relock_client:*").Val() {
		require.Positive(t, s.Client(t).PTTL(t.Context(), key).Val(), "what it said of itself ends as well")
		s.Client(t).Del(t.Context(), key)
	}
}

func TestRun_NohupStaysInForce(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	p := start(t, url, "help") // for its environment only
	p.wait(t)
	p = &process{cmd: command(t, url), out: &output{}, err: &output{}, ended: make(chan struct{})}
	p.cmd.Path, p.cmd.Args = "/bin/sh", []string{"sh", "-c", `trap "" HUP; exec "$0" run a -- sh -c 'echo ready; read x < "$1"; echo done' sh "$1"`, program, inDir(t, "never")}
	require.NoError(t, syscall.Mkfifo(p.cmd.Args[4], 0o600))
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.err
	require.NoError(t, p.cmd.Start())
	go func() { defer close(p.ended); _ = p.cmd.Wait() }()
	t.Cleanup(p.stop)
	p.awaitOut(t, "ready")
	p.signal(t, syscall.SIGHUP)
	require.NoError(t, os.WriteFile(p.cmd.Args[4], []byte("go\n"), 0))
	require.Equal(t, 0, p.wait(t))
	require.Contains(t, p.out.String(), "done")
}

func TestRun_MinHoldKeepsOthersOutAfterAnEarlyEnd(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	began := time.Now()
	code, _, _ := run(t, url, "run", "--min-hold", "1500ms", "a", "--", "true")
	require.Equal(t, 0, code)
	code, _, _ = run(t, url, "run", "-n", "a", "--", "true")
	require.Equal(t, 75, code)
	_, out, _ := run(t, url, "ls")
	require.Contains(t, out, "mutex (min hold)")
	code, _, _ = run(t, url, "run", "a", "--", "true")
	require.Equal(t, 0, code)
	require.Greater(t, time.Since(began), 1500*time.Millisecond)
}

func TestRun_HostAndProcessOfAHolderAreShown(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := start(t, url, "run", "a", "--", "sh", "-c", "echo ready; exec sleep 60")
	p.awaitOut(t, "ready")
	host, err := os.Hostname()
	require.NoError(t, err)
	redistest.Eventually(t, "it is registered", func() bool {
		_, out, _ := run(t, url, "ls")
		return strings.Contains(out, host+" relock["+strconv.Itoa(p.cmd.Process.Pid)+"]")
	})
	p.signal(t, sigTerm)
	require.Equal(t, 143, p.wait(t))
	require.Equal(t, []string{"redisson_lock_token:{a}"}, s.Client(t).Keys(t.Context(), "*").Val())
}

// As systemctl stop: the shell ends at once, and the program that it runs in the foreground does not.
func TestRun_SignalThatAsksToEndIsFollowedByAWaitForAll(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	order := inDir(t, "order")
	holder := start(t, url, "run", "a", "--", "sh", "-c", `sh -c 'trap "sleep 0.5; echo stopped >>`+order+`; exit 0" TERM; echo ready; `+loop("sleep 0.02")+`'; true`)
	holder.awaitOut(t, "ready")
	next := start(t, url, "run", "a", "--", "sh", "-c", "echo started >>"+order)
	awaitWaiters(t, s.Client(t), "a", 1)
	holder.signal(t, sigTerm)
	require.Equal(t, 143, holder.wait(t))
	require.Equal(t, 0, next.wait(t))
	require.Equal(t, "stopped\nstarted\n", pagetest.Read(t, order))
}

// As Ctrl-\ on a terminal that was lent, or a kill by hand.
func TestRun_SignalThatEndsOnlyTheFirstProcessIsFollowedByAWaitForAll(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTERM} {
		order, fifo := inDir(t, "order"), fifo(t)
		holder := start(t, url, "run", "a", "--", "sh", "-c", `ulimit -c 0; echo $$; sh -c 'echo ready; read x < `+fifo+`; sleep 0.5; echo stopped >>`+order+`'; true`)
		holder.awaitOut(t, "ready")
		next := start(t, url, "run", "a", "--", "sh", "-c", "echo started >>"+order)
		awaitWaiters(t, s.Client(t), "a", 1)
		pid, err := strconv.Atoi(strings.Fields(holder.out.String())[0])
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, sig))
		redistest.Eventually(t, "the first process has ended", func() bool { return !alive(pid) })
		require.NoError(t, os.WriteFile(fifo, []byte("\n"), 0))
		require.Equal(t, 128+int(sig), holder.wait(t))
		require.Equal(t, 0, next.wait(t))
		require.Equal(t, "stopped\nstarted\n", pagetest.Read(t, order), sig)
	}
}

func TestRun_CommandThatCannotBeKilledIsNotSaidToBe(t *testing.T) {
	t.Parallel()
	setpriv, err := exec.LookPath("setpriv")
	if err != nil || os.Getuid() != 0 {
		t.Skip("needs root and setpriv, for a command that becomes another user, as sudo does")
	}
	_, url := server(t)
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755)) // others may not read it
	for from, mode := range map[string]os.FileMode{program: 0o755, setpriv: 0o755 | os.ModeSetuid} {
		text, err := os.ReadFile(from)
		require.NoError(t, err)
		to := filepath.Join(dir, filepath.Base(from))
		require.NoError(t, os.WriteFile(to, text, 0o600))
		require.NoError(t, os.Chmod(to, mode))
	}
	cmd := command(t, url, "run", "--max-hold", "1s", "--kill-after", "100ms", "a", "--", filepath.Join(dir, "setpriv"), "--reuid", "0", "sleep", "2.5")
	cmd.Path = filepath.Join(dir, filepath.Base(program))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	p := startCommand(t, cmd)
	require.Equal(t, 124, p.wait(t), "it has ended by itself")
	require.Contains(t, p.err.String(), "not permitted to signal the command")
	require.NotContains(t, p.err.String(), "is killed")
}

func TestRun_WaitAfterASignalEndsWithKillAfter(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	fifo := fifo(t)
	p := start(t, url, "run", "--kill-after", "200ms", "a", "--", "sh", "-c", `sh -c 'trap "" TERM; echo ready; read x < `+fifo+`'; true`)
	p.awaitOut(t, "ready")
	p.signal(t, sigTerm)
	redistest.Eventually(t, "it no longer waits", func() bool { return strings.Contains(p.err.String(), "some of its processes have not") })
	requireFree(t, s.Client(t), "a")
	require.NoError(t, os.WriteFile(fifo, []byte("\n"), 0))
	require.Equal(t, 143, p.wait(t))
}

func TestRun_IsNotSuspendedWhileItWaits(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	start(t, url, "run", "a", "--", "sh", "-c", "echo ready; exec sleep 60").awaitOut(t, "ready")
	p := start(t, url, "run", "a", "--", "true")
	awaitWaiters(t, s.Client(t), "a", 1)
	p.signal(t, syscall.SIGTSTP)
	redistest.Eventually(t, "it says why not", func() bool { return strings.Contains(p.err.String(), "cannot be suspended") })
	p.signal(t, sigTerm)
	require.Equal(t, 143, p.wait(t))
}
