//go:build unix

package child

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is the controlling terminal of this process. nil: there is none.
//
// The command is in a process group of its own, so it is in the background, and stops when it reads. The terminal is
// lent to it when that happens, because the rest of this job, as the less of "relock run a -- cmd | less", may need it
// more. A command that has the terminal as its input and output gets it from the start: it may behave otherwise in
// the background.
type terminal struct {
	fd   int
	lent bool
}

func openTerminal() *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return &terminal{fd: fd}
}

// ours reports whether the group of this process is in the foreground.
func (t *terminal) ours() bool {
	if t == nil {
		return false
	}
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// lendFromStart has a child that is started with attr be in the foreground: it can read, and gets Ctrl-C by itself.
func (t *terminal) lendFromStart(attr *syscall.SysProcAttr) {
	if t.ours() && term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())) {
		attr.Foreground, attr.Ctty, t.lent = true, t.fd, true
	}
}

// lend puts group into the foreground, if that is ours.
func (t *terminal) lend(group int) bool {
	if !t.ours() || unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) != nil {
		return false
	}
	t.lent = true
	return true
}

// takeBack puts this process into the foreground again.
func (t *terminal) takeBack() {
	if t != nil && t.lent {
		_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, unix.Getpgrp())
	}
}
