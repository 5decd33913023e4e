package check

import (
	"testing"

	"github.com/relock-go/relock/chaos/history"
)

func TestSides_ReadersMayOverlapEachOtherAndNobodyElse(t *testing.T) {
	runCases(t, []testCase{
		{name: "two readers, then a writer", record: func(s *script) {
			s.by(1, "a").reads(0, 1).holds(20).unlocks(21, 22, ok)
			s.by(2, "b").reads(5, 6).holds(10, 30).unlocks(31, 32, ok)
			s.by(3, "c").locks(7, 33, 1).holds(40).unlocks(41, 42, ok)
		}},
		{name: "who writes goes on reading", record: func(s *script) {
			a := s.by(1, "a")
			a.locks(0, 1, 1).holds(2)
			r := a.reader()
			r.reads(3, 4)
			a.unlocks(5, 6, ok)
			s.by(2, "b").reads(5, 7).holds(8).unlocks(9, 10, ok)
			r.holds(11).unlocks(12, 13, ok)
		}},
		{name: "a read hold is lost, and the next one of the same owner is valid", record: func(s *script) {
			s.fault(0, 100)
			s.by(1, "a").reads(0, 1).holds(2).loses(3).unlocks(4, 5, isLost).reads(6, 7).holds(8).unlocks(9, 10, ok)
		}},
		{name: "a reader joins a writer", want: []string{"I1"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 1).holds(20).unlocks(21, 22, ok)
			s.by(2, "b").reads(5, 6).holds(10).unlocks(11, 12, ok)
		}},
		{name: "a writer joins the first of two readers", want: []string{"I1"}, record: func(s *script) {
			s.by(1, "a").reads(0, 1).holds(40).unlocks(41, 42, ok)
			s.by(2, "b").reads(5, 6).holds(10).unlocks(11, 12, ok)
			s.by(3, "c").locks(7, 20, 1).holds(30).unlocks(31, 32, ok)
		}},
		{name: "a writer comes before a reader has noticed its loss", want: []string{"I3"}, record: func(s *script) {
			s.fault(0, 2000)
			s.by(1, "a").reads(0, 1).loses(900).unlocks(901, 902, isLost).lives(5000)
			s.by(2, "b").locks(0, 300, 1).holds(310).unlocks(311, 312, ok)
		}},
		{name: "a lost read hold is valid again", want: []string{"I3"}, record: func(s *script) {
			s.fault(0, 100)
			s.by(1, "a").reads(0, 1).loses(3).holds(4).unlocks(5, 6, isLost)
		}},
		{name: "writers have tokens that rise", want: []string{"I2"}, record: func(s *script) {
			s.by(1, "a").locks(0, 1, 2).holds(2).unlocks(3, 4, ok)
			s.by(2, "b").reads(5, 6).holds(7).unlocks(8, 9, ok)
			s.by(1, "c").locks(10, 11, 1).holds(12).unlocks(13, 14, ok)
		}},
	})
}

func TestSides_ReadersDoNotKeepAWriterOut(t *testing.T) {
	stream := func(s *script, from, to int64) {
		a, b := s.by(1, "a"), s.by(2, "b")
		for t := from; t < to; t += 100 {
			a.reads(t, t+1).holds(t+50).unlocks(t+60, t+61, ok)
			b.reads(t+40, t+41).holds(t+100).unlocks(t+102, t+103, ok)
		}
	}
	runCases(t, []testCase{
		{name: "those that came before it", record: func(s *script) {
			stream(s, 0, 400)
			s.by(3, "w").locks(0, 450, 1).holds(460).unlocks(461, 462, ok)
		}},
		{name: "after another writer it begins again", record: func(s *script) {
			stream(s, 0, 300)
			s.by(4, "v").locks(290, 450, 1).holds(460).unlocks(470, 471, ok)
			stream(s, 500, 800)
			s.by(3, "w").locks(0, 950, 2).holds(960).unlocks(961, 962, ok)
		}},
		{name: "while a process does not run", record: func(s *script) {
			s.pause(9, 200, 900)
			stream(s, 0, 900)
			s.by(3, "w").locks(0, 1100, 1).holds(1101).unlocks(1102, 1103, ok)
		}},
		{name: "where a writer that has given up may have come late", record: func(s *script) {
			s.fault(-200, -100)
			stream(s, 0, 800)
			s.by(3, "w").locks(0, 1000, 1).holds(1001).unlocks(1002, 1003, ok)
		}},
		{name: "who had no answer", record: func(s *script) {
			stream(s, 0, 900)
			s.by(3, "w").waits(0, 900, 0, history.Failed).lives(1500)
		}},
		{name: "who was answered, and gave up", want: []string{"I6"}, record: func(s *script) {
			stream(s, 0, 900)
			s.by(3, "w").waits(0, 900, 900, ended).lives(1500)
		}},
		{name: "one after the other", want: []string{"I6"}, record: func(s *script) {
			stream(s, 0, 900)
			s.by(3, "w").locks(0, 1100, 1).holds(1101).unlocks(1102, 1103, ok)
		}},
		{name: "who never gets it", want: []string{"I6"}, record: func(s *script) {
			stream(s, 0, 900)
			s.by(3, "w").waits(0, 0, 0, "").lives(1500)
		}},
	})
}
