package main

import (
	"bytes"
	"io"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// child is a process that dies with this one.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // of its end; read after done
	log  *lastOutput
}

// startChild starts a process, whose output is kept unless the command has one of its own.
func startChild(cmd *exec.Cmd) (*child, error) {
	c := &child{cmd: cmd, done: make(chan struct{}), log: &lastOutput{}}
	if cmd.Stderr == nil {
		cmd.Stderr = c.log
	}
	if cmd.Stdout == nil {
		cmd.Stdout = io.Writer(c.log)
	}
	dieWithParent(cmd)
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the kernel ties the death of the child to the thread that forked
		defer runtime.UnlockOSThread()
		defer close(c.done)
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
		}
	}()
	return c, <-started
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// kill ends it, stopped or not, with all its descendants, and waits for its end.
func (c *child) kill() {
	select {
	case <-c.done: // its number may belong to another process by now
		return
	default:
	}
	pids := descendants(c.pid())
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-c.done
}

// lastOutput keeps the end of what a process prints.
type lastOutput struct {
	mu   sync.Mutex
	text []byte
}

func (l *lastOutput) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	l.text = l.text[max(0, len(l.text)-2000):]
	return len(p), nil
}

func (l *lastOutput) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.TrimSpace(l.text))
}
