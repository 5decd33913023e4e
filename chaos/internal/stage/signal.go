package stage

import (
	"os/exec"
	"syscall"
)

// dumpGoroutines ends a process that hangs, with a dump of its goroutines.
func dumpGoroutines(cmd *exec.Cmd) { _ = cmd.Process.Signal(syscall.SIGQUIT) }

// pause stops the process until resume.
func (p *Process) pause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = true
	return p.cmd.Process.Signal(syscall.SIGSTOP)
}

// resume continues the process, if it is paused.
func (p *Process) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused {
		p.paused = false
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
	}
}
