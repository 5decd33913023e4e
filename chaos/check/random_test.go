package check

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/chaos/history"
)

// simulation plays a correct lock: one holder at a time, who releases it, or loses it to a
// fault, a pause or a kill, while others wait without success.
type simulation struct {
	*script
	*rand.Rand
	now     int64 // when the lock was free last, in ms
	token   int64
	workers []*actor
	busy    map[*actor]int64 // until when a worker has something else to do
	kills   int
}

func simulate(seed uint64, holds int) *simulation {
	s := &simulation{script: &script{}, Rand: rand.New(rand.NewPCG(seed, 0)), now: 10, busy: map[*actor]int64{}}
	for process := 1; process <= 3; process++ {
		s.populate(process)
	}
	for range holds {
		s.step()
	}
	for _, a := range s.workers {
		a.lives(s.now + 5000)
	}
	return s
}

func (s *simulation) populate(process int) {
	for worker := 1; worker <= 3; worker++ {
		a := s.by(process, fmt.Sprintf("p%d.w%d", process, worker))
		a.worker = worker
		s.workers = append(s.workers, a)
	}
}

// between returns a random number, both bounds included.
func (s *simulation) between(least, most int64) int64 { return least + s.Int64N(most-least+1) }

// idle returns a worker that has nothing to do at t.
func (s *simulation) idle(t int64) *actor {
	for {
		if a := s.workers[s.IntN(len(s.workers))]; s.busy[a] < t {
			return a
		}
		t++
	}
}

// step is one hold, from the wish for it until the lock is free again.
func (s *simulation) step() {
	a := s.idle(s.now)
	called := max(s.busy[a]+1, s.now-s.between(0, 50))
	returned := max(called, s.now) + s.between(1, 5)
	s.token += s.between(1, 9)
	a.depth = 0
	a.locks(called, returned, s.token)
	t := s.body(a, returned)
	switch p := s.IntN(20); {
	case p < 14:
		t = s.unwind(a, t, ok)
		s.now = t
	case p < 16:
		s.outage(a, t)
	case p < 17:
		s.stopped(a, t)
	case p < 18:
		s.killed(a, t)
	default:
		s.joined(a, t)
	}
	s.timesOut()
}

// body is what is done under the lock.
func (s *simulation) body(a *actor, t int64) int64 {
	for range s.IntN(4) {
		t += s.between(1, 5)
		switch s.IntN(4) {
		case 0:
			a.locks(t, t+1, s.token)
			t++
		case 1:
			if a.depth > 1 {
				a.unlocks(t, t+1, ok)
				t++
			}
		case 2:
			a.writes(t, t+1, s.token, ok)
			t++
		default:
			a.counts(t, history.Held, a.depth)
		}
	}
	return t + s.between(1, 3)
}

// unwind unlocks everything, each with the same outcome.
func (s *simulation) unwind(a *actor, t int64, outcome history.Outcome) int64 {
	for a.depth > 0 {
		a.unlocks(t, t+2, outcome)
		t += 3
	}
	s.busy[a] = t
	return t
}

// outage costs the holder the lock: nothing is renewed.
func (s *simulation) outage(a *actor, t int64) {
	over := t + 980
	s.fault(t, over-100)
	a.loses(over + s.between(0, 100))
	s.unwind(a, over+110, isLost)
	s.now = over + 30
}

// stopped is a holder that misses its deadline, and notices that when it goes on.
func (s *simulation) stopped(a *actor, t int64) {
	over := t + 1000
	on := over + s.between(0, 2000)
	s.pause(a.process, t, on)
	a.loses(on + s.between(1, 100))
	s.unwind(a, on+110, isLost)
	for _, other := range s.workers {
		if other.process == a.process {
			s.busy[other] = max(s.busy[other], on)
		}
	}
	s.now = over
}

