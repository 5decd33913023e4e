package check

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/chaos/history"
)

const (
	ok      = history.OK
	isLost  = history.IsLost
	ended   = history.Ended
	failed  = history.Failed
	closed  = history.Closed
	taken   = history.Taken
	refused = history.Refused
	notHeld = history.NotHeld
)

func splitBrain() Rules {
	r := strict
	r.SplitBrain = true
	return r
}

func lossless() Rules {
	r := strict
	r.Lossless = true
	return r
}

// patient has more slack than the lease of an entry in line leaves.
func patient() Rules {
	r := lossless()
	r.Slack = r.TTL / 2
	return r
}

func prompt() Rules {
	r := strict
	r.Poll, r.Prompt = 400*time.Millisecond, true
	return r
}

// caught returns the invariants that a history breaches, each once.
func caught(events []history.Event, rules Rules) []string {
	by := make(map[string]bool)
	for _, v := range Run(events, rules).Violations {
		by[v.Invariant] = true
	}
	return slices.Sorted(maps.Keys(by))
}

// testCase is a history and what is to be found out about it.
type testCase struct {
	name   string
	rules  Rules
	record func(s *script)
	want   []string // invariants that are breached; none: the history is good
}

func runCases(t *testing.T, cases []testCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := &script{}
			c.record(s)
			if c.rules.TTL == 0 {
				c.rules = strict
			}
			report := Run(s.events, c.rules)
			got := caught(s.events, c.rules)
			if len(c.want) == 0 {
				require.Empty(t, got, "%v", report.Violations)
				return
			}
			for _, want := range c.want {
				require.Contains(t, got, want, "%v", report.Violations)
			}
		})
	}
}

