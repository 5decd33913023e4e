package check

import (
	"testing"

	"github.com/relock-go/relock/chaos/history"
)

func quorum() Rules {
	r := strict
	r.Quorum = true
	return r
}

// runsOut has a fixed lease, which was asked for at 0 and granted at 9, and loses it.
func (a *actor) runsOut(at int64) {
	a.fixed = true
	a.locks(0, 9, 1)
	for t := int64(10); t < at; t += 100 {
		a.holds(t)
	}
	a.loses(at).unlocks(at+1, at+2, isLost)
}

func TestCounts_AreExact(t *testing.T) {
	held, counted := history.Held, history.Counted
	runCases(t, []testCase{
		{name: "as they should be", record: func(s *script) {
			a := s.by(1, "a").locks(0, 1, 1).counts(2, held, 1).counts(3, counted, 1)
			a.locks(4, 5, 1).counts(6, held, 2).counts(7, counted, 2)
			a.unlocks(8, 9, ok).counts(10, held, 1).counts(11, counted, 1).unlocks(12, 13, ok)
		}},
		{name: "a late copy changed Redis' count of two levels", record: func(s *script) {
			s.fault(0, 6)
			s.by(1, "a").locks(0, 1, 1).locks(4, 5, 1).counts(7, counted, 1).unlocks(8, 9, ok).unlocks(12, 13, ok)
		}},
		{name: "the library's", want: []string{"I4"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).counts(2, held, 2).unlocks(12, 13, ok)
		}},
		{name: "Redis'", want: []string{"I4"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).locks(4, 5, 1).counts(7, counted, 1).unlocks(8, 9, ok).unlocks(12, 13, ok)
		}},
		{name: "Redis', of a single level whose request was sent again", want: []string{"I4"}, record: func(s *script) {
			s.fault(0, 6)
			s.by(1, "a").locks(0, 1, 1).counts(7, counted, 2).unlocks(8, 9, ok)
		}},
		{name: "a quorum's, of which a node does not answer", rules: quorum(), record: func(s *script) {
			s.fault(0, 6)
			s.by(1, "a").locks(0, 1, 1).counts(7, counted, 2).unlocks(8, 9, ok)
		}},
		{name: "a quorum's, of which all answer", rules: quorum(), want: []string{"I4"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).counts(7, counted, 2).unlocks(8, 9, ok)
		}},
		{name: "after the last Unlock", want: []string{"I4"}, record: func(s *script) {
			a := s.by(1, "a").locks(0, 1, 1)
			a.record(2, history.Event{Kind: history.UnlockCall, Op: 99})
			a.record(3, history.Event{Kind: history.UnlockReturn, Op: 99, Outcome: ok, Count: 1})
		}},
	})
}

func TestUnlock_ReportsTheTruth(t *testing.T) {
	runCases(t, []testCase{
		{name: "Redis could not be reached", record: func(s *script) {
			s.fault(2, 100)
			s.by(1, "a").locks(0, 1, 1).unlocks(5, 90, failed).lives(3000)
			s.by(2, "b").locks(6, 1010, 2).unlocks(1020, 1021, ok)
		}},
		{name: "a loss for a reason", record: func(s *script) {
			s.fault(2, 100)
			s.by(1, "a").locks(0, 1, 1).unlocks(5, 90, isLost).lives(3000)
		}},
		{name: "a fixed lease has run out", record: func(s *script) {
			s.by(1, "a").runsOut(991)
		}},
		{name: "a fixed lease on a quorum has run out, but for what a key may expire earlier", rules: quorum(), record: func(s *script) {
			s.by(1, "a").runsOut(989)
		}},
		{name: "so early elsewhere", want: []string{"I4"}, record: func(s *script) {
			s.by(1, "a").runsOut(989)
		}},
		{name: "nothing is reported where the process did not run", record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).holds(300).loses(991).unlocks(1000, 1001, isLost)
		}},
		{name: "not held", want: []string{"I4"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).holds(2).unlocks(5, 6, notHeld)
		}},
		{name: "success, of a hold that was known to be lost", want: []string{"I4"}, record: func(s *script) {
			s.fault(2, 100)
			s.by(1, "a").locks(0, 1, 1).loses(4).unlocks(5, 6, ok)
		}},
		{name: "success, of nothing", want: []string{"I4"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).unlocks(5, 6, ok).unlocks(7, 8, ok)
		}},
		{name: "a machine too slow for the lease of an entry in line", rules: patient(), record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).lockedInLine(255).holds(2).loses(260).unlocks(265, 270, isLost)
		}},
		{name: "so slow, before that lease has run out", rules: patient(), want: []string{"I4"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).lockedInLine(265).holds(2).loses(260).unlocks(265, 270, isLost)
		}},
		{name: "so slow after a renewal", rules: patient(), want: []string{"I4"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).lockedInLine(255).renews(2).holds(3).loses(260).unlocks(265, 270, isLost)
		}},
		{name: "lost, for no reason", want: []string{"I4"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).holds(2, 3, 4).unlocks(5, 6, isLost)
		}},
		{name: "lost, for no reason, before a fixed lease has run out", want: []string{"I4"}, record: func(s *script) {
			s.by(1, "a").runsOut(600)
		}},
		{name: "lost by a fault that is no reason", rules: lossless(), want: []string{"I4"}, record: func(s *script) {
			s.fault(2, 100)
			s.by(1, "a").locks(0, 1, 1).holds(50, 100).loses(150).unlocks(155, 160, isLost)
		}},
		{name: "a misuse was not reported", want: []string{"I4"}, record: func(s *script) {
			s.by(1, "a").record(1, history.Event{Kind: history.Misused, Outcome: failed, Err: "nil"})
		}},
	})
}

func TestLeftovers_NothingIsLeft(t *testing.T) {
	runCases(t, []testCase{
		{name: "a key", want: []string{"I5"}, record: func(s *script) {
			s.add(1, history.Event{Kind: history.Left, Note: "a key"})
		}},
	})
}
