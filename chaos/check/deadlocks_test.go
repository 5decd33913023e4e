package check

import (
	"testing"

	"github.com/relock-go/relock/chaos/history"
)

func TestDeadlocks_WereThereAndEndedTheLastWait(t *testing.T) {
	const deadlock = history.Deadlocked
	// holdBoth has a hold x and b hold y, each until after 3 s.
	holdBoth := func(s *script) (a, b *actor) {
		a, b = s.by(1, "a").on("x"), s.by(2, "b").on("y")
		a.locks(0, 1, 1).renews(800).renews(1600).renews(2400)
		b.locks(0, 1, 1).renews(800).renews(1600).renews(2400)
		return a, b
	}
	leave := func(a, b *actor) {
		a.unlocks(2500, 2501, ok).lives(9000)
		b.unlocks(2500, 2501, ok).lives(9000)
	}
	runCases(t, []testCase{
		{name: "of two", record: func(s *script) {
			a, b := holdBoth(s)
			a.on("y").waits(10, 2400, 0, ended)
			b.on("x").waits(1000, 2300, 0, deadlock)
			leave(a, b)
		}},
		{name: "the first wait ended", want: []string{"I6"}, record: func(s *script) {
			a, b := holdBoth(s)
			a.on("y").waits(10, 2300, 0, deadlock)
			b.on("x").waits(1000, 2400, 0, ended)
			leave(a, b)
		}},
		{name: "the holder did not wait", want: []string{"I6"}, record: func(s *script) {
			a, b := holdBoth(s)
			b.on("x").waits(1000, 2300, 0, deadlock)
			leave(a, b)
		}},
		{name: "the holder's wait has just ended", record: func(s *script) {
			a, b := holdBoth(s)
			a.on("y").waits(10, 2200, 0, ended)
			b.on("x").waits(1000, 2300, 0, deadlock)
			leave(a, b)
		}},
		{name: "the holder's wait ended long ago", want: []string{"I6"}, record: func(s *script) {
			a, b := holdBoth(s)
			a.on("y").waits(10, 700, 0, ended)
			b.on("x").waits(100, 2300, 0, deadlock)
			leave(a, b)
		}},
		{name: "the holder's wait was over before", want: []string{"I6"}, record: func(s *script) {
			a, b := holdBoth(s)
			a.on("y").waits(10, 900, 0, ended)
			b.on("x").waits(1000, 2300, 0, deadlock)
			leave(a, b)
		}},
		{name: "nobody held it", want: []string{"I6"}, record: func(s *script) {
			a, b := holdBoth(s)
			a.on("y").waits(10, 2400, 0, ended)
			b.on("z").waits(1000, 2300, 0, deadlock)
			leave(a, b)
		}},
		{name: "it waited behind one", want: []string{"I6"}, record: func(s *script) {
			a, b := holdBoth(s)
			a.on("y").waits(10, 2400, 0, ended)
			b.on("x").waits(20, 2400, 0, ended)
			s.by(3, "c").on("x").waits(1000, 2300, 0, deadlock)
			leave(a, b)
		}},
	})
}
