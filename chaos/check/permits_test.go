package check

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/chaos/history"
)

// permits returns the same worker, which asks for permits of a weight, of a semaphore with a limit.
func (a *actor) permits(weight, limit int) *actor {
	b := *a
	b.weight, b.limit, b.op, b.depth = weight, limit, 0, 0
	return &b
}

// uses has a permit, which is renewed, until it is released.
func (a *actor) uses(called, returned, released int64) *actor {
	return a.locks(called, returned, 0).lasts(returned, released)
}

// lasts is the rest of uses.
func (a *actor) lasts(returned, released int64) *actor {
	for at := returned + 1; at < released; at += 300 {
		a.holds(at).renews(at)
	}
	return a.unlocks(released, released+1, ok)
}

func TestPermits_NeverExceedTheLimit(t *testing.T) {
	runCases(t, []testCase{
		{name: "as many as fit", record: func(s *script) {
			s.by(1, "a").permits(1, 3).uses(0, 1, 1000)
			s.by(2, "b").permits(2, 3).uses(0, 1, 1000)
		}},
		{name: "one too many", want: []string{"I1", "porcupine"}, record: func(s *script) {
			for i := range 4 {
				s.by(i+1, fmt.Sprint(i)).permits(1, 3).uses(0, 1, 1000)
			}
		}},
		{name: "too heavy together", want: []string{"I1", "porcupine"}, record: func(s *script) {
			s.by(1, "a").permits(2, 3).uses(0, 1, 1000)
			s.by(2, "b").permits(2, 3).uses(0, 1, 1000)
		}},
		{name: "when another is being released", record: func(s *script) {
			s.by(1, "a").permits(2, 3).uses(0, 1, 1000)
			s.by(2, "b").permits(2, 3).uses(5, 1001, 2000)
		}},
		{name: "before another is released", want: []string{"I1", "porcupine"}, record: func(s *script) {
			s.by(1, "a").permits(2, 3).uses(0, 1, 1000)
			s.by(2, "b").permits(2, 3).uses(5, 999, 2000)
		}},
		{name: "when another has died", record: func(s *script) {
			s.by(1, "a").permits(2, 3).locks(0, 1, 0).holds(100)
			s.kill(1, 110)
			s.by(2, "b").permits(2, 3).uses(5, 1002, 2000)
		}},
		{name: "when another one that was not seen since may have been lost", record: func(s *script) {
			s.pause(1, 2, 3000)
			s.by(1, "a").permits(2, 3).locks(0, 1, 0).loses(3001).unlocks(3002, 3003, isLost)
			s.by(2, "b").permits(2, 3).uses(5, 1002, 2000)
		}},
		{name: "one too many, beside one that was lost before it could be used", want: []string{"I1", "porcupine"}, record: func(s *script) {
			s.pause(1, 2, 3000)
			s.by(1, "a").permits(2, 3).locks(0, 3001, 0).loses(3002).unlocks(3003, 3004, isLost)
			s.by(2, "b").permits(2, 3).uses(5, 10, 1000)
			s.by(3, "c").permits(2, 3).uses(5, 10, 1000)
		}},
		{name: "when the loss of another one has been noticed", record: func(s *script) {
			s.fault(2, 1500)
			s.by(1, "a").permits(2, 3).locks(0, 1, 0).loses(991).unlocks(992, 993, isLost).lives(3000)
			s.by(2, "b").permits(2, 3).uses(5, 1002, 2000)
		}},
		{name: "before the loss of another one is noticed", want: []string{"I3"}, record: func(s *script) {
			s.fault(2, 1500)
			s.by(1, "a").permits(2, 3).locks(0, 1, 0).renews(300).loses(800).unlocks(801, 802, isLost).lives(3000)
			s.by(2, "b").permits(2, 3).uses(5, 500, 2000)
		}},
		{name: "though the loss of another one is noticed late, if there is room for both", record: func(s *script) {
			s.fault(2, 1500)
			s.by(1, "a").permits(1, 3).locks(0, 1, 0).renews(300).loses(800).unlocks(801, 802, isLost).lives(3000)
			s.by(2, "b").permits(2, 3).uses(5, 500, 2000)
		}},
		{name: "while another is reserved by its min hold", want: []string{"I1", "porcupine"}, record: func(s *script) {
			s.by(1, "a").permits(2, 3).keeps(500).uses(0, 1, 100)
			s.by(2, "b").permits(2, 3).uses(5, 450, 1000)
		}},
		{name: "when the min hold of another is over", record: func(s *script) {
			s.by(1, "a").permits(2, 3).keeps(500).uses(0, 1, 100)
			s.by(2, "b").permits(2, 3).uses(5, 501, 1000)
		}},
		{name: "released by no one else", want: []string{"I4"}, record: func(s *script) {
			s.by(1, "a").permits(1, 3).locks(0, 1, 0).holds(2).loses(50).unlocks(51, 52, isLost)
		}, rules: lossless()},
	})
}

