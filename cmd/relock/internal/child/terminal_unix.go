//go:build unix

package child

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is that of this process, while it is in its foreground. nil: there is none to lend.
type terminal struct{ file *os.File }

// ownTerminal returns the terminal that file is, if this process may read from it.
func ownTerminal(file *os.File) *terminal {
	group, err := unix.IoctlGetInt(int(file.Fd()), unix.TIOCGPGRP)
	if err != nil || group != unix.Getpgrp() {
		return nil
	}
	return &terminal{file}
}

// lend has a child that is started with attr be in the foreground: it can read, and hears Ctrl-C by itself.
func (t *terminal) lend(attr *syscall.SysProcAttr) {
	if t == nil {
		return
	}
	attr.Foreground, attr.Ctty = true, int(t.file.Fd())
}

// takeBack puts this process into the foreground again.
func (t *terminal) takeBack() {
	if t == nil {
		return
	}
	signal.Ignore(unix.SIGTTOU) // from the background, as we are, to ask for it would stop us
	defer signal.Reset(unix.SIGTTOU)
	_ = unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, unix.Getpgrp())
}

// say prints to the terminal.
func (t *terminal) say(text string) { _, _ = os.Stderr.WriteString(text) }
