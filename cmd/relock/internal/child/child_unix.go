//go:build unix

package child

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Child is a command that was started. Its methods are safe for concurrent use.
type Child struct {
	pid      int   // and number of the group
	others   []int // groups of descendants that this process had before
	terminal *terminal
	wants    bool // the terminal; of wait
	warn     func(string)
	ended    chan struct{}
	status   unix.WaitStatus // after ended

	forbidden sync.Once // the warning that it may not be signalled
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
	adoptOrphans()
	c.others, _ = groupsLeft(0)
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

// wait waits for the end of the command, and reaps all others. This process inherits what has lost its parent (adoptOrphans), and
// nobody else can reap that.
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
// nothing. A SIGSTOP is left in force, because a person sends it; but a program that has the terminal may stop itself with it
// when it reads Ctrl-Z, and then nobody could end it there.
func (c *Child) stopped(sig syscall.Signal) {
	switch sig {
	case unix.SIGTSTP:
		c.goOn()
	case unix.SIGSTOP:
		if c.HadTerminal() {
			c.goOn()
		}
	case unix.SIGTTIN, unix.SIGTTOU:
		c.wants = c.terminal != nil
		if c.wants && !c.lend() {
			c.warn("the command is stopped and holds the lock: it needs the terminal; bring it to the foreground (fg)")
		}
	}
}

func (c *Child) goOn() {
	c.warn(noSuspend)
	c.Signal(unix.SIGCONT)
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

// EndedBy returns the signal that has ended the command; nil: it has ended by itself. It is known when Ended is closed.
func (c *Child) EndedBy() os.Signal {
	if !c.status.Signaled() {
		return nil
	}
	return c.status.Signal()
}

// HadTerminal reports whether the terminal was lent to the command: Ctrl-C was for the command alone, and not for the script
// around this process.
func (c *Child) HadTerminal() bool { return c.terminal != nil && c.terminal.lent }

// DieInterrupted ends this process by SIGINT, and with group the rest of its group, too. A script around this process takes
// Ctrl-C for answered, and goes on, if this process exits.
func DieInterrupted(group bool) {
	signal.Reset(unix.SIGINT)
	pid := unix.Getpid()
	if group {
		pid = 0
	}
	_ = unix.Kill(pid, unix.SIGINT)
	time.Sleep(time.Second) // the signal may come to another thread, a moment later
}

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
	c.send(c.pid, number)
	if EndsWait(sig) {
		c.send(c.pid, unix.SIGCONT)
	}
}

// send sends sig to a process group of the command. false: it has gone, or runs as another user.
func (c *Child) send(group int, sig syscall.Signal) bool {
	err := unix.Kill(-group, sig)
	if errors.Is(err, unix.EPERM) {
		c.forbidden.Do(func() {
			c.warn("not permitted to signal the command, which runs as another user (sudo?): it goes on, whatever happens to the lock; run relock itself as that user")
		})
	}
	return err == nil
}

// Terminate asks all of the group to end.
func (c *Child) Terminate() { c.Signal(unix.SIGTERM) }

// Kill ends what is left of the command, and reports whether there was any.
func (c *Child) Kill() (some bool) {
	some = c.send(c.pid, unix.SIGKILL) // at once: to find the others takes time
	groups, _ := c.groups()
	for _, group := range groups {
		some = c.send(group, unix.SIGKILL) || some
	}
	return some
}

// groups returns the process groups of what lives of the command; false: this system does not show that.
func (c *Child) groups() ([]int, bool) {
	groups, known := groupsLeft(c.pid)
	return slices.DeleteFunc(groups, func(group int) bool { return slices.Contains(c.others, group) }), known
}

// left reports whether any process of the command lives. Where this system does not show zombies, those count, too; and where it
// does not show the processes of others, their groups do.
func (c *Child) left() bool {
	err := unix.Kill(-c.pid, 0)
	if groups, known := c.groups(); known && !errors.Is(err, unix.EPERM) {
		return len(groups) > 0
	}
	return !errors.Is(err, unix.ESRCH)
}

// Gone is closed when the command has ended and nothing is left of it.
func (c *Child) Gone() <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		<-c.ended
		// Two times in a row: while /proc is read, one whose parent ends then may not be seen as a descendant.
		for pause, free := time.Millisecond, 0; free < 2; pause = min(2*pause, 100*time.Millisecond) {
			if free++; c.left() {
				free = 0
				time.Sleep(pause)
			}
		}
	}()
	return gone
}
