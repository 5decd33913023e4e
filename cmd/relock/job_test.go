//go:build unix

package main_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// shellOnTerminal runs a script on a terminal of its own. In it $0 is relock.
func shellOnTerminal(t *testing.T, url, shell, script string) (*process, *os.File) {
	t.Helper()
	path, err := exec.LookPath(shell)
	if err != nil {
		t.Skip(err)
	}
	cmd := command(t, url, "-c", script, program)
	cmd.Path, cmd.Args[0] = path, shell
	return commandOnTerminal(t, cmd)
}

func write(t *testing.T, tty *os.File, text string) {
	t.Helper()
	_, err := tty.WriteString(text)
	require.NoError(t, err)
}

// bash does not notify a running job of its new place, dash sends SIGCONT.
func TestJob_InTheBackgroundReadsWhenItIsBroughtToTheForeground(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"sh", "bash", "dash"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			_, url := server(t)
			p, tty := shellOnTerminal(t, url, shell, `set -m; "$0" run a -- sh -c 'read x; echo "got $x"' & echo begun; read x; fg; echo "code $?"`)
			p.awaitOut(t, "needs the terminal")
			write(t, tty, "go\n")
			write(t, tty, "word\n")
			p.awaitOut(t, "got word")
			p.awaitOut(t, "code 0")
		})
	}
}

func TestJob_ReadsTheTerminalThoughItsInputIsAnother(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	p, tty := shellOnTerminal(t, url, "sh", `"$0" run a -- sh -c 'echo ask; read x < /dev/tty; echo "got $x"' < /dev/null; read y; echo "then $y"`)
	p.awaitOut(t, "ask")
	write(t, tty, "word\n")
	p.awaitOut(t, "got word")
	write(t, tty, "more\n")
	p.awaitOut(t, "then more")
}

func TestJob_APagerBehindItHasTheTerminal(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	fifo := fifo(t)
	p, tty := shellOnTerminal(t, url, "sh", `"$0" run a -- sh -c 'echo data; read x < `+fifo+`' | sh -c 'read x; echo pages; read y < /dev/tty; echo "$x and $y"'`)
	p.awaitOut(t, "pages")
	write(t, tty, "word\n")
	p.awaitOut(t, "data and word")
	require.NoError(t, os.WriteFile(fifo, []byte("\n"), 0))
	require.Equal(t, 0, p.wait(t))
}

func TestJob_CannotBeSuspendedWhileItHolds(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	for _, own := range []bool{false, true} {
		fifo := fifo(t)
		suspend := ""
		if own {
			suspend = "kill -TSTP $$; "
		}
		p := start(t, url, "run", "a", "--", "sh", "-c", suspend+"echo ready; read x < "+fifo+"; exit 3")
		if !own {
			p.awaitOut(t, "ready")
			p.signal(t, syscall.SIGTSTP)
		}
		redistest.Eventually(t, "it says why not", func() bool { return strings.Contains(p.err.String(), "cannot be suspended") })
		require.NoError(t, os.WriteFile(fifo, []byte("\n"), 0))
		require.Equal(t, 3, p.wait(t))
		requireFree(t, s.Client(t), "a")
	}
}

// nano does so when it reads Ctrl-Z.
func TestJob_CannotSuspendItselfWhileItHasTheTerminal(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	p, _ := shellOnTerminal(t, url, "sh", `exec "$0" run a -- sh -c 'kill -STOP 0; echo on'`)
	p.awaitOut(t, "cannot be suspended")
	p.awaitOut(t, "on\r\n")
	require.Equal(t, 0, p.wait(t))
}

// bash goes on unless what it has waited for dies of the SIGINT.
func TestJob_InterruptEndsTheScriptAroundIt(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"the command alone gets it":    `"$0" run a -- sh -c 'echo ready; exec sleep 60'`,
		"the terminal is not lent":     `"$0" run a -- sh -c 'echo ready > /dev/tty; exec sleep 60' > /dev/null`,
		"relock waits":                 `"$0" run taken -- true`,
		"the command ends as it likes": `"$0" run a -- sh -c 'trap "exit 3" INT; echo ready > /dev/tty; while :; do sleep 0.02; done' > /dev/null`,
	} {
		for _, shell := range []string{"sh", "bash", "dash"} {
			t.Run(name+"/"+shell, func(t *testing.T) {
				t.Parallel()
				s, url := server(t)
				waits := strings.Contains(script, "taken")
				if waits {
					start(t, url, "run", "taken", "--", "sh", "-c", "echo held; exec sleep 60").awaitOut(t, "held")
				}
				p, tty := shellOnTerminal(t, url, shell, script+`; echo after; true`)
				if waits {
					awaitWaiters(t, s.Client(t), "taken", 1)
				} else {
					p.awaitOut(t, "ready")
				}
				write(t, tty, "\x03")
				code := p.wait(t)
				requireFree(t, s.Client(t), "a")
				if strings.Contains(script, "trap") && shell == "bash" {
					require.Equal(t, 0, code)
					require.Contains(t, p.out.String(), "after", "as after any program that has handled the SIGINT")
					return
				}
				require.Equal(t, 130, code)
				require.NotContains(t, p.out.String(), "after")
			})
		}
	}
}