// killed is a holder whose lease runs out. Another process takes its place.
func (s *simulation) killed(a *actor, t int64) {
	s.kill(a.process, t)
	s.workers = slices.DeleteFunc(s.workers, func(b *actor) bool { return b.process == a.process })
	s.kills++
	s.populate(100 + s.kills)
	for _, b := range s.workers[len(s.workers)-3:] {
		s.busy[b] = t
	}
	s.now = t + 1000
}

// joined is a hold that another worker of the same owner enters and leaves last.
func (s *simulation) joined(a *actor, t int64) {
	b := a.also(9)
	b.locks(t, t+1, s.token).holds(t + 2)
	s.unwind(a, t+3, ok)
	s.now = s.unwind(b, s.busy[a]+s.between(0, 5), ok)
	s.busy[a] = s.now
}

// timesOut is a Lock that gets nothing.
func (s *simulation) timesOut() {
	a := s.idle(s.now)
	from := max(s.busy[a]+1, s.now-s.between(0, 20))
	wait := s.between(1, 20)
	a.waits(from, from+wait+1, wait, ended)
	s.busy[a] = from + wait + 2
}

// corruption spoils a history, if it can at the place chosen, so that an invariant is
// breached for sure.
type corruption struct {
	name  string
	want  []string // any of them
	spoil func(s *simulation, at int) bool
}

// next returns the position of the first event at or after i that suits, or -1.
func (s *simulation) next(i int, suits func(history.Event) bool) int {
	j := slices.IndexFunc(s.events[i:], suits)
	if j < 0 {
		return -1
	}
	return i + j
}

func isOutermost(e history.Event) bool {
	return e.Kind == history.LockReturn && e.Outcome == ok && e.Depth == 1
}

// twoHolds returns the positions of the Lock returns of two holds of different owners, of
// which the first had returned before the second was called.
func (s *simulation) twoHolds(at int) (i, j int) {
	if i = s.next(at, isOutermost); i < 0 {
		return -1, -1
	}
	first := s.events[i]
	j = s.next(i+1, func(e history.Event) bool {
		return isOutermost(e) && e.Owner != first.Owner && s.call(e).At > first.At
	})
	return i, j
}

// call returns the call that e is the return of.
func (s *simulation) call(e history.Event) history.Event {
	return s.events[s.next(0, func(c history.Event) bool {
		return c.Kind == history.LockCall && c.Process == e.Process && c.Op == e.Op
	})]
}