func TestExclusion_HoldsOfDifferentOwnersDoNotOverlap(t *testing.T) {
	runCases(t, []testCase{
		{name: "one after the other", record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).holds(2, 9).unlocks(10, 12, ok)
			s.by(2, "b").locks(5, 11, 2).holds(13).unlocks(14, 15, ok)
		}},
		{name: "the first claims up to the moment in which the second has it", record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).holds(10).unlocks(10, 30, ok)
			s.by(2, "b").locks(5, 11, 2).holds(12).unlocks(14, 15, ok)
		}},
		{name: "a process that was stopped claims nothing when it goes on", record: func(s *script) {
			s.pause(1, 5, 3000)
			s.by(1, "a").locks(0, 1, 1).holds(4).loses(3001).unlocks(3002, 3003, isLost)
			s.by(2, "b").locks(2, 1100, 2).holds(1200).unlocks(1300, 1301, ok)
		}},
		{name: "on different locks", record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).holds(20).unlocks(21, 22, ok)
			s.by(2, "b").on("m").locks(5, 11, 2).holds(12).unlocks(14, 15, ok)
		}},
		{name: "two workers who share an owner", record: func(s *script) {
			a := s.by(1, "a")
			a.locks(0, 1, 1).holds(20)
			a.also(2).locks(2, 3, 1).holds(18).unlocks(19, 20, ok)
			a.unlocks(21, 22, ok)
		}},
		{name: "the first still claims after the second", want: []string{"I1"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).holds(12).unlocks(13, 14, ok)
			s.by(2, "b").locks(5, 11, 2).holds(13).unlocks(14, 15, ok)
		}},
		{name: "the second comes after the min hold of the first", record: func(s *script) {
			s.by(1, "a").keeps(50).locks(0, 5, 1).unlocks(10, 12, ok)
			s.by(2, "b").locks(5, 51, 2).holds(52).unlocks(54, 55, ok)
		}},
		{name: "a hold that was lost keeps nothing", record: func(s *script) {
			s.fault(6, 20)
			s.by(1, "a").keeps(50).locks(0, 5, 1).unlocks(10, 12, isLost)
			s.by(2, "b").locks(5, 30, 2).holds(31).unlocks(54, 55, ok)
		}},
		{name: "a wait for the end of a min hold", record: func(s *script) {
			s.by(1, "a").keeps(5000).locks(0, 5, 1).unlocks(10, 12, ok)
			s.by(2, "b").locks(5, 5100, 2).holds(5101).unlocks(5102, 5103, ok)
		}},
		{name: "the second comes within the min hold of the first", want: []string{"I1"}, record: func(s *script) {
			s.by(1, "a").keeps(50).locks(0, 5, 1).unlocks(10, 12, ok)
			s.by(2, "b").locks(5, 49, 2).holds(50).unlocks(54, 55, ok)
		}},
		{name: "a wait for the end of the min hold of a nested Lock", record: func(s *script) {
			s.by(1, "a").locks(0, 5, 1).keeps(5000).locks(100, 105, 1).unlocks(110, 111, ok).unlocks(112, 113, ok)
			s.by(2, "b").locks(5, 5200, 2).holds(5201).unlocks(5202, 5203, ok)
		}},
		{name: "the second comes within the min hold of a nested Lock", want: []string{"I1"}, record: func(s *script) {
			s.by(1, "a").locks(0, 5, 1).keeps(50).locks(20, 21, 1).unlocks(22, 23, ok).unlocks(24, 25, ok)
			s.by(2, "b").locks(5, 60, 2).holds(61).unlocks(64, 65, ok)
		}},
		{name: "one inside the other", want: []string{"I1", "porcupine"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).holds(40).unlocks(41, 42, ok)
			s.by(2, "b").locks(5, 11, 2).holds(13).unlocks(14, 15, ok)
		}},
		{name: "an Unlock that succeeded claims, too", want: []string{"I1"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).unlocks(20, 21, ok)
			s.by(2, "b").locks(5, 11, 2).holds(13).unlocks(14, 15, ok)
		}},
		{name: "a process that was stopped believes that it still holds", want: []string{"I1"}, record: func(s *script) {
			s.pause(1, 5, 1250)
			s.by(1, "a").locks(0, 1, 1).holds(4, 1260).unlocks(1261, 1262, isLost)
			s.by(2, "b").locks(2, 1100, 2).holds(1300).unlocks(1301, 1302, ok)
		}},
		{name: "a MultiMutex excludes each of its names", want: []string{"I1"}, record: func(s *script) {
			s.by(1, "a").on("l,m").locks(0, 1, 1).holds(20).unlocks(21, 22, ok)
			s.by(2, "b").on("m").locks(5, 11, 2).holds(13).unlocks(14, 15, ok)
		}},
		{name: "the third overlaps the first, past a second that is short", want: []string{"I1"}, record: func(s *script) {
			a := s.by(1, "a")
			a.locks(0, 1, 5).holds(30).unlocks(31, 32, ok)
			a.also(2).locks(2, 3, 5).unlocks(4, 5, ok)
			s.by(2, "b").locks(5, 11, 6).holds(13).unlocks(14, 15, ok)
		}},
	})
}

