package check

import "testing"

func TestWaiting_EverybodyIsServed(t *testing.T) {
	// A history of holds that keep the lock in use from a time to another, without a break.
	busy := func(s *script, from, to, token int64) {
		a := s.by(9, "busy")
		for at := from; at < to; at += 100 {
			token++
			a.locks(at, at+1, token).holds(at+97).unlocks(at+98, at+99, ok)
		}
	}
	const wait = 5000
	runCases(t, []testCase{
		{name: "within a TTL and a poll", record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).holds(100)
			s.kill(1, 101)
			s.by(2, "b").locks(5, 1540, 2).unlocks(1550, 1551, ok).lives(9000)
		}},
		{name: "while others hold it", record: func(s *script) {
			busy(s, 0, 6000, 10)
			s.by(2, "b").waits(5, 5005, wait, ended).lives(9000)
		}},
		{name: "while it is renewed by a holder who says nothing, and then loses it", record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).renews(900).renews(1800).renews(2700).loses(3690).unlocks(3700, 3701, isLost)
			s.by(2, "b").locks(5, 4130, 2).unlocks(4135, 4136, ok).lives(9000)
		}},
		{name: "late after the last renewal", want: []string{"I6"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).renews(900).renews(1800).renews(2700).loses(3690).unlocks(3700, 3701, isLost)
			s.by(2, "b").locks(5, 4150, 2).unlocks(4160, 4161, ok).lives(9000)
		}},
		{name: "not while a fault is in force, and a TTL longer", record: func(s *script) {
			s.fault(0, 3000)
			s.by(2, "b").waits(5, 5005, wait, ended).lives(9000)
		}},
		{name: "not while it is stopped", record: func(s *script) {
			s.pause(2, 6, 4000)
			s.by(2, "b").waits(5, 5005, wait, ended).lives(9000)
		}},
		{name: "later, if others were stopped with it", record: func(s *script) {
			s.kill(3, 10).kill(4, 1000)
			s.by(2, "b").locks(5, 3000, 2).unlocks(3010, 3011, ok).lives(9000)
		}},
		{name: "later, if another was killed shortly before", record: func(s *script) {
			s.kill(3, 10)
			s.by(2, "b").locks(1005, 3400, 2).unlocks(3410, 3411, ok).lives(9000)
		}},
		{name: "later, if another was stopped shortly before", record: func(s *script) {
			s.pause(3, 10, 20)
			s.by(2, "b").locks(1005, 3400, 2).unlocks(3410, 3411, ok).lives(9000)
		}},
		{name: "not later, if another was stopped long before", want: []string{"I6"}, record: func(s *script) {
			s.pause(3, 10, 20)
			s.by(2, "b").locks(1015, 3400, 2).unlocks(3410, 3411, ok).lives(9000)
		}},
		{name: "not later, if another was killed long before", want: []string{"I6"}, record: func(s *script) {
			s.kill(3, 10)
			s.by(2, "b").locks(1015, 3400, 2).unlocks(3410, 3411, ok).lives(9000)
		}},
		{name: "not at all", want: []string{"I6"}, record: func(s *script) {
			s.by(2, "b").waits(5, 5005, wait, ended).lives(9000)
		}},
		{name: "late", want: []string{"I6"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).unlocks(100, 101, ok)
			s.by(2, "b").locks(5, 1560, 2).unlocks(1570, 1571, ok).lives(9000)
		}},
		{name: "in time, but not at once", rules: prompt(), want: []string{"I6"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).unlocks(100, 101, ok)
			s.by(2, "b").locks(5, 400, 2).unlocks(410, 411, ok).lives(9000)
		}},
		{name: "at once", rules: prompt(), record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).unlocks(100, 101, ok)
			s.by(2, "b").locks(5, 290, 2).unlocks(295, 296, ok).lives(9000)
		}},
		{name: "late after a fault", want: []string{"I6"}, record: func(s *script) {
			s.fault(0, 1000)
			s.by(2, "b").locks(5, 3500, 2).unlocks(3510, 3511, ok).lives(9000)
		}},
		{name: "late, and a process was killed", want: []string{"I6"}, record: func(s *script) {
			s.kill(3, 10)
			s.by(2, "b").locks(5, 3000, 2).unlocks(3010, 3011, ok).lives(9000)
		}},
		{name: "never, to the end", want: []string{"I6"}, record: func(s *script) {
			s.by(2, "b").waits(5, 0, 0, "").lives(9000)
		}},
		{name: "while an owner has another lock", want: []string{"I6"}, record: func(s *script) {
			busy(s, 0, 6000, 10)
			s.by(2, "b").on("m").waits(5, 5005, wait, ended).lives(9000)
		}},
	})
}

func TestWaiting_EndsWhenItIsOver(t *testing.T) {
	runCases(t, []testCase{
		{name: "a little later", record: func(s *script) {
			s.fault(0, 1000)
			s.by(2, "b").waits(5, 305, 150, ended).lives(9000)
		}},
		{name: "when the process goes on", record: func(s *script) {
			s.pause(2, 100, 1000)
			s.by(2, "b").waits(5, 1190, 150, ended).lives(9000)
		}},
		{name: "when the process gets to run, long after it may go on", record: func(s *script) {
			s.pause(2, 100, 500)
			s.by(2, "b").waits(5, 1490, 150, ended).beats(0, 80).beats(1400, 1600).lives(9000)
		}},
		{name: "long after the process goes on, though it runs", want: []string{"I6"}, record: func(s *script) {
			s.pause(2, 100, 500)
			s.by(2, "b").waits(5, 1490, 150, ended).beats(0, 80).beats(500, 1600).lives(9000)
		}},
		{name: "when the process goes on after a pause, before which it did not run", record: func(s *script) {
			s.pause(2, 700, 1350)
			s.by(2, "b").waits(5, 1400, 150, ended).beats(0, 50).beats(1360, 1450).lives(9000)
		}},
		{name: "not later, if it ran until shortly before the pause", want: []string{"I6"}, record: func(s *script) {
			s.pause(2, 700, 1350)
			s.by(2, "b").waits(5, 1400, 150, ended).beats(0, 600).beats(1360, 1450).lives(9000)
		}},
		{name: "when the process goes on after two stalls in a row", record: func(s *script) {
			s.by(2, "b").waits(5, 1190, 150, ended).beats(0, 50).beats(600, 600).beats(1000, 1050).lives(9000)
		}},
		{name: "the process was killed before", record: func(s *script) {
			s.by(2, "b").waits(5, 0, 150, ended).lives(50)
			s.kill(2, 160)
		}},
		{name: "too late, whatever the fault", want: []string{"I6"}, record: func(s *script) {
			s.fault(0, 1000)
			s.by(2, "b").waits(5, 365, 150, ended).lives(9000)
		}},
		{name: "too late after the process went on", want: []string{"I6"}, record: func(s *script) {
			s.pause(2, 100, 1000)
			s.by(2, "b").waits(5, 1210, 150, ended).lives(9000)
		}},
		{name: "never", want: []string{"I6"}, record: func(s *script) {
			s.fault(0, 9000)
			s.by(2, "b").waits(5, 0, 150, ended).lives(9000)
		}},
	})
}