var corruptions = []corruption{
	{"a claim too late", []string{"I1", "I3"}, func(s *simulation, at int) bool {
		i, j := s.twoHolds(at)
		if j < 0 {
			return false
		}
		op := s.events[i].Op
		late := s.events[j].At + 2
		s.events = append(s.events,
			history.Event{At: late, Process: s.events[i].Process, Worker: s.events[i].Worker, Op: op, Owner: s.events[i].Owner, Lock: "l", Kind: history.Held},
			history.Event{At: late + 1, Process: s.events[j].Process, Worker: s.events[j].Worker, Op: s.events[j].Op, Owner: s.events[j].Owner, Lock: "l", Kind: history.Held})
		return true
	}},
	{"tokens swapped", []string{"I2"}, func(s *simulation, at int) bool {
		i, j := s.twoHolds(at)
		if j < 0 {
			return false
		}
		s.events[i].Token, s.events[j].Token = s.events[j].Token, s.events[i].Token
		return true
	}},
	{"a token twice", []string{"I2"}, func(s *simulation, at int) bool {
		i, j := s.twoHolds(at)
		if j < 0 {
			return false
		}
		s.events[j].Token = s.events[i].Token
		return true
	}},
	{"a loss noticed late", []string{"I3"}, func(s *simulation, at int) bool {
		i := s.next(at, func(e history.Event) bool { return e.Kind == history.Lost })
		if i < 0 {
			return false
		}
		lost := s.events[i]
		if !s.runs(lost.Process, lost.At, lost.At+1500*ms) {
			return false
		}
		for k := range s.events { // all that it did afterwards comes later, too
			if e := &s.events[k]; e.Process == lost.Process && e.Worker == lost.Worker && e.At >= lost.At && e.Kind != history.Bye {
				e.At += 1500 * ms
			}
		}
		return true
	}},
	{"a wrong count", []string{"I4"}, func(s *simulation, at int) bool {
		i := s.next(at, func(e history.Event) bool { return e.Kind == history.Held && e.Depth > 0 })
		if i < 0 {
			return false
		}
		s.events[i].Count++
		return true
	}},
	{"an Unlock that finds no hold", []string{"I4"}, func(s *simulation, at int) bool {
		i := s.next(at, func(e history.Event) bool { return e.Kind == history.UnlockReturn && e.Outcome == ok })
		if i < 0 {
			return false
		}
		s.events[i].Outcome = notHeld
		return true
	}},
	{"a waiter forgotten", []string{"I6"}, func(s *simulation, _ int) bool {
		s.workers[0].waits(s.now+500, 0, 0, "")
		s.workers[0].lives(s.now + 20_000)
		return true
	}},
	{"a wait that does not end", []string{"I6"}, func(s *simulation, at int) bool {
		i := s.next(at, func(e history.Event) bool { return e.Kind == history.LockReturn && e.Outcome == ended })
		if i < 0 {
			return false
		}
		back := s.events[i]
		if !s.runs(back.Process, back.At, back.At+4000*ms) {
			return false
		}
		s.events[i].At += 4000 * ms
		return true
	}},
	{"a stale write accepted", []string{"resource"}, func(s *simulation, at int) bool {
		i := s.next(at, func(e history.Event) bool { return e.Kind == history.WriteReturn })
		if i < 0 {
			return false
		}
		call, back := s.events[i], s.events[i]
		call.Kind, call.At, call.Token, call.Outcome = history.WriteCall, back.At+1, back.Token-1, ""
		back.At, back.Token = back.At+2, back.Token-1
		s.events = append(s.events, call, back)
		return true
	}},
	{"two holders", []string{"I1", "porcupine"}, func(s *simulation, at int) bool {
		i := s.next(at, func(e history.Event) bool { return e.Kind == history.Held })
		if i < 0 {
			return false
		}
		t := (s.events[i].At - dawn) / ms
		s.by(999, "intruder").locks(t-1, t-1, s.token+1).holds(t+1).unlocks(t+2, t+3, ok)
		return true
	}},
}

// runs reports whether a process runs all the time.
func (s *simulation) runs(process int, from, to int64) bool {
	w := survey(s.events, strict)
	killed, dead := w.killed[process]
	return !w.wasPaused(process, from, to) && (!dead || killed > to) && to < dawn+s.now*ms
}

func TestRandom_HistoriesOfACorrectLockAreGood(t *testing.T) {
	for seed := range uint64(300) {
		s := simulate(seed, 60)
		require.Empty(t, Run(s.events, strict).Violations, "seed %d", seed)
		slices.SortStableFunc(s.events, func(a, b history.Event) int { return b.Process - a.Process })
		require.Empty(t, Run(s.events, strict).Violations, "seed %d, one process after the other", seed)
	}
}

func TestRandom_EveryCorruptionIsCaught(t *testing.T) {
	for _, c := range corruptions {
		t.Run(c.name, func(t *testing.T) {
			spoilt := 0
			for seed := range uint64(200) {
				s := simulate(seed, 40)
				if !c.spoil(s, s.IntN(len(s.events))) {
					continue
				}
				spoilt++
				got := caught(s.events, strict)
				require.True(t, slices.ContainsFunc(c.want, func(w string) bool { return slices.Contains(got, w) }),
					"seed %d: %v, not %v", seed, got, c.want)
			}
			require.Greater(t, spoilt, 30)
		})
	}
}
