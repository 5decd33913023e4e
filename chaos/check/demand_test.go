package check

import "testing"

// A waiter asks again after 167 ms, and the slack is 200 ms.
func TestDemand_IsLearned(t *testing.T) {
	quorum := strict
	quorum.Untokened, quorum.Quorum = true, true
	one := strict
	one.Untokened = true
	holder := func(s *script, watched, wanted int64) {
		s.by(1, "a").locks(0, 1, 0).watches(watched, wanted).holds(100, 600).unlocks(700, 701, ok).lives(2000)
	}
	waiter := func(s *script, lock string) {
		s.by(2, "b").on(lock).waitsInLine(5, 10, 705).unlocks(710, 711, ok).lives(2000)
	}
	runCases(t, []testCase{
		{name: "at once", rules: one, record: func(s *script) {
			holder(s, 2, 12)
			waiter(s, "l")
		}},
		{name: "by the next request of one who waited before", rules: one, record: func(s *script) {
			holder(s, 200, 560)
			waiter(s, "l")
		}},
		{name: "never", rules: one, want: []string{"I6"}, record: func(s *script) {
			holder(s, 2, 0)
			waiter(s, "l")
		}},
		{name: "late", rules: one, want: []string{"I6"}, record: func(s *script) {
			holder(s, 2, 400)
			waiter(s, "l")
		}},
		{name: "late, after a fault", rules: one, record: func(s *script) {
			s.disturbed(-100, -90)
			holder(s, 2, 400)
			waiter(s, "l")
		}},
		{name: "by one who unlocked before the next request", rules: one, record: func(s *script) {
			holder(s, 400, 0)
			waiter(s, "l")
		}},
		{name: "of one who wants two names", rules: one, want: []string{"I6"}, record: func(s *script) {
			holder(s, 2, 0)
			waiter(s, "l,m")
		}},
		{name: "of one who may wait for another name", rules: one, record: func(s *script) {
			holder(s, 2, 0)
			s.by(3, "c").on("m").locks(0, 1, 0).holds(600).unlocks(700, 701, ok).lives(2000)
			waiter(s, "l,m")
		}},
		{name: "of one who may wait for the min hold of another name", rules: one, record: func(s *script) {
			holder(s, 2, 0)
			s.by(3, "c").on("m").keeps(600).locks(0, 1, 0).unlocks(4, 5, ok).lives(2000)
			waiter(s, "l,m")
		}},
		{name: "on a quorum", rules: quorum, record: func(s *script) {
			holder(s, 2, 0)
			waiter(s, "l")
		}},
		{name: "though nobody waits", rules: one, want: []string{"I6"}, record: func(s *script) { holder(s, 2, 300) }},
		{name: "by a try", rules: one, want: []string{"I6"}, record: func(s *script) {
			holder(s, 2, 300)
			s.by(2, "b").tries(290, 299).lives(2000)
		}},
		{name: "of one who has just given up", rules: one, record: func(s *script) {
			holder(s, 2, 300)
			s.by(2, "b").waits(100, 200, 100, ended).lives(2000)
		}},
		{name: "of one who gave up long before", rules: one, want: []string{"I6"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 0).watches(400, 500).holds(600).unlocks(700, 701, ok).lives(2000)
			s.by(2, "b").waits(50, 100, 50, ended).lives(2000)
		}},
	})
}
