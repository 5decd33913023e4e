package stage

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/scripts"
	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/internal/redistest"
)

// Act is one injection of a fault: what it has to work with, whom it may harm, and how it tells
// what it does. It is a context, too, which ends with the run.
type Act struct {
	context.Context

	Deployment *deployment.Deployment
	Work       worker.Workload // of the client processes
	Rand       *rand.Rand      // for all that is random: it depends on the seed and the number of the act alone

	round  *round
	number int
	hits   int
}

// Logf tells what the fault does, for -v.
func (a *Act) Logf(format string, args ...any) {
	a.round.logf("fault %d: %s", a.number, fmt.Sprintf(format, args...))
}

// Begin records that the fault is in force from now on: until [Act.End] nothing is promised
// about how long a waiter waits.
func (a *Act) Begin(format string, args ...any) { a.note(history.FaultBegin, format, args...) }

// End records that the fault is in force no more.
func (a *Act) End() { a.tell(history.Event{Kind: history.FaultEnd}) }

// Disturb records, instead of Begin and End, a fault that keeps no waiter waiting for long. Called again, it says
// that the fault has lasted until then.
func (a *Act) Disturb(format string, args ...any) { a.note(history.Disturbed, format, args...) }

func (a *Act) note(kind history.Kind, format string, args ...any) {
	note := fmt.Sprintf(format, args...)
	a.Logf("%s", note)
	a.tell(history.Event{Kind: kind, Note: note})
}

func (a *Act) tell(e history.Event) {
	e.Op = a.number
	a.round.journal.tell(e)
}

// LoseData records that the deployment may have lost or forked data from now on.
func (a *Act) LoseData() { a.tell(history.Event{Kind: history.DataLoss}) }

// Hit counts the fault: it has had its effect.
func (a *Act) Hit() {
	a.HitUncounted()
	a.round.mu.Lock()
	defer a.round.mu.Unlock()
	a.round.hits++
}

// HitUncounted says that the fault has had its effect, which the plan's check counts, in
// [Evidence.Hits].
func (a *Act) HitUncounted() { a.hits++ }

// Breach notes that a promise of the plan's own was not kept.
func (a *Act) Breach(format string, args ...any) {
	a.round.mu.Lock()
	defer a.round.mu.Unlock()
	a.round.breaches = append(a.round.breaches, fmt.Sprintf(format, args...))
}

// Between returns a random duration.
func (a *Act) Between(least, most time.Duration) time.Duration {
	return least + time.Duration(a.Rand.Int64N(int64(most-least)+1))
}

// Lasts lets d pass, or less if the run ends.
func (a *Act) Lasts(d time.Duration) { wait(a, d) }

// Outage lets d pass, and notes that no process can get an answer from a server in that time.
func (a *Act) Outage(d time.Duration) { a.outage(0, d) }

// outage is Outage for one process, or for all if process is 0.
func (a *Act) outage(process int, d time.Duration) {
	o := Outage{Process: process, From: history.Now()}
	a.Lasts(d)
	o.To = history.Now()
	a.round.mu.Lock()
	defer a.round.mu.Unlock()
	a.round.outages = append(a.round.outages, o)
}

// Lock chooses a lock at random, and returns its name.
func (a *Act) Lock() string {
	all := slices.Concat(a.round.locks, a.round.sided)
	return all[a.Rand.IntN(len(all))]
}

// Script recognizes the commands by which the library does verb.
func (a *Act) Script(verb scripts.Verb) redistest.Match { return a.round.stage.scripts[verb] }

// Alive are the processes that run.
func (a *Act) Alive() []*Process { return a.round.alive() }

// Victim chooses a process at random.
func (a *Act) Victim() *Process {
	alive := a.Alive()
	return alive[a.Rand.IntN(len(alive))]
}

// Holder chooses a process that holds a lock, if there is one soon.
func (a *Act) Holder() *Process { return a.soon(true) }

// Waiter chooses a process that holds no lock, if there is one soon: where each does nothing
// but lock, it waits.
func (a *Act) Waiter() *Process { return a.soon(false) }

// soon chooses a process that holds a lock, or does not, if there is one soon.
func (a *Act) soon(holds bool) *Process {
	drawn := a.Victim()
	for range 100 {
		for _, p := range a.Alive() {
			if a.round.journal.holds(p.Number) == holds {
				return p
			}
		}
		a.Lasts(5 * time.Millisecond)
	}
	return drawn
}

// Meets waits until one of the rules has caught a command, for a while, and removes them. It
// counts a hit if one has.
func (a *Act) Meets(rules ...*redistest.Rule) bool {
	ctx, cancel := context.WithTimeout(a, a.Work.TTL)
	defer cancel()
	caught := make(chan bool, len(rules))
	for _, rule := range rules {
		defer rule.Remove()
		go func() {
			select {
			case <-rule.Caught():
				caught <- true
			case <-ctx.Done():
				caught <- false
			}
		}()
	}
	for range rules {
		if <-caught {
			a.Hit()
			return true
		}
	}
	return false
}

// Pause stops a process for d, which counts as a hit.
func (a *Act) Pause(p *Process, d time.Duration) error {
	a.Logf("process %d stops for %v", p.Number, d)
	a.tell(history.Event{Process: p.Number, Kind: history.Paused})
	if err := p.pause(); err != nil {
		return err
	}
	a.outage(p.Number, d)
	a.Hit()
	p.resume()
	a.tell(history.Event{Process: p.Number, Kind: history.Resumed})
	return nil
}

// Kill ends a process the hard way, which counts as a hit, and starts another one.
func (a *Act) Kill(p *Process) error {
	p.kill()
	a.Logf("process %d is killed", p.Number)
	a.tell(history.Event{Process: p.Number, Kind: history.Killed})
	a.Hit()
	return a.round.spawn()
}