func TestExclusion_AfterLostDataHoldsMayOverlapUntilTheNextRenewal(t *testing.T) {
	overlap := func(s *script, from, until, token int64) {
		s.by(1, "a").locks(0, 1, 1).renews(330).renews(660).renews(990).renews(1320).holds(until).
			loses(until+1).unlocks(until+2, until+3, isLost)
		s.by(2, "b").locks(5, from, token).holds(until).unlocks(until+1, until+2, ok)
	}
	runCases(t, []testCase{
		{name: "until it is noticed", rules: splitBrain(), record: func(s *script) { s.dataLoss(5); overlap(s, 11, 330, 2) }},
		{name: "while the fault lasts", rules: splitBrain(), record: func(s *script) { s.fault(4, 800).dataLoss(5); overlap(s, 900, 1350, 2) }},
		{name: "until a lease that is not renewed is over", rules: splitBrain(), record: func(s *script) {
			s.dataLoss(5)
			a := s.by(1, "a")
			a.fixed = true
			a.locks(0, 1, 1).holds(900).loses(991).unlocks(992, 993, isLost)
			s.by(2, "b").locks(5, 11, 2).holds(950).unlocks(951, 952, ok)
		}},
		{name: "until the lease is over, where the next renewal is not answered", rules: splitBrain(), record: func(s *script) {
			s.dataLoss(5).fault(100, 800)
			overlap(s, 11, 700, 2)
		}},
		{name: "until the lease is over, where several faults in a row delay the next renewal", rules: splitBrain(), record: func(s *script) {
			s.dataLoss(5).fault(100, 180).fault(300, 380)
			overlap(s, 11, 700, 2)
		}},
		{name: "until it is noticed by the newer one, which followed a hold that Redis had forgotten", rules: splitBrain(), record: func(s *script) {
			s.dataLoss(5).fault(1400, 2600)
			s.by(2, "b").locks(6, 11, 2).renews(330).renews(660).renews(990).renews(1320).holds(1390).loses(2310).unlocks(2311, 2312, isLost)
			s.by(1, "a").locks(20, 100, 0).loses(110).unlocks(111, 112, isLost)
		}},
		{name: "until it is noticed by the newer one, which followed such a hold, and whose Unlock had no answer", rules: splitBrain(), record: func(s *script) {
			s.dataLoss(5).fault(1400, 2600)
			s.by(2, "b").locks(6, 11, 2).renews(330).renews(660).renews(990).renews(1320).holds(1390).loses(2310).unlocks(2311, 2312, isLost)
			s.by(1, "a").locks(20, 100, 0).unlocks(110, 1000, failed)
		}},
		{name: "until a replica brings back the lock that was lost", rules: splitBrain(), record: func(s *script) {
			s.dataLoss(5)
			s.by(1, "a").locks(0, 1, 1).holds(100).loses(700).unlocks(701, 702, isLost)
			s.by(2, "b").locks(6, 11, 2).unlocks(50, 51, ok)
			s.dataLoss(300)
		}},
		{name: "for longer than it takes to notice, though the newer one has given the lock back", rules: splitBrain(), want: []string{"I3"}, record: func(s *script) {
			s.dataLoss(5)
			s.by(1, "a").locks(0, 1, 1).holds(100).loses(700).unlocks(701, 702, isLost).lives(2000)
			s.by(2, "b").locks(6, 11, 2).unlocks(50, 51, ok)
		}},
		{name: "until the former master takes no more writes", rules: splitBrain(), record: func(s *script) {
			s.add(5, history.Event{Kind: history.DataLoss, Op: 1})
			overlap(s, 500, 1350, 2)
			s.add(1400, history.Event{Kind: history.DataLoss, Op: 1})
		}},
		{name: "not between two losses of several faults", rules: splitBrain(), want: []string{"I1"}, record: func(s *script) {
			s.add(5, history.Event{Kind: history.DataLoss, Op: 1})
			overlap(s, 500, 1350, 2)
			s.add(1400, history.Event{Kind: history.DataLoss, Op: 2})
		}},
		{name: "where it cannot happen", want: []string{"I1"}, record: func(s *script) { s.dataLoss(5); overlap(s, 11, 330, 2) }},
		{name: "before data was lost", rules: splitBrain(), want: []string{"I1"}, record: func(s *script) { s.dataLoss(12); overlap(s, 11, 330, 2) }},
		{name: "for longer than it takes to renew", rules: splitBrain(), want: []string{"I1"}, record: func(s *script) { s.dataLoss(5); overlap(s, 11, 550, 2) }},
		{name: "for longer than a lease", rules: splitBrain(), want: []string{"I1"}, record: func(s *script) { s.fault(4, 800).dataLoss(5); overlap(s, 900, 2050, 2) }},
		{name: "with the same token", rules: splitBrain(), want: []string{"I2"}, record: func(s *script) { s.dataLoss(5); overlap(s, 11, 330, 1) }},
	})
	s := &script{}
	s.dataLoss(5)
	overlap(s, 11, 330, 2)
	require.Equal(t, 1, Run(s.events, splitBrain()).Overlaps)
}

