package check

import (
	"testing"

	"github.com/relock-go/relock/chaos/history"
)

// waitsInLine is a Lock that was answered at queued that it waits.
func (a *actor) waitsInLine(called, queued, returned int64) *actor {
	a.ops++
	a.op, a.depth = a.ops, 1
	a.record(called, history.Event{Kind: history.LockCall, Op: a.op})
	a.record(queued, history.Event{Kind: history.Queued, Op: a.op})
	a.record(returned, history.Event{Kind: history.LockReturn, Op: a.op, Outcome: history.OK, Depth: 1, Until: dawn + returned*ms + 990*ms})
	return a
}

func TestTurns_OfProcessesFollowTheLine(t *testing.T) {
	inLine := strict
	inLine.Untokened, inLine.InLine = true, []string{"l"}
	unlined := inLine
	unlined.InLine = nil
	// b waits from 10 on and is served at 800; a holds the lock before.
	patient := func(s *script) {
		s.by(1, "a").locks(0, 1, 0).holds(595).unlocks(600, 601, ok).lives(2000)
		s.by(2, "b").waitsInLine(5, 10, 800).unlocks(810, 811, ok).lives(2000)
	}
	overtaking := func(s *script, process int, called int64) {
		s.by(process, "c").locks(called, 700, 0).unlocks(710, 711, ok).lives(2000)
	}
	runCases(t, []testCase{
		{name: "one after the other", rules: inLine, record: func(s *script) {
			patient(s)
			s.by(3, "c").waitsInLine(300, 305, 900).unlocks(910, 911, ok).lives(2000)
		}},
		{name: "overtaken by one who came later", rules: inLine, want: []string{"I7"}, record: func(s *script) {
			patient(s)
			overtaking(s, 3, 605)
		}},
		{name: "of a name without a line", rules: unlined, record: func(s *script) {
			patient(s)
			overtaking(s, 3, 605)
		}},
		{name: "by one who asked before the other had its place", rules: inLine, record: func(s *script) {
			patient(s)
			overtaking(s, 3, 100)
		}},
		{name: "by one of the same process", rules: inLine, record: func(s *script) {
			patient(s)
			s.by(2, "b2").also(2).locks(605, 700, 0).unlocks(710, 711, ok).lives(2000)
		}},
		{name: "by one whose process held the lock meanwhile", rules: inLine, record: func(s *script) {
			patient(s)
			s.by(1, "a2").also(2).locks(550, 700, 0).unlocks(710, 711, ok)
		}},
		{name: "by one whose process waited meanwhile", rules: inLine, record: func(s *script) {
			patient(s)
			s.by(3, "d").also(2).waits(8, 400, 392, ended)
			overtaking(s, 3, 605)
		}},
		{name: "after the own process had its turn", rules: inLine, record: func(s *script) {
			patient(s)
			s.by(2, "b2").also(2).locks(2, 605, 0).unlocks(610, 611, ok).lives(2000)
			overtaking(s, 3, 650)
		}},
		{name: "where names are wanted together", rules: inLine, record: func(s *script) {
			patient(s)
			overtaking(s, 3, 605)
			s.by(4, "m").on("l,m").waits(0, 100, 100, ended).lives(2000)
		}},
	})
}