func TestPermits_EachRequestHasItsOwnLimit(t *testing.T) {
	// Three permits of requests with the limit 3 are in use from 1 to 1000.
	three := func(s *script) {
		for i := range 3 {
			s.by(i+1, fmt.Sprint(i)).permits(1, 3).uses(0, 1, 1000)
		}
	}
	runCases(t, []testCase{
		{name: "a higher one", record: func(s *script) {
			three(s)
			s.by(9, "b").permits(1, 4).uses(5, 10, 1000)
		}},
		{name: "a lower one, before the others", record: func(s *script) {
			three(s)
			s.by(4, "b").permits(1, 1).uses(0, 10, 1000)
			s.events = slices.DeleteFunc(s.events, func(e history.Event) bool { return e.Process == 3 })
		}},
		{name: "a lower one, after the others", want: []string{"I1", "porcupine"}, record: func(s *script) {
			three(s)
			s.by(9, "b").permits(1, 2).uses(5, 10, 1000)
		}},
		{name: "a lower one, after others whose own would allow it", want: []string{"I1", "porcupine"}, record: func(s *script) {
			s.by(1, "a").permits(3, 8).uses(0, 1, 1000)
			s.by(9, "b").permits(1, 2).uses(5, 10, 1000)
		}},
		{name: "a lower one, alone", record: func(s *script) {
			three(s)
			s.by(9, "b").permits(2, 2).uses(5, 1001, 1500)
		}},
		{name: "two lower ones, of which one was the last or the one before", want: []string{"porcupine"}, record: func(s *script) {
			s.by(1, "a").permits(1, 1).uses(2, 9, 1000)
			s.by(2, "b").permits(1, 1).uses(2, 9, 1000)
			s.by(3, "c").permits(1, 8).uses(0, 10, 1000)
		}},
	})
}

func TestPermits_AfterLostDataThereMayBeMoreUntilTheNextRenewal(t *testing.T) {
	overlap := func(s *script, until int64) {
		s.dataLoss(5)
		s.by(1, "a").permits(2, 3).locks(0, 1, 0).renews(330).renews(660).holds(until).loses(until+1).unlocks(until+2, until+3, isLost)
		s.by(2, "b").permits(2, 3).uses(6, 11, 1000)
	}
	runCases(t, []testCase{
		{name: "until it is noticed", rules: splitBrain(), record: func(s *script) { overlap(s, 330) }},
		{name: "for longer", rules: splitBrain(), want: []string{"I1"}, record: func(s *script) { overlap(s, 700) }},
		{name: "where data cannot be lost", want: []string{"I1"}, record: func(s *script) { overlap(s, 330) }},
		{name: "until its lease is over, if the newer one is not renewed", rules: splitBrain(), record: func(s *script) {
			s.dataLoss(5)
			s.by(1, "a").permits(2, 3).uses(0, 1, 2000)
			b := s.by(2, "b").permits(2, 3)
			b.fixed = true
			b.locks(6, 11, 0).holds(900).loses(1000).unlocks(1001, 1002, isLost)
		}},
	})
	s := &script{}
	overlap(s, 330)
	require.Equal(t, 1, Run(s.events, splitBrain()).Overlaps)
}

