package redistest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
)

// process is one run of a child. It is over when done is closed.
type process struct {
	cmd    *exec.Cmd
	done   chan struct{}
	output *tail
}

// startProcess starts the command so that it dies with this process.
func startProcess(name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{}), output: &tail{}}
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	dieWithParent(p.cmd)

	started := make(chan error, 1)
	go func() {
		// The kernel ties "die with the parent" to the thread that forked, not to
		// the process: the thread must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("redistest: start %s: %w", name, err)
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *process) signal(sig os.Signal) error {
	if !p.alive() {
		return os.ErrProcessDone
	}
	return p.cmd.Process.Signal(sig)
}

// kill sends the process SIGKILL, and waits for its end.
func (p *process) kill() {
	p.signal(sigCont) // a stopped process is not reaped on every system
	p.signal(os.Kill)
	<-p.done
}

// tail keeps the last bytes of a child's output, for error messages.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailSize = 4096

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - tailSize; extra > 0 {
		t.buf = t.buf[extra:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.buf))
}
