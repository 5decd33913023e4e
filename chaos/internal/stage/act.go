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

// Act is one injection of a fault: its means, its possible victims, and how it records its effect. It is also a context,
// which ends with the run.
type Act struct {
	context.Context

	Deployment *deployment.Deployment
	Work       worker.Workload // of the client processes
	Rand       *rand.Rand      // for all random choices; it depends only on the seed and the number of the act

	round  *round
	number int
	hits   int
}

// Logf logs what the fault does, for -v.
func (a *Act) Logf(format string, args ...any) {
	a.round.logf("fault %d: %s", a.number, fmt.Sprintf(format, args...))
}

// Begin records that the fault is in force from now on: until [Act.End] nothing is promised
// about how long a waiter waits.
func (a *Act) Begin(format string, args ...any) {
	a.note(history.Event{Kind: history.FaultBegin}, format, args...)
}

// End records the end of the fault.
func (a *Act) End() { a.recordNow(history.Event{Kind: history.FaultEnd}) }

// Disturb records, instead of Begin and End, a fault that delays no waiter for long. A second call records that the fault has
// lasted until then.
func (a *Act) Disturb(format string, args ...any) {
	a.note(history.Event{Kind: history.Disturbed}, format, args...)
}

// DisturbMessages is Disturb for a fault by which no messages may reach p for d.
func (a *Act) DisturbMessages(p *Process, d time.Duration, format string, args ...any) {
	a.note(history.Event{Process: p.Number, Kind: history.Disturbed, NoMessages: int64(d)}, format, args...)
}

func (a *Act) note(e history.Event, format string, args ...any) {
	e.Note = fmt.Sprintf(format, args...)
	a.Logf("%s", e.Note)
	a.recordNow(e)
}

func (a *Act) recordNow(e history.Event) {
	e.Op = a.number
	a.round.journal.recordNow(e)
}

// LoseData records that the deployment may have lost or forked data from now on.
func (a *Act) LoseData() { a.recordNow(history.Event{Kind: history.DataLoss}) }

// Hit counts the fault when it has had its effect.
func (a *Act) Hit() {
	a.HitUncounted()
	a.round.mu.Lock()
	defer a.round.mu.Unlock()
	a.round.hits++
}

// HitUncounted records that the fault has had its effect. The plan's check counts it, in [Evidence.Hits].
func (a *Act) HitUncounted() { a.hits++ }

// Breach records that a promise of the plan was broken.
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

// Outage lets d pass, and records that no process can get an answer from a server in that time.
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

// Lock returns the name of a random lock or semaphore.
func (a *Act) Lock() string {
	all := slices.Concat(a.round.locks, a.round.sided, a.round.semaphores)
	return all[a.Rand.IntN(len(all))]
}

// IsSemaphore reports whether a name that Lock has returned is that of a semaphore.
func (a *Act) IsSemaphore(name string) bool { return slices.Contains(a.round.semaphores, name) }

// Script matches the commands of the library for verb.
func (a *Act) Script(verb scripts.Verb) redistest.Match { return a.round.stage.scripts[verb] }

// Alive returns the processes that run.
func (a *Act) Alive() []*Process { return a.round.alive() }

// Victim returns a random process.
func (a *Act) Victim() *Process {
	alive := a.Alive()
	return alive[a.Rand.IntN(len(alive))]
}

// Holder returns a process that holds a lock, if there is one soon.
func (a *Act) Holder() *Process { return a.soon(true) }

// Waiter returns a process that holds no lock, if there is one soon. If all processes do nothing but lock, it waits.
func (a *Act) Waiter() *Process { return a.soon(false) }

// soon returns a process that holds a lock, or holds none, if there is one soon.
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

// Meets waits for a while until one of the rules has caught a command, and removes the rules. If one has, it counts a hit.
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
	a.recordNow(history.Event{Process: p.Number, Kind: history.Paused})
	if err := p.pause(); err != nil {
		return err
	}
	a.outage(p.Number, d)
	a.Hit()
	p.resume()
	a.recordNow(history.Event{Process: p.Number, Kind: history.Resumed})
	return nil
}

// Kill kills a process, which counts as a hit, and starts another one, unless another fault has killed it.
func (a *Act) Kill(p *Process) error {
	if !p.kill() {
		return nil
	}
	a.Logf("process %d is killed", p.Number)
	a.recordNow(history.Event{Process: p.Number, Kind: history.Killed})
	a.Hit()
	return a.round.spawn()
}

// Deploy stops a process, as the deployment of a new version does, and starts another one whose semaphores have another limit.
// Both run until the uses of the old one have ended. It counts as a hit.
func (a *Act) Deploy(p *Process, limit int) error {
	a.Logf("process %d is replaced by one with the limit %d", p.Number, limit)
	a.round.mu.Lock()
	a.round.work.Limit = limit
	a.round.mu.Unlock()
	p.stop()
	a.Hit()
	err := a.round.spawn()
	select {
	case <-p.done:
	case <-a.Done():
	}
	return err
}