func TestLoss_IsReportedToHolders(t *testing.T) {
	runCases(t, []testCase{
		{name: "inside it", record: func(s *script) {
			s.fault(5, 1100)
			s.by(1, "a").locks(0, 1, 1).loses(991).waits(1000, 1001, 0, isLost).unlocks(1002, 1003, isLost)
		}},
		{name: "after its end", want: []string{"I3"}, record: func(s *script) {
			s.fault(5, 1100)
			s.by(1, "a").locks(0, 1, 1).loses(991).unlocks(1002, 1003, isLost).waits(1004, 1005, 0, isLost)
		}},
		{name: "on another lock", want: []string{"I3"}, record: func(s *script) {
			s.fault(5, 1100)
			a := s.by(1, "a").locks(0, 1, 1).loses(991)
			a.on("m").waits(1000, 1001, 0, isLost)
			a.unlocks(1002, 1003, isLost)
		}},
		{name: "on one of several", record: func(s *script) {
			s.fault(5, 1100)
			a := s.by(1, "a").locks(0, 1, 1).loses(991)
			a.on("l,m").waits(1000, 1001, 0, isLost)
			a.unlocks(1002, 1003, isLost)
		}},
	})
}

func TestTokens_Rise(t *testing.T) {
	runCases(t, []testCase{
		{name: "locks that were asked for at once are in any order", record: func(s *script) {
			s.by(1, "a").locks(0, 10, 7).unlocks(11, 12, ok)
			s.by(2, "b").locks(0, 5, 3).unlocks(6, 7, ok)
		}},
		{name: "a re-entry has the token of its hold", record: func(s *script) {
			s.by(1, "a").locks(0, 1, 7).locks(2, 3, 7).unlocks(4, 5, ok).unlocks(6, 7, ok)
		}},
		{name: "a hold that was lost at once may have none", record: func(s *script) {
			s.by(1, "a").locks(0, 1, 0).loses(2).unlocks(3, 4, isLost)
			s.fault(0, 10)
		}},
		{name: "an owner that is shared keeps its hold from level to level", record: func(s *script) {
			a := s.by(1, "a")
			a.also(2).locks(0, 5, 7).unlocks(30, 31, ok)
			a.locks(1, 6, 7).unlocks(7, 8, ok)
			a.locks(10, 11, 7).unlocks(12, 13, ok)
		}},
		{name: "lower", want: []string{"I2", "porcupine"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 7).unlocks(2, 3, ok)
			s.by(2, "b").locks(4, 5, 3).unlocks(6, 7, ok)
		}},
		{name: "lower, with others between", want: []string{"I2"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 7).unlocks(2, 3, ok)
			s.by(3, "c").locks(0, 6, 8).unlocks(7, 8, ok)
			s.by(2, "b").locks(10, 11, 3).unlocks(12, 13, ok)
		}},
		{name: "the same, of another owner", want: []string{"I2", "porcupine"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 7).unlocks(2, 3, ok)
			s.by(2, "b").locks(0, 5, 7).unlocks(6, 7, ok)
		}},
		{name: "the same, of the same owner's next hold", want: []string{"I2"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 7).unlocks(2, 3, ok).locks(4, 5, 7).unlocks(6, 7, ok)
		}},
		{name: "the same, of a shared owner's next hold", want: []string{"I2"}, record: func(s *script) {
			a := s.by(1, "a")
			a.locks(0, 1, 7).unlocks(2, 3, ok)
			a.also(2).locks(4, 5, 7).unlocks(6, 7, ok)
		}},
		{name: "another on re-entry", want: []string{"I2"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 7).locks(2, 3, 8).unlocks(4, 5, ok).unlocks(6, 7, ok)
		}},
		{name: "none", want: []string{"I2"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 0).holds(2).unlocks(3, 4, ok)
		}},
		{name: "lower, though data was lost", rules: splitBrain(), want: []string{"I2"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 7).unlocks(2, 3, ok)
			s.dataLoss(4)
			s.by(2, "b").locks(5, 6, 3).unlocks(7, 8, ok)
		}},
		{name: "a MultiMutex has one above all of its names'", want: []string{"I2"}, record: func(s *script) {
			s.by(1, "a").on("m").locks(0, 1, 7).unlocks(2, 3, ok)
			s.by(2, "b").on("l,m").locks(5, 6, 3).unlocks(7, 8, ok)
		}},
	})
}

