package check

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLinear_AnOrderExplainsTheHistory(t *testing.T) {
	runCases(t, []testCase{
		{name: "failed calls leave no trace", record: func(s *script) {
			s.by(1, "a").locks(0, 10, 1).unlocks(11, 12, ok)
			s.by(2, "b").waits(0, 20, 20, ended).waits(21, 22, 0, taken).waits(23, 0, 0, "")
		}},
		{name: "killed while unlocking", record: func(s *script) {
			s.by(1, "a").locks(0, 10, 1).holds(11).unlocks(12, 0, "")
			s.kill(1, 13)
			s.by(2, "b").locks(0, 14, 2).holds(15).unlocks(16, 17, ok).lives(5000)
		}},
		{name: "closed", record: func(s *script) {
			s.by(1, "a").locks(0, 10, 1).holds(11).unlocks(20, 21, closed)
			s.by(2, "b").locks(0, 14, 2).holds(15).unlocks(16, 17, ok)
		}},
		{name: "lost", record: func(s *script) {
			s.fault(0, 100)
			s.by(1, "a").locks(0, 10, 1).locks(11, 12, 1).holds(13).loses(15).unlocks(18, 19, isLost).unlocks(20, 21, isLost)
			s.by(2, "b").locks(0, 14, 2).holds(15).unlocks(16, 17, ok)
		}},
		{name: "a hold that data loss made doubtful", rules: splitBrain(), record: func(s *script) {
			s.dataLoss(5)
			s.by(1, "a").locks(0, 1, 1).holds(40).unlocks(41, 42, isLost)
			s.by(2, "b").locks(5, 11, 2).holds(13).unlocks(14, 15, ok)
		}},
		{name: "unlocked before it was asked for", want: []string{"porcupine"}, record: func(s *script) {
			s.by(1, "a").locks(0, 10, 1).unlocks(11, 30, ok)
			s.by(2, "b").locks(12, 13, 2).unlocks(14, 15, ok)
			s.by(3, "c").locks(10, 11, 3).unlocks(12, 13, ok)
		}},
		{name: "nested levels count", want: []string{"porcupine"}, record: func(s *script) {
			s.by(1, "a").locks(0, 10, 1).locks(11, 12, 1).unlocks(13, 14, ok).unlocks(20, 21, ok)
			s.by(2, "b").locks(0, 15, 2).unlocks(16, 17, ok)
		}},
		{name: "the killed held on", want: []string{"porcupine"}, record: func(s *script) {
			s.by(1, "a").locks(0, 10, 1).holds(30)
			s.kill(1, 31)
			s.by(2, "b").locks(0, 15, 2).unlocks(16, 17, ok).lives(5000)
		}},
	})
}

func TestLinear_LongHistoryIsJudgedInParts(t *testing.T) {
	good := func(n int) *script {
		s := &script{}
		a := s.by(1, "a")
		for i := range int64(n) {
			a.locks(10*i, 10*i+1, i+1).holds(10*i+2).unlocks(10*i+3, 10*i+4, ok)
		}
		return s
	}
	const holds = 10_000
	s := good(holds)
	began := time.Now()
	require.Empty(t, Run(s.events, strict).Violations)
	require.Less(t, time.Since(began), 20*time.Second)

	for _, at := range []int64{1, chunk / 2, chunk/2 + 1, holds - 1} {
		s := good(holds)
		s.by(2, "b").locks(10*at, 10*at+1, holds+at).holds(10*at+2).unlocks(10*at+3, 10*at+4, ok)
		require.Contains(t, caught(s.events, strict), "porcupine", "a token that is too high at %d", at)
	}
}
