package main

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// answerTimeout bounds every order, beyond the time that it takes by itself.
var answerTimeout = grace + 30*time.Second

// process is a worker as its parent sees it.
type process struct {
	cmd     *exec.Cmd
	orders  io.WriteCloser // its end ends the worker
	encoder *gob.Encoder
	answers chan answer // closed when the worker has ended
	failure error       // why; read after answers was closed
}

// startProcess starts this program again, as a worker.
func startProcess() (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, orders: in, encoder: gob.NewEncoder(in), answers: make(chan answer)}
	go p.read(out)
	return p, nil
}

// read passes the answers on until there are no more, and sees the worker off.
func (p *process) read(out io.Reader) {
	defer close(p.answers)
	decoder := gob.NewDecoder(out)
	for {
		var a answer
		if err := decoder.Decode(&a); err != nil {
			p.failure = fmt.Errorf("a worker has ended: %w", errors.Join(err, p.cmd.Wait()))
			return
		}
		p.answers <- a
	}
}

// send gives the worker an order.
func (p *process) send(o order) error { return p.encoder.Encode(o) }

// receive waits for the answer to the last order, which takes that long by itself.
func (p *process) receive(duration time.Duration) (answer, error) {
	timeout := time.NewTimer(duration + answerTimeout)
	defer timeout.Stop()
	select {
	case a, ok := <-p.answers:
		switch {
		case !ok:
			return a, p.failure
		case a.Err != "":
			return a, errors.New(a.Err)
		}
		return a, nil
	case <-timeout.C:
		return answer{}, fmt.Errorf("lost waiter: a worker did not answer within %v", duration+answerTimeout)
	}
}

// left is how long an order still takes by itself.
func (o order) left() time.Duration {
	if o.Start.IsZero() {
		return 0
	}
	return max(0, time.Until(o.Start.Add(o.Duration)))
}

// call is send and receive.
func (p *process) call(o order) (answer, error) {
	if err := p.send(o); err != nil {
		return answer{}, err
	}
	return p.receive(o.left())
}

// stop ends the worker, whatever it is doing, and waits for its end.
func (p *process) stop() {
	_ = p.orders.Close()
	kill := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	for range p.answers { // nobody is interested any more
	}
}

// team are the workers of one cell.
type team []*process

// each gives every worker the order that it makes for it, and collects the answers.
func (t team) each(make func(i int) order) ([]answer, error) {
	orders := []order{}
	for i, p := range t {
		o := make(i)
		orders = append(orders, o)
		if err := p.send(o); err != nil {
			return nil, err
		}
	}
	answers, errs := []answer{}, []error{}
	for i, p := range t {
		a, err := p.receive(orders[i].left())
		answers, errs = append(answers, a), append(errs, err)
	}
	return answers, errors.Join(errs...)
}

// sent returns how many commands all of them have sent so far.
func (t team) sent() (int64, error) {
	answers, err := t.each(func(int) order { return order{Verb: reportUsage} })
	n := int64(0)
	for _, a := range answers {
		n += a.Usage.Sent
	}
	return n, err
}

func (t team) stop() {
	for _, p := range t {
		_ = p.orders.Close() // all at once
	}
	for _, p := range t {
		p.stop()
	}
}
