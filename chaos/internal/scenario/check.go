package scenario

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/internal/scripts"
	"github.com/relock-go/relock/chaos/internal/stage"
)

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
func spansOf(events []history.Event) []span {
	type worker struct {
		process, worker int
		lock, owner     string
		read            bool // the two sides of a lock are unlocked in any order
	}
	open := map[worker][]span{}
	var spans []span
	for _, e := range events {
		w := worker{e.Process, e.Worker, e.Lock, e.Owner, e.Read}
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

// lostWhereSevered judges that the Unlock of a hold fails if the hold could not be renewed for longer than its lease.
func lostWhereSevered(seen *stage.Evidence) error {
	met := 0
	for _, s := range spansOf(seen.Events) {
		for _, cut := range seen.Outages {
			over := cut.From + int64(seen.Setup.Work.TTL) // the lease, whenever it was last renewed
			if cut.Process != 0 && cut.Process != s.process || s.returned > cut.From || cut.To < over {
				continue
			}
			if s.called > over || s.called > cut.From && s.outcome == history.IsLost {
				met++
			}
			if s.called > over && s.outcome == history.OK {
				seen.Breach("%s (process %d, worker %d) held %s from %s, could not renew it from %s to %s, and unlocked it at %s as if nothing had happened",
					s.owner, s.process, s.worker, s.lock, seen.Clock(s.returned), seen.Clock(cut.From), seen.Clock(cut.To), seen.Clock(s.called))
			}
		}
	}
	if met == 0 {
		return errors.New("nobody held a lock while it could not be renewed: nothing was tested")
	}
	return nil
}

// someGaveUpInTime checks that contexts ended while the server was frozen. I6 judges that their calls returned.
func someGaveUpInTime(seen *stage.Evidence) error {
	type call struct{ process, op int }
	ends := map[call]int64{}
	met := 0
	for _, e := range seen.Events {
		id := call{e.Process, e.Op}
		switch {
		case e.Kind == history.LockCall && e.Wait > 0:
			ends[id] = e.At + e.Wait
		case e.Kind == history.LockReturn && e.Outcome == history.Ended:
			for _, cut := range seen.Outages {
				if end := ends[id]; cut.From < end && end < cut.To {
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

// noCallFailed judges that no call failed, except by the end of its context.
func noCallFailed(seen *stage.Evidence) error {
	return failures(seen, history.LockReturn, history.UnlockReturn)
}

// unlocksSucceeded judges that no Unlock failed.
func unlocksSucceeded(seen *stage.Evidence) error { return failures(seen, history.UnlockReturn) }

func failures(seen *stage.Evidence, of ...history.Kind) error {
	for _, e := range seen.Events {
		for _, kind := range of {
			if e.Kind == kind && e.Outcome == history.Failed {
				seen.Breach("%s (process %d, worker %d): at %s %s of %s failed: %s",
					e.Owner, e.Process, e.Worker, seen.Clock(e.At), kind, e.Lock, e.Err)
			}
		}
	}
	return nil
}

// misuseWasRefused judges the errors of misuses. For a crowd, which does not misuse the library, it judges the traffic.
func misuseWasRefused(seen *stage.Evidence) error {
	for _, e := range seen.Events {
		if e.Kind != history.Misused {
			continue
		}
		seen.Hits++
		if e.Outcome != history.OK {
			seen.Breach("%s (process %d, worker %d): at %s %s of %s was answered: %s",
				e.Owner, e.Process, e.Worker, seen.Clock(e.At), e.Note, e.Lock, e.Err)
		}
	}
	if seen.Setup.Work.Misuse == 0 {
		noHerd(seen)
	}
	return nil
}

// noHerd judges that a release wakes only one waiter of each process: the number of requests to acquire is small in relation
// to the holds.
func noHerd(seen *stage.Evidence) {
	tries, holds := seen.Sent(scripts.Acquire), 0
	for _, e := range seen.Events {
		if e.Kind == history.LockReturn && e.Outcome == history.OK {
			holds++
		}
	}
	polls := seen.Setup.Work.Processes * int(time.Duration(history.Now()-seen.Began)/seen.Setup.Work.Poll)
	if most := holds + 2*polls + 100; tries > most {
		seen.Breach("%d waiters sent %d requests to acquire for %d holds: a herd", seen.Setup.Work.Processes*seen.Setup.Work.Workers, tries, holds)
	}
}

// getsInLine is the time from the answer that a waiter waits until it has an entry in the line, without faults.
const getsInLine = 50 * time.Millisecond

// inLine judges the order without faults, if each process has one waiter: if a waiter was in the line long before a waiter of
// another process asked, it gets the lock first.
func inLine(seen *stage.Evidence) error {
	type call struct{ process, op int }
	type wait struct{ called, queued, returned int64 }
	waits := map[call]*wait{}
	for _, e := range seen.Events {
		id := call{e.Process, e.Op}
		switch {
		case e.Kind == history.LockCall:
			waits[id] = &wait{called: e.At}
		case e.Kind == history.Queued && waits[id] != nil:
			waits[id].queued = e.At
		case e.Kind == history.LockReturn && e.Outcome == history.OK && e.Depth == 1:
			waits[id].returned = e.At
		}
	}
	met := 0
	for id, first := range waits {
		if first.queued == 0 || first.returned == 0 {
			continue
		}
		met++
		for other, w := range waits {
			if other.process != id.process && w.called > first.queued+int64(getsInLine) && w.returned != 0 && w.returned < first.returned {
				seen.Breach("process %d asked at %s and got the lock at %s, before process %d, which was in the line at %s and got it at %s",
					other.process, seen.Clock(w.called), seen.Clock(w.returned), id.process, seen.Clock(first.queued), seen.Clock(first.returned))
			}
		}
	}
	if met == 0 {
		return errors.New("nobody waited in line: nothing was tested")
	}
	return nil
}

// minorityUnnoticed judges that a worker that came while masters were missing was served as usual: no call failed, and no
// hold was lost. Shared owners are left out, because the other goroutine may have come before.
func minorityUnnoticed(seen *stage.Evidence) error {
	type worker struct {
		process, worker int
		lock            string
	}
	came, depth := map[worker]int64{}, map[worker]int{}
	met := 0
	for _, e := range seen.Events {
		w := worker{e.Process, e.Worker, e.Lock}
		switch {
		case e.Kind == history.LockCall && depth[w] == 0:
			came[w] = e.At
		case e.Kind == history.LockReturn && e.Outcome == history.OK:
			depth[w]++
		case e.Kind == history.UnlockReturn:
			depth[w]--
		}
		if e.Kind != history.LockReturn && e.Kind != history.UnlockReturn || strings.HasSuffix(e.Owner, ".shared") {
			continue
		}
		if !slices.ContainsFunc(seen.Outages, func(cut stage.Outage) bool { return cut.From <= came[w] && e.At <= cut.To }) {
			continue
		}
		met++
		if e.Outcome == history.Failed || e.Outcome == history.IsLost {
			seen.Breach("%s (process %d, worker %d) came at %s, and at %s %s of %s ended thus: %s",
				e.Owner, e.Process, e.Worker, seen.Clock(came[w]), seen.Clock(e.At), e.Kind, e.Lock, e.Err)
		}
	}
	if met == 0 {
		return errors.New("nobody came while masters were missing: nothing was tested")
	}
	return nil
}

// longestDeadlock is how long the deadlocks of [nesting] last at most: the time until a wait is examined, about 2 s, and some
// time for the waits before it.
const longestDeadlock = 6 * time.Second

// deadlocksEnded judges that deadlocks were found: no owner waited for longer, unless others went on.
func deadlocksEnded(seen *stage.Evidence) error {
	found, last := 0, int64(0)
	for _, e := range seen.Events {
		if e.Kind != history.LockReturn {
			continue
		}
		if last > 0 && e.At-last > int64(longestDeadlock) {
			seen.Breach("no Lock returned from %s to %s", seen.Clock(last), seen.Clock(e.At))
		}
		last = max(last, e.At)
		if e.Outcome == history.Deadlocked {
			found++
		}
	}
	if found == 0 {
		return errors.New("there was no deadlock: nothing was tested")
	}
	return nil
}
