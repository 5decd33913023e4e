package check

import (
	"testing"

	"github.com/relock-go/relock/chaos/history"
)

// waitsInOrder is a Lock of a fair lock that was answered at queued that it waits; 0: it was not.
func (a *actor) waitsInOrder(called, queued, returned, token int64) *actor {
	a.ops++
	a.op, a.depth = a.ops, 1
	a.record(called, history.Event{Kind: history.LockCall, Op: a.op, Fair: true})
	if queued != 0 {
		a.record(queued, history.Event{Kind: history.Queued, Op: a.op})
	}
	a.record(returned, history.Event{Kind: history.LockReturn, Op: a.op, Outcome: history.OK, Token: token, Depth: 1,
		Until: dawn + returned*ms + 990*ms})
	return a
}

func TestOrder_FairLocksAreServedInOrder(t *testing.T) {
	// b waits from 10 on and is served at 300; others hold the lock before and after.
	patient := func(s *script, token int64) {
		s.by(1, "a").locks(0, 1, 1).holds(95).unlocks(100, 101, ok).lives(2000)
		s.by(2, "b").waitsInOrder(5, 10, 300, token).unlocks(310, 311, ok).lives(2000)
	}
	hasty := func(s *script, called, token int64) {
		s.by(3, "c").waitsInOrder(called, 0, 200, token).unlocks(210, 211, ok).lives(2000)
	}
	// brief is patient with a lease of so many milliseconds, after whom one is served that came later.
	brief := func(s *script, lease int64) {
		patient(s, 3)
		for i, e := range s.events {
			if e.Kind == history.LockReturn && e.Process == 2 {
				s.events[i].Until = e.At + lease*ms
			}
		}
		hasty(s, 105, 2)
	}
	runCases(t, []testCase{
		{name: "one after the other", record: func(s *script) {
			patient(s, 2)
			s.by(3, "c").waitsInOrder(11, 15, 400, 3).unlocks(410, 411, ok).lives(2000)
		}},
		{name: "who asked before the other was known to wait may have come first", record: func(s *script) {
			patient(s, 3)
			hasty(s, 9, 2)
		}},
		{name: "one that is not fair may overtake", record: func(s *script) {
			patient(s, 3)
			s.by(3, "c").locks(105, 200, 2).unlocks(210, 211, ok).lives(2000)
		}},
		{name: "not while a fault is in force", record: func(s *script) {
			s.fault(20, 30)
			patient(s, 3)
			hasty(s, 105, 2)
		}},
		{name: "not while a disturbance lasts", record: func(s *script) {
			s.disturbed(-1100, 320)
			patient(s, 3)
			hasty(s, 105, 2)
		}},
		{name: "also a TTL after it", want: []string{"I7"}, record: func(s *script) {
			s.disturbed(-1100, -1050)
			patient(s, 3)
			hasty(s, 105, 2)
		}},
		{name: "not while the waiter's process is not subscribed", record: func(s *script) {
			s.noMessages(2, -1200, 30)
			patient(s, 3)
			hasty(s, 105, 2)
		}},
		{name: "also while another process is not subscribed", want: []string{"I7"}, record: func(s *script) {
			s.noMessages(3, -1200, 30)
			patient(s, 3)
			hasty(s, 105, 2)
		}},
		{name: "not while the waiter is stopped", record: func(s *script) {
			s.pause(2, 20, 30)
			patient(s, 3)
			hasty(s, 105, 2)
		}},
		{name: "not while the machine lets the waiter's process wait for so long that its place may be over", record: func(s *script) {
			s.by(2, "b").beats(0, 20).beats(60, 300)
			brief(s, 150)
		}},
		{name: "also while it runs all the time", want: []string{"I7"}, record: func(s *script) {
			s.by(2, "b").beats(0, 300)
			brief(s, 150)
		}},
		{name: "also while it lets it wait for as long, and its place lives for longer", want: []string{"I7"}, record: func(s *script) {
			s.by(2, "b").beats(0, 20).beats(100, 300)
			brief(s, 990)
		}},
		{name: "not while it lets it wait for longer than a sixth of any place", record: func(s *script) {
			s.by(2, "b").beats(0, 20).beats(110, 300)
			brief(s, 990)
		}},
		{name: "also while another one is stopped", want: []string{"I7"}, record: func(s *script) {
			s.pause(1, 500, 700)
			patient(s, 3)
			hasty(s, 105, 2)
		}},
		{name: "overtaken by one who came later", want: []string{"I7"}, record: func(s *script) {
			patient(s, 3)
			hasty(s, 11, 2)
		}},
		{name: "overtaken by one of two", want: []string{"I7"}, record: func(s *script) {
			patient(s, 4)
			s.by(4, "d").waitsInOrder(6, 12, 150, 2).unlocks(160, 161, ok).lives(2000)
			hasty(s, 105, 3)
		}},
	})
}
