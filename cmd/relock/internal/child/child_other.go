//go:build !unix

package child

import (
	"errors"
	"os"
	"os/signal"
)

// Child is a command that was started: there is none on this system.
type Child struct{}

// Start fails.
func Start(argv, env []string, warn func(string)) (*Child, error) { return nil, errors.ErrUnsupported }

// Supported says why no command can be run.
func Supported() error {
	return errors.New("relock run needs process groups and signals, which this system does not have; the other commands work")
}

// Ended is never closed.
func (c *Child) Ended() <-chan struct{} { return nil }

// Code is the exit code of a command that could not be run.
func (c *Child) Code() int { return CodeNotRun }

// Signal does nothing.
func (c *Child) Signal(os.Signal) {}

// Terminate does nothing.
func (c *Child) Terminate() {}

// Kill does nothing.
func (c *Child) Kill() bool { return false }

// Gone is never closed.
func (c *Child) Gone() <-chan struct{} { return nil }

// EndedBy is nil.
func (c *Child) EndedBy() os.Signal { return nil }

// HadTerminal is false.
func (c *Child) HadTerminal() bool { return false }

// DieInterrupted does nothing.
func DieInterrupted(group bool) {}

// Signals delivers the signals to this process.
type Signals struct{ C chan os.Signal }

// WatchSignals delivers Ctrl-C.
func WatchSignals() *Signals {
	s := &Signals{C: make(chan os.Signal, 1)}
	signal.Notify(s.C, os.Interrupt)
	return s
}

// All does nothing more.
func (s *Signals) All() {}

// Stop leaves all signals to the system again.
func (s *Signals) Stop() { signal.Stop(s.C) }

// Pending returns a signal that has come.
func (s *Signals) Pending() os.Signal {
	select {
	case sig := <-s.C:
		return sig
	default:
		return nil
	}
}

// Stops is false: no signal suspends this process.
func Stops(os.Signal) bool { return false }

// AsksToEnd is true.
func AsksToEnd(os.Signal) bool { return true }

// EndsWait reports whether sig ends a wait.
func EndsWait(os.Signal) bool { return true }

// CodeOf is what a shell returns of a process that sig has ended.
func CodeOf(os.Signal) int { return 130 }
