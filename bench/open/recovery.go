package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/redistest"
)

// recoveryLease is the lease of all in the measurements of recovery, where a library has one: defaults from 5 s to 60 s would
// compare numbers that anybody can set.
const recoveryLease = 5 * time.Second

// giveUp ends an observation: nothing has happened for two leases.
const giveUp = 2 * recoveryLease

// crowdOf is who waits in the measurements of recovery: processes, and waiters in each.
const (
	waitingProcesses = 4
	waitersOfEach    = 4
)

// silence is how long the server does not answer in one event.
const silence = 3 * time.Second

// outcome is one observation, in milliseconds after the fault. First and Last are of waiters, Learned is when a holder was
// notified. A time is never if it had not come after giveUp.
type outcome struct {
	First, Last, Learned float64
	Note                 string // why there is no time
}

const never = -1

// event is a fault, and what is observed of it.
type event struct {
	name, title string
	learns      bool // when the holder learns of its loss; otherwise when waiters are served
	play        func(ctx context.Context, r *recoveryRun) (outcome, error)
}

// events are in the order of the tables.
var events = []event{
	{"holder", "the holder is killed", false, killHolder},
	{"waiter", "the first waiter is killed, then the holder unlocks", false, killWaiter},
	{"master", "the master is killed (Sentinel), the holder unlocks", false, killMaster},
	{"silence", "the server is silent for 3 s, the holder unlocks meanwhile", false, silent},
	{"delete", "its lock is deleted", true, deleted},
	{"flush", "`FLUSHALL`", true, flushed},
	{"stop", "the server is stopped (`SIGSTOP`)", true, stopped},
	{"cut", "its network is cut", true, cut},
}

// recoveryRun is one fault for one contender.
type recoveryRun struct {
	e       *environment
	c       contender
	service *service
	name    string
	open    order // how clients connect
	holder  *process
	crowd   []*process
	served  []served      // of the waiters, in the order in which they began to wait
	phase   time.Duration // for how long the lock is held before the fault
}

// served is the answer that a waiter waits for.
type served struct {
	p       *process
	answers <-chan answer
}

func (r *recoveryRun) stop() {
	for _, p := range append(slices.Clone(r.crowd), r.holder) {
		if p != nil {
			p.stop()
		}
	}
}

// begin starts a holder that has the lock.
func (r *recoveryRun) begin() (err error) {
	r.open.Lease = micros(recoveryLease)
	if r.holder, err = r.e.startProcess(r.c, r.open); err != nil {
		return err
	}
	_, err = r.holder.call(order{Op: opLock, Name: r.name, Keep: true}, startTimeout)
	return err
}

// gather starts the processes of the waiters, then a holder, and then has the waiters wait, process after process. So a lock
// that is not renewed is young when the fault comes.
func (r *recoveryRun) gather() error {
	r.open.Lease = micros(recoveryLease)
	for range waitingProcesses {
		p, err := r.e.startProcess(r.c, r.open)
		if err != nil {
			return err
		}
		r.crowd = append(r.crowd, p)
	}
	if err := r.begin(); err != nil {
		return err
	}
	for _, p := range r.crowd {
		for range waitersOfEach {
			r.served = append(r.served, served{p, p.send(order{Op: opLock, Name: r.name})})
		}
		time.Sleep(betweenProcesses)
	}
	time.Sleep(r.phase)
	return nil
}

// betweenProcesses makes the first process the first in line, where there is a line.
const betweenProcesses = 200 * time.Millisecond

// await returns when the first and the last waiter had the lock, in ms after the fault.
func (r *recoveryRun) await(fault time.Time, without *process) outcome {
	end, times, o := fault.Add(giveUp), []float64{}, outcome{Learned: never}
	for _, s := range r.served {
		if s.p == without {
			continue
		}
		a, err := s.p.receive(s.answers, time.Until(end))
		if err != nil {
			o.Last = never
			if !errors.Is(err, errNoAnswer) {
				o.Note = err.Error()
			}
			continue
		}
		times = append(times, msAfter(fault, a.At))
	}
	o.First = never
	if len(times) > 0 {
		if o.First = slices.Min(times); o.First < 0 {
			return outcome{Note: tooEarly}
		}
		if o.Last != never {
			o.Last = slices.Max(times)
		}
	}
	return o
}

// tooEarly is the note of an observation that shows nothing: a waiter had the lock before the fault.
const tooEarly = "its lease ended before the fault"

func msAfter(fault time.Time, at int64) float64 {
	return math.Round(float64(at-fault.UnixMicro())/10) / 100
}

// unlock has the holder unlock, and does not wait for it.
func (r *recoveryRun) unlock() { r.holder.send(order{Op: opUnlock, Name: r.name}) }

// learns has the holder watch its lock, makes the fault, and returns when the holder was notified.
func (r *recoveryRun) learns(fault func() error) (outcome, error) {
	o := outcome{First: never, Last: never, Learned: never}
	answers := r.holder.send(order{Op: opLost, Name: r.name})
	// A worker whose library has no notice answers at once.
	if _, err := r.holder.receive(answers, 200*time.Millisecond); !errors.Is(err, errNoAnswer) {
		switch {
		case err == nil:
			err = errors.New("the holder was notified before the fault")
		case err.Error() == noNotice:
			o.Note, err = noNotice, nil
		}
		return o, err
	}
	time.Sleep(r.phase)
	at := time.Now()
	if err := fault(); errors.Is(err, errNotHere) {
		o.Note = err.Error()
		return o, nil
	} else if err != nil {
		return o, err
	}
	a, err := r.holder.receive(answers, giveUp)
	if errors.Is(err, errNoAnswer) {
		return o, nil
	}
	o.Learned = msAfter(at, a.At)
	return o, err
}

func (e *environment) playRecovery(ctx context.Context, c contender, s *service, ev event, try int) (o outcome, err error) {
	// The same moment for all contenders, and another one each time: where a lock is renewed, it matters when the last renewal was.
	phase := time.Duration(rand.New(rand.NewPCG(uint64(try), uint64(len(ev.name)))).Int64N(int64(recoveryLease / 3)))
	r := &recoveryRun{e: e, c: c, service: s, name: fmt.Sprintf("recovery:%s:%s:%d", c.name, ev.name, try), open: order{Addr: s.addr}, phase: phase}
	defer r.stop()
	return ev.play(ctx, r)
}

// sentinelOf starts a master with replicas, for the one event that ends it.
func sentinelOf(r *recoveryRun) (*redistest.Sentinel, error) {
	s, err := redistest.StartSentinel()
	if err == nil {
		r.open = order{Sentinels: s.Addrs(), Master: redistest.MasterName}
	}
	return s, err
}
