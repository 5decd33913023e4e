package stage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/internal/redistest"
)

// Process is a client process.
type Process struct {
	Number int
	Relays map[string]*redistest.Relay // its own relay to each server, by the server's address

	cmd    *exec.Cmd
	stderr bytes.Buffer // complete when done is closed
	done   chan struct{}
	err    error // of its end; complete when done is closed

	mu     sync.Mutex // guards the rest
	stdin  io.WriteCloser
	killed bool
	paused bool
}

// startProcess starts a client process, all of whose connections to Redis run through
// relays of its own. Its events go to record.
func startProcess(config worker.Config, servers []*redistest.Server, record func(history.Event)) (*Process, error) {
	p := &Process{Number: config.Process, Relays: map[string]*redistest.Relay{}, done: make(chan struct{})}
	config.Relays = map[string]string{}
	for _, s := range servers {
		relay, err := redistest.StartRelay(s.Addr)
		if err != nil {
			p.closeRelays()
			return nil, err
		}
		p.Relays[s.Addr] = relay
		config.Relays[s.Addr] = relay.Addr
	}
	if err := p.exec(config, record); err != nil {
		p.closeRelays()
		return nil, fmt.Errorf("client process: %w", err)
	}
	return p, nil
}

func (p *Process) exec(config worker.Config, record func(history.Event)) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p.cmd = exec.Command(self, "-client")
	p.cmd.Stderr = &p.stderr
	dieWithParent(p.cmd)
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.stdin = stdin
	started := make(chan error, 1)
	go func() {
		// The kernel ties "die with the parent" to the thread that forked.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			err = history.Read(stdout, record)
			p.err = errors.Join(err, p.cmd.Wait())
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	return p.send(config)
}

// send writes one line to the process.
func (p *Process) send(line any) error {
	b, err := json.Marshal(line)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err = p.stdin.Write(append(b, '\n'))
	return err
}

// RelayTo returns the process' relay to a server.
func (p *Process) RelayTo(s *redistest.Server) *redistest.Relay { return p.Relays[s.Addr] }

// Hog makes the process occupy all connections of its pool for d.
func (p *Process) Hog(d time.Duration) error { return p.send(worker.Order{Hog: d}) }

// stop makes the process end.
func (p *Process) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.stdin.Close()
}

// kill sends SIGKILL to the process, and waits for its end. first: it was not killed before.
func (p *Process) kill() (first bool) {
	p.mu.Lock()
	first, p.killed = !p.killed, true
	p.mu.Unlock()
	p.resume()
	_ = p.cmd.Process.Kill()
	<-p.done
	return first
}

func (p *Process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// await waits for the end of a process after stop. Unless the process was killed, the error reports what was wrong at its
// end.
func (p *Process) await(patience time.Duration) error {
	var hung bool
	select {
	case <-p.done:
	case <-time.After(patience):
		hung = true
		dumpGoroutines(p.cmd)
		select {
		case <-p.done:
		case <-time.After(5 * time.Second):
			p.kill()
		}
	}
	p.mu.Lock()
	killed := p.killed
	p.mu.Unlock()
	switch {
	case hung:
		return fmt.Errorf("process %d did not end within %v:\n%s", p.Number, patience, p.stderr.Bytes())
	case p.err != nil && !killed:
		return fmt.Errorf("process %d: %w\n%s", p.Number, p.err, p.stderr.Bytes())
	}
	return nil
}

func (p *Process) closeRelays() {
	for _, r := range p.Relays {
		r.Close()
	}
}
