//go:build unix

package main_test

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
)

// onTerminal starts the program on a terminal of its own.
func onTerminal(t *testing.T, env []string, args ...string) (*process, *os.File) {
	t.Helper()
	cmd := command(t, "", args...)
	cmd.Env = append(cmd.Env, env...)
	return commandOnTerminal(t, cmd)
}

func commandOnTerminal(t *testing.T, cmd *exec.Cmd) (*process, *os.File) {
	t.Helper()
	p := &process{cmd: cmd, out: &output{}, err: &output{}, ended: make(chan struct{})}
	tty, err := pty.StartWithSize(p.cmd, &pty.Winsize{Rows: 24, Cols: 100})
	require.NoError(t, err)
	go func() {
		defer close(p.ended)
		_, _ = io.Copy(p.out, tty) // all that is printed, until no process has the terminal any more
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		if t.Failed() { // one that is stopped would keep the terminal open, and so p from its end
			for _, pid := range processesOf(thisRun, t.Name()) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		p.stop()
		_ = tty.Close()
		if t.Failed() {
			t.Logf("%q", p.out.String())
		}
	})
	return p, tty
}

func TestTerminal_WaitIsShownThereAndNotOnAPipe(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	start(t, url, "run", "a", "--", "sh", "-c", "echo ready; exec sleep 60").awaitOut(t, "ready")
	quiet := start(t, url, "run", "a", "--", "true")
	awaitWaiters(t, s.Client(t), "a", 1)
	p, _ := onTerminal(t, nil, "run", "--redis", url, "a", "--", "true")
	p.awaitOut(t, "held by ")
	p.awaitOut(t, "place 2 of 2 in line")
	p.signal(t, sigTerm)
	require.Equal(t, 143, p.wait(t))
	require.Contains(t, p.out.String(), "\r\x1b[K")
	require.Empty(t, quiet.err.String())
}

func TestTerminal_ColoursAreForThoseThatWantThem(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	start(t, url, "run", "a", "--", "sh", "-c", "echo ready; exec sleep 60").awaitOut(t, "ready")
	for _, args := range [][]string{{"ls"}, {"state", "a"}, {"doctor"}} {
		args = append(args, "--redis", url)
		p, _ := onTerminal(t, nil, args...)
		p.wait(t)
		p.awaitOut(t, "\x1b[1m")
		p, _ = onTerminal(t, []string{"NO_COLOR=1"}, args...)
		p.wait(t)
		p.awaitOut(t, "\n")
		require.NotContains(t, p.out.String(), "\x1b")
		_, out, _ := run(t, url, args...)
		require.NotContains(t, out, "\x1b")
	}
	w, _ := onTerminal(t, nil, "watch", "--redis", url, "a")
	w.awaitOut(t, "\x1b[32m")
}

func TestTerminal_BelongsToTheCommand(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	// The shell waits: one that starts programs may be in the middle of that, and then does not stop itself.
	p, tty := onTerminal(t, nil, "run", "--redis", url, "a", "--", "sh", "-c",
		`echo ask; read x; echo "got $x"; sleep 60 & trap "kill $!; echo stopped; exit 4" INT; echo trapped; wait`)
	p.awaitOut(t, "ask")
	_, err := tty.WriteString("word\n")
	require.NoError(t, err)
	p.awaitOut(t, "got word")
	p.awaitOut(t, "trapped")
	_, err = tty.WriteString("\x1a") // Ctrl-Z
	require.NoError(t, err)
	p.awaitOut(t, "cannot be suspended")
	_, err = tty.WriteString("\x03") // Ctrl-C
	require.NoError(t, err)
	require.Equal(t, 4, p.wait(t))
	p.awaitOut(t, "stopped")
	requireFree(t, s.Client(t), "a")
}

func TestLogs_AreLinesOrJSON(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	_, _, stderr := run(t, url, "run", "-v", "a", "--", "true")
	require.Contains(t, stderr, "relock: lock acquired name=a")
	_, _, stderr = run(t, url, "run", "-v", "--log", "json", "a", "--", "/no/such")
	require.Contains(t, stderr, `"msg":"lock acquired","name":"a"`)
	for line := range strings.Lines(stderr) {
		require.True(t, strings.HasPrefix(line, "{"), line)
	}
	_, _, stderr = run(t, url, "run", "a", "--", "true")
	require.Empty(t, stderr)
}

func TestVersion_NamesVersionCommitAndDate(t *testing.T) {
	t.Parallel()
	code, out, _ := run(t, "redis://127.0.0.1:1", "version")
	require.Equal(t, 0, code)
	require.Regexp(t, `^version +\S+\ncommit +\S+(, modified)?\ndate +\S+\nbuilt +with go1\S* for \S+/\S+\n$`, out)
}

func TestManual_HasTheTextOfTheHelp(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"run", "ls", "state", "force", "watch", "doctor", "version"} {
		code, page, _ := run(t, "", "man", verb)
		require.Equal(t, 0, code)
		_, help, _ := run(t, "", verb, "--help")
		for _, word := range strings.Fields(help) {
			if strings.HasPrefix(word, "--") && len(word) > 3 && strings.Trim(word, "-abcdefghijklmnopqrstuvwxyz") == "" {
				require.Contains(t, strings.ReplaceAll(page, `\-`, "-"), strings.TrimLeft(word, "-"), verb)
			}
		}
		require.Contains(t, page, ".TH")
	}
	code, _, _ := run(t, "", "man", "--dir", t.TempDir())
	require.Equal(t, 0, code)
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		code, script, _ := run(t, "", "completion", shell)
		require.Equal(t, 0, code)
		require.Contains(t, script, "relock")
	}
	_, url := server(t)
	start(t, url, "run", "deploy", "--", "sh", "-c", "echo ready; exec sleep 60").awaitOut(t, "ready")
	_, names, _ := run(t, url, "__complete", "state", "dep")
	require.Contains(t, names, "deploy\n")
}
