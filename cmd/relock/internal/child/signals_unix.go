//go:build unix

package child

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// ending are the signals that end a process which does not expect them, and so end a wait.
var ending = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGVTALRM, syscall.SIGPROF, syscall.SIGXCPU, syscall.SIGXFSZ,
}

// forwarded are the signals that only a running command receives. Left out are SIGCHLD, SIGPIPE and SIGURG, which
// are about this process; SIGKILL and SIGSTOP, which no process sees; and those of a fault, which are Go's.
var forwarded = []os.Signal{syscall.SIGCONT, syscall.SIGWINCH, syscall.SIGIO}

// stopping are the signals that would stop this process, which then could not renew a lock, or use its turn. [Child.Signal]
// answers them.
var stopping = []os.Signal{syscall.SIGTSTP, syscall.SIGTTIN}

// Signals delivers the signals to this process.
type Signals struct{ C chan os.Signal }

// WatchSignals delivers the signals that end a wait, or would suspend this process, from now on. A SIGHUP or SIGINT that was
// ignored when this process began, as by nohup, is left ignored, here and in the command.
func WatchSignals() *Signals {
	s := &Signals{C: make(chan os.Signal, 256)} // signals that come while the command starts are kept
	s.add(ending)
	s.add(stopping)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // an output that is closed must not end us while the command runs
	return s
}

// All delivers all signals from now on.
func (s *Signals) All() { s.add(forwarded) }

func (s *Signals) add(signals []os.Signal) {
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(s.C, sig)
		}
	}
}

// Stop leaves all signals to the system again: the next one ends this process.
func (s *Signals) Stop() {
	signal.Stop(s.C)
}

// Pending returns a signal that has come and ends a wait; nil if there is none.
func (s *Signals) Pending() os.Signal {
	for {
		select {
		case sig := <-s.C:
			if EndsWait(sig) {
				return sig
			}
		default:
			return nil
		}
	}
}

// EndsWait reports whether sig ends a wait.
func EndsWait(sig os.Signal) bool { return slices.Contains(ending, sig) }

// AsksToEnd reports whether sig asks a program to end: after it, what is left of a command is about to end, too.
func AsksToEnd(sig os.Signal) bool {
	return sig == syscall.SIGTERM || sig == syscall.SIGINT || sig == syscall.SIGHUP || sig == syscall.SIGQUIT
}

// Stops reports whether sig would suspend this process.
func Stops(sig os.Signal) bool { return sig == syscall.SIGTSTP }

// CodeOf is what a shell returns of a process that sig has ended.
func CodeOf(sig os.Signal) int {
	number, _ := sig.(syscall.Signal)
	return 128 + int(number)
}
