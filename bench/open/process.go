package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// process is a worker as its driver sees it.
type process struct {
	*child
	orders io.WriteCloser // its end ends the worker

	mu      sync.Mutex // guards the rest
	encoder *json.Encoder
	last    int
	waiting map[int]chan answer // closed when the worker has ended
	ended   bool
}

// startProcess starts the worker of a contender, and opens its client.
func (e *environment) startProcess(c contender, open order) (*process, error) {
	cmd, err := e.command(c)
	if err != nil {
		return nil, err
	}
	p := &process{waiting: make(map[int]chan answer)}
	in, err1 := cmd.StdinPipe()
	out, w, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	cmd.Stdout = w
	p.child, err = startChild(cmd)
	w.Close()
	if err != nil {
		out.Close()
		return nil, err
	}
	p.orders, p.encoder = in, json.NewEncoder(in)
	go p.read(out)
	open.Op, open.Contender = opOpen, c.name
	_, err = p.call(open, startTimeout)
	if err != nil {
		p.stop()
	}
	return p, err
}

// command returns the command that starts a worker.
func (e *environment) command(c contender) (*exec.Cmd, error) {
	switch c.peer {
	case peerJava:
		return exec.Command("java", "-jar", e.jar), nil
	case peerPython:
		cmd := exec.Command("python3", e.script)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+e.pythonPath)
		return cmd, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"=1")
	return cmd, nil
}

func (p *process) read(out io.ReadCloser) {
	defer out.Close()
	answers := json.NewDecoder(bufio.NewReader(out))
	for {
		var a answer
		err := answers.Decode(&a)
		p.mu.Lock()
		if err != nil {
			p.ended = true
			for _, waiting := range p.waiting {
				close(waiting)
			}
			clear(p.waiting)
			p.mu.Unlock()
			return
		}
		if waiting := p.waiting[a.ID]; waiting != nil {
			waiting <- a
			delete(p.waiting, a.ID)
		}
		p.mu.Unlock()
	}
}

// send gives the worker an order, and returns what its answer comes from.
func (p *process) send(o order) <-chan answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	o.ID = p.last
	answers := make(chan answer, 1)
	if p.ended || p.encoder.Encode(o) != nil {
		close(answers)
		return answers
	}
	p.waiting[o.ID] = answers
	return answers
}

// receive waits for an answer, which may take so long.
func (p *process) receive(answers <-chan answer, within time.Duration) (answer, error) {
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	select {
	case a, ok := <-answers:
		switch {
		case !ok:
			return a, fmt.Errorf("a worker has ended: %s", p.log)
		case a.Err != "":
			return a, errors.New(a.Err)
		}
		return a, nil
	case <-timeout.C:
		return answer{}, fmt.Errorf("%w within %v", errNoAnswer, within)
	}
}

var errNoAnswer = errors.New("no answer")

func (p *process) call(o order, within time.Duration) (answer, error) {
	return p.receive(p.send(o), within)
}

// crash ends the worker as a crash does.
func (p *process) crash() { _ = syscall.Kill(p.pid(), syscall.SIGKILL) }

// stop ends the worker, whatever it is doing.
func (p *process) stop() {
	_ = p.orders.Close()
	p.kill()
}