func TestLoss_IsNoticedInTime(t *testing.T) {
	untokened := splitBrain()
	untokened.Untokened = true
	runCases(t, []testCase{
		{name: "by the deadline", record: func(s *script) {
			s.fault(2, 1500)
			s.by(1, "a").locks(0, 1, 1).loses(991).unlocks(992, 993, isLost).lives(3000)
		}},
		{name: "a little later, on a busy machine", record: func(s *script) {
			s.fault(2, 1500)
			s.by(1, "a").locks(0, 1, 1).loses(1190).unlocks(1191, 1192, isLost).lives(3000)
		}},
		{name: "when a process that was stopped goes on", record: func(s *script) {
			s.pause(1, 500, 5000)
			s.by(1, "a").locks(0, 1, 1).loses(5150).unlocks(5160, 5170, isLost).lives(9000)
		}},
		{name: "when a process that did not get to run does", record: func(s *script) {
			s.fault(2, 1500)
			s.by(1, "a").locks(0, 1, 1).beats(0, 900).beats(1300, 3000).loses(1490).unlocks(1491, 1492, isLost)
		}},
		{name: "not by a process that runs, for too long", want: []string{"I3"}, record: func(s *script) {
			s.fault(2, 1500)
			s.by(1, "a").locks(0, 1, 1).beats(0, 3000).loses(1490).unlocks(1491, 1492, isLost)
		}},
		{name: "never, and it was not unlocked", want: []string{"I3"}, record: func(s *script) {
			s.fault(2, 1500)
			s.by(1, "a").locks(0, 1, 1).lives(3000)
		}},
		{name: "by another worker that shares it", record: func(s *script) {
			s.fault(2, 1500)
			a := s.by(1, "a")
			a.locks(0, 1, 1)
			a.also(2).locks(2, 3, 1).loses(993).unlocks(994, 995, isLost)
			a.unlocks(1500, 1501, isLost).lives(3000)
		}},
		{name: "never, by a process that was killed", record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).holds(500)
			s.kill(1, 501)
			s.by(2, "b").locks(2, 1002, 2).unlocks(1010, 1011, ok).lives(5000)
		}},
		{name: "renewed in time", record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).renews(330).renews(1200).holds(2000).unlocks(2001, 2002, ok)
		}},
		{name: "too late", want: []string{"I3"}, record: func(s *script) {
			s.fault(2, 1500)
			s.by(1, "a").locks(0, 1, 1).loses(1200).unlocks(1201, 1202, isLost).lives(3000)
		}},
		{name: "not at all", want: []string{"I3"}, record: func(s *script) {
			s.fault(2, 1500)
			s.by(1, "a").locks(0, 1, 1).unlocks(1400, 1401, isLost).lives(3000)
		}},
		{name: "too late after the process went on", want: []string{"I3"}, record: func(s *script) {
			s.pause(1, 500, 5000)
			s.by(1, "a").locks(0, 1, 1).loses(5250).unlocks(5260, 5270, isLost).lives(9000)
		}},
		{name: "long after one had it who had not noticed that data was lost", rules: untokened, record: func(s *script) {
			s.dataLoss(400)
			s.by(2, "b").locks(405, 410, 0).renews(700).renews(1000).renews(1300).loses(1800).unlocks(1801, 1802, isLost).lives(3000)
			s.by(1, "a").locks(440, 450, 0).loses(460).unlocks(461, 462, isLost).lives(3000)
		}},
		{name: "after another owner had it", want: []string{"I3"}, record: func(s *script) {
			s.fault(2, 1500)
			s.by(1, "a").locks(0, 1, 1).renews(300).loses(800).unlocks(801, 802, isLost).lives(3000)
			s.by(2, "b").locks(5, 500, 2).holds(505).unlocks(510, 511, ok)
		}},
		{name: "and it was held again", want: []string{"I3"}, record: func(s *script) {
			s.fault(2, 1500)
			s.by(1, "a").locks(0, 1, 1).loses(500).holds(510).unlocks(520, 521, isLost)
		}},
		{name: "and another worker that shares it holds it still", want: []string{"I3"}, record: func(s *script) {
			s.fault(2, 1500)
			a := s.by(1, "a")
			a.locks(0, 1, 1)
			a.also(2).locks(2, 3, 1).loses(500).unlocks(501, 502, isLost)
			a.holds(510).unlocks(520, 521, isLost)
		}},
		{name: "and it was renewed all the same", want: []string{"I3"}, record: func(s *script) {
			s.fault(2, 1500)
			s.by(1, "a").locks(0, 1, 1).renews(1300).holds(1310).unlocks(1320, 1321, ok).lives(4000)
		}},
	})
}