func TestPermits_AreGrantedInOrder(t *testing.T) {
	// One of 4 is in use, and a large request waits from 10 on and is served at 2000.
	large := func(s *script) {
		s.by(1, "a").permits(1, 4).uses(0, 1, 1900)
		s.by(2, "b").permits(4, 4).waitsInOrder(5, 10, 2000, 0).lasts(2000, 2100)
	}
	runCases(t, []testCase{
		{name: "behind a large one", record: func(s *script) {
			large(s)
			s.by(3, "c").permits(1, 4).uses(20, 2105, 2200)
		}},
		{name: "who asked before the other was known to wait may have come first", record: func(s *script) {
			large(s)
			s.by(3, "c").permits(1, 4).uses(9, 30, 100)
		}},
		{name: "a small one overtakes", want: []string{"I7"}, record: func(s *script) {
			large(s)
			s.by(3, "c").permits(1, 4).uses(20, 30, 100)
		}},
		{name: "a small one overtakes for a moment", want: []string{"I7"}, record: func(s *script) {
			s.by(1, "a").permits(1, 4).uses(0, 1, 110)
			s.by(2, "b").permits(4, 4).waitsInOrder(5, 10, 150, 0).lasts(150, 200)
			s.by(3, "c").permits(1, 4).uses(20, 30, 100)
		}},
		{name: "a small one with a higher limit overtakes", want: []string{"I7"}, record: func(s *script) {
			large(s)
			s.by(3, "c").permits(4, 5).uses(20, 30, 100)
		}},
		{name: "not in a fault", record: func(s *script) {
			s.fault(12, 40)
			large(s)
			s.by(3, "c").permits(1, 4).uses(20, 30, 100)
		}},
		{name: "two at once", record: func(s *script) {
			s.by(1, "a").permits(4, 4).uses(0, 1, 100)
			s.by(2, "b").permits(1, 4).waitsInOrder(5, 10, 250, 0).lasts(250, 300)
			s.by(3, "c").permits(1, 4).uses(20, 101, 300)
		}},
		{name: "one by one", want: []string{"I7"}, record: func(s *script) {
			s.by(1, "a").permits(4, 4).uses(0, 1, 100)
			s.by(2, "b").permits(1, 4).waitsInOrder(5, 10, 310, 0).lasts(310, 400)
			s.by(3, "c").permits(1, 4).uses(20, 101, 300)
		}},
	})
}

func TestPermits_EverybodyIsServed(t *testing.T) {
	const wait = 5000
	promptly := strict
	promptly.Prompt = true
	runCases(t, []testCase{
		{name: "while there is no room", record: func(s *script) {
			s.by(1, "a").permits(1, 2).uses(0, 1, 6000)
			s.by(2, "b").permits(2, 2).waits(5, 5005, wait, ended).lives(9000)
		}},
		{name: "while there is no room for another one", record: func(s *script) {
			s.by(1, "a").permits(1, 2).uses(0, 1, 6000)
			s.by(2, "b").permits(2, 2).waits(5, 5005, wait, ended).lives(9000)
			s.by(3, "c").permits(1, 2).waits(6, 5006, wait, ended).lives(9000)
		}},
		{name: "while there is room", want: []string{"I6"}, record: func(s *script) {
			s.by(1, "a").permits(1, 2).uses(0, 1, 6000)
			s.by(2, "b").permits(1, 2).waits(5, 5005, wait, ended).lives(9000)
		}},
		{name: "while there is room according to the limit of another one", record: func(s *script) {
			s.by(1, "a").permits(1, 2).uses(0, 1, 6000)
			s.by(2, "b").permits(1, 1).waits(5, 5005, wait, ended).lives(9000)
		}},
		{name: "while there is room since another one gave up", want: []string{"I6"}, record: func(s *script) {
			s.by(1, "a").permits(1, 2).uses(0, 1, 6000)
			s.by(2, "b").permits(2, 2).waits(5, 3005, 3000, ended).lives(9000)
			s.by(3, "c").permits(1, 2).waits(6, 5006, wait, ended).lives(9000)
		}},
		{name: "while others are served", record: func(s *script) {
			s.by(1, "a").permits(1, 3).uses(0, 1, 6000)
			s.by(2, "b").permits(1, 3).waits(5, 3005, 3000, ended).lives(9000)
			for at := int64(10); at < 3000; at += 1000 {
				s.by(3, "c").permits(1, 3).uses(at, at+1, at+2)
			}
		}},
		{name: "within a TTL and a poll of a death", record: func(s *script) {
			s.by(1, "a").permits(2, 2).locks(0, 1, 0).holds(100)
			s.kill(1, 101)
			s.by(2, "b").permits(1, 2).uses(5, 1540, 1600).lives(9000)
		}},
		{name: "soon, if no message can be lost", rules: promptly, record: func(s *script) {
			s.by(1, "a").permits(2, 2).uses(0, 1, 1000)
			s.by(2, "b").permits(1, 2).uses(5, 1190, 1300)
		}},
		{name: "late, though no message can be lost", rules: promptly, want: []string{"I6"}, record: func(s *script) {
			s.by(1, "a").permits(2, 2).uses(0, 1, 1000)
			s.by(2, "b").permits(1, 2).uses(5, 1230, 1300)
		}},
	})
}

