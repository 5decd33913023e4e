package main

import (
	"errors"
	"time"

	"github.com/relock-go/relock/chaos/internal/history"
	"github.com/relock-go/relock/chaos/internal/scripts"
	"github.com/relock-go/relock/internal/redistest"
)

// severed is a period in which a process, or every one, could not talk to the server.
type severed struct {
	process  int // 0: every one
	from, to int64
}

// sever notes that p, or everybody, cannot talk to the server while f runs.
func (a *act) sever(p *process, f func()) {
	s := severed{from: history.Now()}
	if p != nil {
		s.process = p.number
	}
	f()
	s.to = history.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.round.severed = append(a.round.severed, s)
}

// span is one level of a hold.
type span struct {
	process, worker int
	owner, lock     string
	returned        int64 // of Lock
	called          int64 // of Unlock
	outcome         history.Outcome
	err             string
}

// spans are the levels that were unlocked.
func (r *round) spans() []span {
	type worker struct {
		process, worker int
		lock, owner     string
	}
	open := map[worker][]span{}
	var spans []span
	for _, e := range r.events {
		w := worker{e.Process, e.Worker, e.Lock, e.Owner}
		last := len(open[w]) - 1
		switch {
		case e.Kind == history.LockReturn && e.Outcome == history.OK:
			open[w] = append(open[w], span{process: e.Process, worker: e.Worker, owner: e.Owner, lock: e.Lock, returned: e.At})
		case e.Kind == history.UnlockCall && last >= 0:
			open[w][last].called = e.At
		case e.Kind == history.UnlockReturn && last >= 0:
			s := open[w][last]
			s.outcome, s.err = e.Outcome, e.Err
			spans = append(spans, s)
			open[w] = open[w][:last]
		}
	}
	return spans
}

// lostWhereSevered judges that nobody unlocked successfully what he could not renew for
// longer than its lease.
func lostWhereSevered(r *round) error {
	met := 0
	for _, s := range r.spans() {
		for _, cut := range r.severed {
			over := cut.from + int64(r.work.TTL) // the lease, whenever it was last renewed
			if cut.process != 0 && cut.process != s.process || s.returned > cut.from || cut.to < over {
				continue
			}
			if s.called > over || s.called > cut.from && s.outcome == history.IsLost {
				met++
			}
			if s.called > over && s.outcome == history.OK {
				r.breach("%s (process %d, worker %d) held %s from %s, could not renew it from %s to %s, and unlocked it at %s as if nothing had happened",
					s.owner, s.process, s.worker, s.lock, r.clock(s.returned), r.clock(cut.from), r.clock(cut.to), r.clock(s.called))
			}
		}
	}
	if met == 0 {
		return errors.New("nobody held a lock while it could not be renewed: nothing was tested")
	}
	return nil
}

// someGaveUpInTime makes sure that contexts ended while the server was frozen; I6 judges
// that their calls returned.
func someGaveUpInTime(r *round) error {
	type call struct{ process, op int }
	ends := map[call]int64{}
	met := 0
	for _, e := range r.events {
		id := call{e.Process, e.Op}
		switch {
		case e.Kind == history.LockCall && e.Wait > 0:
			ends[id] = e.At + e.Wait
		case e.Kind == history.LockReturn && e.Outcome == history.Ended:
			for _, cut := range r.severed {
				if end := ends[id]; cut.from < end && end < cut.to {
					met++
				}
			}
		}
	}
	if met == 0 {
		return errors.New("no call gave up while the server was frozen: nothing was tested")
	}
	return nil
}

// nobodyFailed judges that no call failed, but for contexts that ended.
func nobodyFailed(r *round) error { return r.failures(history.LockReturn, history.UnlockReturn) }

// unlocksSucceeded judges that no Unlock failed.
func unlocksSucceeded(r *round) error { return r.failures(history.UnlockReturn) }

func (r *round) failures(of ...history.Kind) error {
	for _, e := range r.events {
		for _, kind := range of {
			if e.Kind == kind && e.Outcome == history.Failed {
				r.breach("%s (process %d, worker %d): at %s %s of %s failed: %s",
					e.Owner, e.Process, e.Worker, r.clock(e.At), kind, e.Lock, e.Err)
			}
		}
	}
	return nil
}

// misuseWasRefused judges what workers were told who misbehaved, and in a crowd how much
// traffic it made.
func misuseWasRefused(r *round) error {
	for _, e := range r.events {
		if e.Kind != history.Misused {
			continue
		}
		r.faults++
		if e.Outcome != history.OK {
			r.breach("%s (process %d, worker %d): at %s %s of %s was answered: %s",
				e.Owner, e.Process, e.Worker, r.clock(e.At), e.Note, e.Lock, e.Err)
		}
	}
	if r.work.Misuse == 0 {
		r.noHerd()
	}
	return nil
}

// noHerd judges that a release wakes one waiter of each process, and no more: that the
// requests to acquire are few for the holds.
func (r *round) noHerd() {
	tries, holds := 0, 0
	for _, e := range r.events {
		if e.Kind == history.LockReturn && e.Outcome == history.OK {
			holds++
		}
	}
	for _, p := range r.processes {
		for _, relay := range p.relays {
			tries += relay.Count(r.scripts[scripts.Acquire].And(redistest.Any))
		}
	}
	polls := r.work.Processes * int(time.Duration(history.Now()-r.began)/r.work.Poll)
	if most := holds + 2*polls + 100; tries > most {
		r.breach("%d waiters sent %d requests to acquire for %d holds: a herd", r.work.Processes*r.work.Workers, tries, holds)
	}
}
