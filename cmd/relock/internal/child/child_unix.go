//go:build unix

package child

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Child is a command that was started. Its methods are safe for concurrent use.
type Child struct {
	pid      int // and number of the group
	terminal *terminal
	ended    chan struct{}
	status   unix.WaitStatus // after ended
}

// Start starts a command with the standard input and outputs of this process. If it reads from a
// terminal, it gets that for itself until it ends.
func Start(argv, env []string) (*Child, error) {
	c := &Child{terminal: ownTerminal(os.Stdin), ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel takes the end of the thread that started a child for the end of its parent.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.start(argv, env)
		started <- err
		if err == nil {
			c.wait()
		}
	}()
	return c, <-started
}

func (c *Child) start(argv, env []string) error {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.terminal.lend(cmd.SysProcAttr)
	dieWithParent(cmd.SysProcAttr)
	if err := cmd.Start(); err != nil {
		c.terminal.takeBack()
		return err
	}
	c.pid = cmd.Process.Pid
	return cmd.Process.Release() // wait asks the kernel itself, to hear of stops
}

// wait waits for the end of the command. One that the terminal has stopped goes on: its lock is
// renewed, so others would wait for a program that does nothing.
func (c *Child) wait() {
	defer close(c.ended)
	defer c.terminal.takeBack()
	options := 0
	if c.terminal != nil {
		options = unix.WUNTRACED
	}
	for {
		_, err := unix.Wait4(c.pid, &c.status, options, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			c.status = 0xff00 // not ours to wait for: it is said to have failed
			return
		case !c.status.Stopped():
			return
		case c.status.StopSignal() == unix.SIGTSTP:
			c.terminal.say("relock: it holds a lock and cannot be suspended\r\n")
			c.Signal(unix.SIGCONT)
		}
	}
}

// Supported says why no command can be run; nil: it can.
func Supported() error { return nil }

// Ended is closed when the command has ended. Others of its group may be left.
func (c *Child) Ended() <-chan struct{} { return c.ended }

// Code is that of a command that has ended, as a shell says it: 128 and the number of the signal if
// one has ended it.
func (c *Child) Code() int {
	if c.status.Signaled() {
		return 128 + int(c.status.Signal())
	}
	return c.status.ExitStatus()
}

// Signal sends sig to all of the group. One that asks for an end also wakes those that are stopped.
func (c *Child) Signal(sig os.Signal) {
	number, ok := sig.(syscall.Signal)
	if !ok {
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

// Left reports whether any of the group is left.
func (c *Child) Left() bool { return !errors.Is(unix.Kill(-c.pid, 0), unix.ESRCH) }

// AwaitGone waits until none of the group is left, but not beyond the deadline.
func (c *Child) AwaitGone(deadline time.Time) bool {
	for pause := time.Millisecond; c.Left(); pause = min(2*pause, 20*time.Millisecond) {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		time.Sleep(min(pause, left))
	}
	return true
}