// semaphore plays a semaphore, right or broken in one way, and its users, a millisecond after the other.
type semaphore struct {
	script
	rand   *rand.Rand
	breaks string
	users  []*user
	line   []*user
	used   int
	end    int64
}

// user is a worker that wants one permit after the other.
type user struct {
	*actor
	does  string // "rests", "waits", "wakes", "works", "releases"
	until int64
	asked int64
}

func playSemaphore(seed uint64, breaks string, workers int, millis int64) *semaphore {
	s := &semaphore{rand: rand.New(rand.NewPCG(seed, 1)), breaks: breaks, end: millis}
	for process := 1; process <= 3; process++ {
		for worker := range workers {
			a := s.by(process, fmt.Sprintf("p%d.w%d", process, worker))
			a.worker = worker
			s.users = append(s.users, &user{actor: a, does: "rests"})
		}
	}
	for now := int64(1); now < millis; now++ {
		for _, i := range s.rand.Perm(len(s.users)) {
			s.step(s.users[i], now)
		}
	}
	for _, u := range s.users {
		u.lives(millis)
	}
	return s
}

// step is what a user does at a time.
func (s *semaphore) step(u *user, now int64) {
	if now < u.until {
		return
	}
	switch u.does {
	case "rests":
		u.limit = []int{4, 4, 4, 2, 8}[s.rand.IntN(5)]
		u.weight = max(1, s.rand.IntN(2*u.limit)-u.limit+1)
		u.ops++
		u.op, u.depth, u.asked, u.does, u.until = u.ops, 1, now, "waits", never
		u.record(now, history.Event{Kind: history.LockCall, Op: u.op})
		if s.line = append(s.line, u); s.breaks == "overtakes" && s.fits(u) {
			s.grant(u, now)
		} else if s.serve(now); slices.Contains(s.line, u) {
			u.record(now, history.Event{Kind: history.Queued, Op: u.op})
		}
	case "wakes":
		u.record(now, history.Event{Kind: history.LockReturn, Op: u.op, Outcome: ok, Depth: 1, Until: dawn + now*ms + 990*ms})
		u.does, u.until = "works", now+1+s.rand.Int64N(20)
		if s.rand.IntN(5) == 0 {
			u.until += 700
		}
		for at := now; at < min(u.until, s.end); at += 100 {
			u.holds(at)
		}
	case "works":
		u.unlocks(now, now+4, ok)
		u.does, u.until = "releases", now+s.rand.Int64N(4)
	case "releases":
		s.used -= s.share(u)
		s.serve(now)
		u.does, u.until = "rests", now+5+s.rand.Int64N(20)
	}
}

// share is the weight for which a permit of u counts.
func (s *semaphore) share(u *user) int {
	if s.breaks == "weight" {
		return 1
	}
	return u.weight
}

func (s *semaphore) fits(u *user) bool {
	over := 0
	if s.breaks == "limit" {
		over = 1
	}
	return s.used+u.weight <= u.limit+over
}

// serve grants permits to the first in line.
func (s *semaphore) serve(now int64) {
	for len(s.line) > 0 && s.fits(s.line[0]) {
		s.grant(s.line[0], now)
	}
}

func (s *semaphore) grant(u *user, now int64) {
	s.line = slices.DeleteFunc(s.line, func(o *user) bool { return o == u })
	s.used += s.share(u)
	u.does, u.until = "wakes", now+s.rand.Int64N(5)
}

func TestPermits_HistoriesOfARightSemaphoreAreGood(t *testing.T) {
	rules := strict
	rules.Prompt = true
	for seed := range uint64(30) {
		require.Empty(t, Run(playSemaphore(seed, "", 6, 10_000).events, rules).Violations, "seed %d", seed)
	}
}

func TestPermits_EveryBrokenSemaphoreIsCaught(t *testing.T) {
	rules := strict
	rules.Prompt = true
	for breaks, want := range map[string]string{"limit": "I1", "weight": "I1", "overtakes": "I7"} {
		t.Run(breaks, func(t *testing.T) {
			for seed := range uint64(5) {
				require.Contains(t, caught(playSemaphore(seed, breaks, 6, 10_000).events, rules), want, "seed %d", seed)
			}
		})
	}
}

func TestPermits_HistoryOfManyWaitersIsJudgedSoon(t *testing.T) {
	s := playSemaphore(1, "", 20, 10_000) // without ranks, porcupine searches for minutes
	began := time.Now()
	require.Empty(t, Run(s.events, strict).Violations)
	require.Less(t, time.Since(began), 20*time.Second)
}
