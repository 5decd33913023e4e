package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/relock-go/relock/sim/internal/bubble"
	"github.com/relock-go/relock/sim/internal/play"
)

// Child processes play the plays, each with one thread, one play at a time. So the order of goroutines is as little random as
// possible, all cores are used, and a play that crashes or hangs does not end others.

// job is a play for a child: a line of its standard input.
type job struct {
	Seed   uint64
	Only   []int `json:",omitempty"` // the numbers of the faults that are left; nil: all
	None   bool  `json:",omitempty"` // no fault is left
	Report bool  `json:",omitempty"` // the story is wanted, whether or not a promise was broken
	Same   bool  `json:",omitempty"` // Events is wanted
}

func (j job) plan() play.Plan {
	p := play.Draw(j.Seed)
	if j.None || j.Only != nil {
		p = p.With(j.Only)
	}
	return p
}

// answer is the result of a job: a line of the child's standard output.
type answer struct {
	Seed     uint64
	Broken   []string // promises: the names of the invariants, each once
	Story    string
	Crash    string // of the child, which then answers no more
	Hangs    bool   // the play did not end, and the child is gone
	Holds    int
	Losses   int
	Overlaps int
	Faults   int
	Commands int
	Trace    uint64
	Events   []uint64 `json:",omitempty"` // see play.Result.Digests
}

func (a answer) failed() bool { return a.Crash != "" || len(a.Broken) > 0 }

// serve is the main function of a child.
func serve(run bubble.Runner) int {
	jobs, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var j job
		if err := jobs.Decode(&j); err == io.EOF {
			return 0
		} else if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return failed
		}
		res, err := play.Run(run, j.plan(), func(res *play.Result) {
			_ = out.Encode(answer{Seed: j.Seed, Broken: res.Broken(), Story: res.Story(), Hangs: true})
			os.Exit(failed)
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return failed
		}
		a := answer{
			Seed: j.Seed, Holds: res.Report.Holds, Losses: res.Report.Losses, Overlaps: res.Report.Overlaps,
			Faults: res.Report.Faults, Commands: res.Commands, Trace: res.Trace, Broken: res.Broken(),
		}
		if j.Same {
			a.Events = res.Digests()
		}
		if res.Failed() || j.Report {
			a.Story = res.Story()
		}
		if err := out.Encode(a); err != nil {
			return failed
		}
	}
}

// patience is how long a play may take in real time: some hundred times the usual time.
const patience = time.Minute

// child is a child process that plays.
type child struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	errors *complaint
}

func startChild(ctx context.Context, program string) (*child, error) {
	c := &child{cmd: exec.CommandContext(ctx, program, "-child"), errors: &complaint{}}
	c.cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1", "GOGC=1000")
	c.cmd.Stderr = c.errors
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	c.out = bufio.NewReaderSize(out, 1<<20)
	return c, c.cmd.Start()
}

// play makes the child play. A crash is an answer, too, and the child is gone then.
func (c *child) play(j job) answer {
	stuck := time.AfterFunc(patience, func() { _ = c.cmd.Process.Signal(syscall.SIGQUIT) }) // prints its goroutines
	defer stuck.Stop()
	line, _ := json.Marshal(j) // has only what can be
	_, _ = c.in.Write(append(line, '\n'))
	var a answer
	for {
		text, err := c.out.ReadBytes('\n')
		if err != nil {
			_ = c.cmd.Wait()
			return answer{Seed: j.Seed, Crash: fmt.Sprintf("%v: the process has ended: %s", j.plan(), c.errors)}
		}
		if json.Unmarshal(text, &a) == nil {
			if a.Hangs {
				c.end()
			}
			return a
		}
	}
}

func (c *child) end() {
	_ = c.in.Close()
	_ = c.cmd.Wait()
}

// crew are children that play at the same time.
type crew struct {
	program string
	size    int
}

// play plays the jobs that next returns, until it has no more, and calls done with each answer, one at a
// time.
func (c crew) play(ctx context.Context, next func() (job, bool), done func(answer)) error {
	var all sync.WaitGroup
	var mu sync.Mutex
	var failure error
	for range c.size {
		all.Go(func() {
			if err := c.one(ctx, &mu, next, done); err != nil {
				mu.Lock()
				failure = err
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return failure
}

func (c crew) one(ctx context.Context, mu *sync.Mutex, next func() (job, bool), done func(answer)) error {
	var player *child
	defer func() {
		if player != nil {
			player.end()
		}
	}()
	for ctx.Err() == nil {
		mu.Lock()
		j, more := next()
		mu.Unlock()
		if !more {
			return nil
		}
		if player == nil {
			var err error
			if player, err = startChild(ctx, c.program); err != nil {
				return err
			}
		}
		a := player.play(j)
		if a.Crash != "" || a.Hangs {
			player = nil
		}
		if ctx.Err() != nil {
			return nil
		}
		mu.Lock()
		done(a)
		mu.Unlock()
	}
	return nil
}

// complaint is the beginning of a child's standard error.
type complaint struct {
	mu   sync.Mutex
	text strings.Builder
}

func (t *complaint) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text.Len() < 20000 {
		t.text.Write(p)
	}
	return len(p), nil
}

func (t *complaint) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