func TestTokens_ResourceRefusesTheOlder(t *testing.T) {
	runCases(t, []testCase{
		{name: "a stale write", record: func(s *script) {
			s.fault(0, 5000)
			s.by(1, "a").locks(0, 1, 1).holds(100).writes(1100, 1101, 1, refused).loses(1110).unlocks(1120, 1121, isLost)
			s.by(2, "b").locks(5, 1010, 2).holds(1015).writes(1020, 1021, 2, ok).unlocks(1030, 1031, ok)
		}},
		{name: "writes at once, in any order", record: func(s *script) {
			s.fault(0, 5000)
			s.by(1, "a").locks(0, 1, 1).holds(100).writes(1020, 1023, 1, ok).loses(1110).unlocks(1120, 1121, isLost)
			s.by(2, "b").locks(5, 1010, 2).holds(1015).writes(1020, 1021, 2, ok).unlocks(1030, 1031, ok)
		}},
		{name: "a write that failed may have been taken", record: func(s *script) {
			s.fault(0, 5000)
			s.by(1, "a").locks(0, 1, 1).holds(100).writes(1100, 1101, 1, refused).loses(1110).unlocks(1120, 1121, isLost)
			s.by(2, "b").locks(5, 1010, 2).holds(1015).writes(1020, 1021, 2, failed).unlocks(1030, 1031, ok)
		}},
		{name: "a stale write that it took", want: []string{"resource"}, record: func(s *script) {
			s.fault(0, 5000)
			s.by(1, "a").locks(0, 1, 1).holds(100).writes(1100, 1101, 1, ok).loses(1110).unlocks(1120, 1121, isLost)
			s.by(2, "b").locks(5, 1010, 2).holds(1015).writes(1020, 1021, 2, ok).unlocks(1030, 1031, ok)
		}},
		{name: "a refusal without a reason", want: []string{"resource"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).holds(100).writes(110, 111, 1, refused).unlocks(120, 121, ok)
		}},
		{name: "a refusal of a valid holder", want: []string{"resource"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).holds(10).writes(11, 15, 1, refused).holds(16).unlocks(17, 18, ok)
			s.by(2, "b").locks(5, 6, 2).writes(7, 8, 2, ok).unlocks(20, 21, ok)
		}},
	})
}
