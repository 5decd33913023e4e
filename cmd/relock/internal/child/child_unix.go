//go:build unix

package child

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Child is a command that was started. Its methods are safe for concurrent use.
type Child struct {
	pid      int // and number of the group
	terminal *terminal
	wants    bool // the terminal; of wait
	warn     func(string)
	ended    chan struct{}
	status   unix.WaitStatus // after ended
}

// Start starts a command with the standard input and outputs of this process. When the command needs the terminal, it
// gets the terminal until it ends. say reports why the command is not suspended, or stays stopped.
func Start(argv, env []string, warn func(string)) (*Child, error) {
	c := &Child{terminal: openTerminal(), warn: warn, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel takes the end of the thread that started a child for the end of its parent.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.start(argv, env)
		started <- err
		if err == nil {
			c.wait()
			reapAll()
		}
	}()
	return c, <-started
}

func (c *Child) start(argv, env []string) error {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.terminal.lendFromStart(cmd.SysProcAttr)
	dieWithParent(cmd.SysProcAttr)
	err := cmd.Start()
	// From the background, where this process is while the terminal is lent, to take it back or to write to it would
	// stop this process. The command has not inherited this.
	signal.Ignore(unix.SIGTTOU)
	if err != nil {
		c.terminal.takeBack()
		return err
	}
	c.pid = cmd.Process.Pid
	return cmd.Process.Release() // wait asks the kernel itself, because it has to notice stops, too
}

// lookAgain is how often a command that is stopped for the terminal is checked, because a shell sends no signal when it
// brings a running job to the foreground.
const lookAgain = 100 * time.Millisecond

// wait waits for the end of the command, and reaps all others. As process 1 of a container, or as a subreaper, this
// process inherits what has lost its parent, and nobody else can reap that.
func (c *Child) wait() {
	defer close(c.ended)
	defer c.terminal.takeBack()
	for {
		options := unix.WUNTRACED
		if c.wants {
			options |= unix.WNOHANG
		}
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, options, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			c.status = 0xff00 // not ours to wait for: it is said to have failed
			return
		case pid == 0:
			time.Sleep(lookAgain)
			c.lend()
		case pid != c.pid:
		case status.Stopped():
			c.stopped(status.StopSignal())
		default:
			c.status = status
			return
		}
	}
}

// reapAll reaps the processes that are left when the command has ended, until there are none.
func reapAll() {
	for {
		if _, err := unix.Wait4(-1, nil, 0, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

const noSuspend = "a command that holds a lock cannot be suspended: others would wait for it"

// stopped has a command that was stopped go on: its lock is renewed, so others would wait for a program that does
// nothing. SIGSTOP is left in force, because only a person sends it.
func (c *Child) stopped(sig syscall.Signal) {
	switch sig {
	case unix.SIGTSTP:
		c.warn(noSuspend)
		c.Signal(unix.SIGCONT)
	case unix.SIGTTIN, unix.SIGTTOU:
		c.wants = c.terminal != nil
		if c.wants && !c.lend() {
			c.warn("the command is stopped and holds the lock: it needs the terminal; bring it to the foreground (fg)")
		}
	}
}

// lend gives the terminal to a command that is stopped because it needs it, if this process is in the foreground.
func (c *Child) lend() bool {
	if !c.terminal.lend(c.pid) {
		return false
	}
	c.wants = false
	c.Signal(unix.SIGCONT)
	return true
}

// Supported says why no command can be run; nil: it can.
func Supported() error { return nil }

// Ended is closed when the command has ended. Others of its group may be left.
func (c *Child) Ended() <-chan struct{} { return c.ended }

// Code is the exit code of a command, as a shell reports it: 128 and the number of the signal if
// one has ended it.
func (c *Child) Code() int {
	if c.status.Signaled() {
		return 128 + int(c.status.Signal())
	}
	return c.status.ExitStatus()
}

// Signal sends sig to all of the group. One that asks for an end also wakes the processes that are stopped. One that asks for
// a stop is answered.
func (c *Child) Signal(sig os.Signal) {
	number, ok := sig.(syscall.Signal)
	switch {
	case !ok || number == unix.SIGTTIN: // another process of this job has read while the terminal was lent
		return
	case number == unix.SIGTSTP:
		c.warn(noSuspend)
		return
	}
	_ = unix.Kill(-c.pid, number) // it has gone: as was wished
	if EndsWait(sig) {
		_ = unix.Kill(-c.pid, unix.SIGCONT)
	}
}

// Terminate asks all of the group to end.
func (c *Child) Terminate() { c.Signal(unix.SIGTERM) }

// Kill ends all of the group.
func (c *Child) Kill() { _ = unix.Kill(-c.pid, unix.SIGKILL) }

// left reports whether any of the group lives. One that has ended is of the group until its parent reaps it, which
// may be never.
func (c *Child) left() bool {
	return !errors.Is(unix.Kill(-c.pid, 0), unix.ESRCH) && lives(c.pid)
}

// AwaitGone waits until none of the group is left, but not beyond the deadline.
func (c *Child) AwaitGone(deadline time.Time) bool {
	for pause := time.Millisecond; c.left(); pause = min(2*pause, 100*time.Millisecond) {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		time.Sleep(min(pause, left))
	}
	return true
}
