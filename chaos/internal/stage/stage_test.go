package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/chaos/check"
	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/scripts"
	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/chaos/player"
	"github.com/relock-go/relock/internal/redistest"
)

// The tests' binary is a client process, too, when it is started as one.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-client") {
		if err := worker.Run(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	redistest.Main(m)
}

// brief is a workload with leases so short that faults soon outlast them.
var brief = worker.Workload{
	Habits:    player.Habits{TTL: 600 * time.Millisecond, Long: 0.03, Fixed: 0.05, Fair: 0.4, Shared: 0.1, Impatient: 0.25, Sides: 0.3, Reads: 0.7},
	Processes: 3, Workers: 6, Names: 3,
	Poll: 250 * time.Millisecond, Joint: 0.1, Lasting: [2]float64{0.5, 2}, Impatience: 200 * time.Millisecond,
}

// fixture is a setup with nothing but brief uses of one server, and the given faults.
func fixture(faults ...Fault) Setup {
	return Setup{Kind: deployment.Standalone, Work: brief, Faults: faults}
}

// loseReply loses the reply to one acquisition, or to one release.
var loseReply = []Fault{aimedAt(scripts.Acquire), aimedAt(scripts.Release)}

func aimedAt(verb scripts.Verb) Fault {
	return Fault{Name: string(verb), Inject: func(a *Act) error {
		p := a.Victim()
		a.Begin("the reply to %s is lost", verb)
		defer a.End()
		a.Meets(p.RelayTo(a.Deployment.Servers[0]).DropReply(a.Script(verb)))
		return nil
	}}
}

// pass lets some time pass, as a fault that does nothing.
var pass = Fault{Name: "nothing", Inject: func(a *Act) error {
	a.Lasts(a.Work.TTL / 4)
	a.Hit()
	return nil
}}

// schedule is what the seed says about the first acts of a round.
func schedule(seed uint64, number int) []string {
	r := newRound(&Stage{seed: seed}, &Plan{Number: 1}, fixture(loseReply...), nil, number)
	var acts []string
	for i := 1; i <= 20; i++ {
		c := r.draw(i)
		acts = append(acts, c.fault.Name, c.pause.String(), time.Duration(c.rand.Int64()).String())
	}
	return acts
}

func TestStage_SeedAloneDecidesWhatIsDoneWhen(t *testing.T) {
	require.Equal(t, schedule(7, 0), schedule(7, 0))
	require.NotEqual(t, schedule(7, 0), schedule(8, 0))
	require.NotEqual(t, schedule(7, 0), schedule(7, 1), "another round is another schedule")
}

// A whole stage, with all resources.
func TestStage_HasSomethingToProtect(t *testing.T) {
	t.Parallel()
	newTestStage(t) // or skips
	s, err := New(1, nil)
	require.NoError(t, err)
	defer s.Close()
	require.NotEmpty(t, s.resources)
	first := newRound(s, &Plan{}, fixture(), nil, 0).protected()
	s.rounds += len(s.resources)
	require.Equal(t, first, newRound(s, &Plan{}, fixture(), nil, 0).protected())
}

// forget removes the histories of violations that a test has wanted.
func forget(t *testing.T, res *Result) {
	t.Helper()
	for _, file := range res.Histories {
		require.NoError(t, os.Remove(file))
	}
}

func newTestStage(t *testing.T) *Stage {
	t.Helper()
	redistest.RequireServer(t)
	found, err := scripts.Find()
	require.NoError(t, err)
	s := &Stage{seed: 1, scripts: found, deployments: map[deployment.Kind]*deployment.Deployment{}}
	t.Cleanup(s.Close)
	return s
}

func TestStage_PlanIsPlayedAndJudged(t *testing.T) {
	t.Parallel()
	s := newTestStage(t)
	res, err := s.Play(t.Context(), &Plan{Name: "replies lost", Setups: []Setup{fixture(loseReply...)}}, 500*time.Millisecond)
	require.NoError(t, err)
	require.Empty(t, res.Violations)
	require.Positive(t, res.Hits)
	require.Greater(t, res.Holds, 10)
	require.Positive(t, res.LongestWait)
}

func TestStage_KilledProcessIsReplacedAndAPausedOneGoesOn(t *testing.T) {
	t.Parallel()
	s := newTestStage(t)
	setup := fixture(Fault{Inject: func(a *Act) error {
		return errors.Join(a.Kill(a.Holder()), a.Pause(a.Holder(), a.Work.TTL/4))
	}})
	setup.Work.Processes, setup.Work.Workers = 2, 3
	p := &Plan{Name: "processes", Setups: []Setup{setup}, Check: func(e *Evidence) error {
		kinds := map[history.Kind]int{}
		for _, event := range e.Events {
			kinds[event.Kind]++
		}
		require.Equal(t, e.round.hits, kinds[history.Killed]+kinds[history.Paused])
		require.Equal(t, kinds[history.Paused], kinds[history.Resumed])
		require.Len(t, e.Outages, kinds[history.Paused])
		require.Equal(t, 2, kinds[history.Bye], "two processes are alive at any time")
		require.Len(t, e.round.processes, 2+kinds[history.Killed])
		return nil
	}}
	res, err := s.Play(t.Context(), p, 300*time.Millisecond)
	require.NoError(t, err)
	require.Empty(t, res.Violations)
}

// The faults of two lanes may choose the same process. And two processes of one number would be one for the checks.
func TestStage_ProcessesKilledAtOnceAreReplacedOnceEach(t *testing.T) {
	t.Parallel()
	s := newTestStage(t)
	setup := fixture(Fault{Inject: func(a *Act) error {
		alive, killings := a.round.alive(), make(chan error)
		for _, p := range alive {
			for range 2 {
				lane := *a
				go func() { killings <- lane.Kill(p) }()
			}
		}
		a.HitUncounted()
		var failed error
		for range 2 * len(alive) {
			failed = errors.Join(failed, <-killings)
		}
		return failed
	}})
	setup.Work.Processes, setup.Work.Workers = 2, 3
	p := &Plan{Name: "processes", Setups: []Setup{setup}, Check: func(e *Evidence) error {
		killed, numbers := 0, map[int]bool{}
		for _, event := range e.Events {
			if event.Kind == history.Killed {
				killed++
			}
		}
		for _, p := range e.round.processes {
			numbers[p.Number] = true
		}
		require.Len(t, e.round.processes, 2+killed)
		require.Len(t, numbers, 2+killed)
		return nil
	}}
	res, err := s.Play(t.Context(), p, 300*time.Millisecond)
	require.NoError(t, err)
	require.Empty(t, res.Violations)
}

func TestStage_DeployedProcessHasAnotherLimit(t *testing.T) {
	t.Parallel()
	s := newTestStage(t)
	setup := fixture(Fault{Inject: func(a *Act) error { return a.Deploy(a.Victim(), 5) }})
	setup.Work.Processes, setup.Work.Workers, setup.Work.Shared, setup.Work.Sides, setup.Work.Permits, setup.Work.Limit = 2, 3, 0, 0, 1, 2
	p := &Plan{Name: "deployments", Setups: []Setup{setup}, Check: func(e *Evidence) error {
		limits, ended := map[int]int{}, 0
		for _, event := range e.Events {
			switch event.Kind {
			case history.LockCall:
				require.Contains(t, []int{0, event.Limit}, limits[event.Process], "a process has one limit")
				limits[event.Process] = event.Limit
			case history.Bye:
				ended++
			}
		}
		require.Len(t, e.round.processes, 2+e.round.hits)
		require.Equal(t, ended, len(e.round.processes), "the old ones end, too")
		for process, limit := range limits {
			require.Equal(t, process > 2, limit == 5, "process %d has the limit %d", process, limit)
		}
		return nil
	}}
	res, err := s.Play(t.Context(), p, 300*time.Millisecond)
	require.NoError(t, err)
	require.Empty(t, res.Violations)
	require.Positive(t, res.Hits)
}

func TestStage_PlanWithoutAHitIsAnError(t *testing.T) {
	t.Parallel()
	s := newTestStage(t)
	p := &Plan{Name: "harmless", Setups: []Setup{fixture(Fault{
		Inject: func(a *Act) error { a.Lasts(10 * time.Millisecond); return nil },
	})}}
	_, err := s.Play(t.Context(), p, 50*time.Millisecond)
	require.ErrorContains(t, err, "harmless: not one fault hit")
}

func TestStage_EmptyRoundIsRepeatedButNotForever(t *testing.T) {
	t.Parallel()
	s := newTestStage(t)
	setup := fixture(pass)
	setup.Work.TTL, setup.Work.Poll, setup.Work.Processes, setup.Work.Workers = 200*time.Millisecond, 100*time.Millisecond, 1, 1
	untested := errors.New("nothing was tested")
	var numbers []int
	p := &Plan{Name: "chancy", Setups: []Setup{setup, setup}, Check: func(e *Evidence) error {
		numbers = append(numbers, e.round.number)
		if e.round.number == 4 {
			return nil
		}
		e.Breach("it counts")
		return untested
	}}
	res, err := s.Play(t.Context(), p, 100*time.Millisecond)
	forget(t, res)
	require.ErrorIs(t, err, untested)
	require.Equal(t, []int{0, 4, 1, 5, 9, 13}, numbers, "with other random numbers, and the same setup")
	require.Len(t, res.Violations, 5)
}

func TestStage_FailedInjectionIsAnError(t *testing.T) {
	t.Parallel()
	s := newTestStage(t)
	broken := errors.New("no such lever")
	p := &Plan{Name: "leverless", Setups: []Setup{fixture(Fault{
		Name: "a lever", Inject: func(*Act) error { return broken },
	})}}
	_, err := s.Play(t.Context(), p, 50*time.Millisecond)
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "a lever")
}

func TestStage_ResultHasWhatTheCheckFinds(t *testing.T) {
	t.Parallel()
	s := newTestStage(t)
	setup := fixture(Fault{Name: "uncounted", Inject: func(a *Act) error {
		a.Lasts(10 * time.Millisecond)
		a.HitUncounted()
		a.Breach("seen by the fault")
		return nil
	}})
	setup.Work.TTL, setup.Work.Processes, setup.Work.Workers = 200*time.Millisecond, 1, 1
	p := &Plan{Name: "checked", Setups: []Setup{setup}, Check: func(e *Evidence) error {
		e.Hits = 3
		e.Breach("sent: %v", e.Sent(scripts.Acquire) > 0)
		return nil
	}}
	res, err := s.Play(t.Context(), p, time.Millisecond)
	forget(t, res)
	require.NoError(t, err)
	require.Equal(t, 3, res.Hits)
	require.Len(t, res.Violations, 2)
	for i, want := range []string{"seen by the fault", "sent: true"} {
		require.Equal(t, OwnPromise, res.Violations[i].Invariant)
		require.Contains(t, res.Violations[i].Text, want)
	}
}

func TestStage_ReportsKeysThatAreLeft(t *testing.T) {
	t.Parallel()
	s := newTestStage(t)
	setup := fixture(Fault{Inject: func(a *Act) error {
		a.Hit()
		d, server := a.Deployment, a.Deployment.Servers[0]
		return errors.Join(d.Do(a, server, "set", "leftover", "x", "ex", 3600), d.Do(a, server, "set", "redisson_lock_token:{x}", 1, "ex", 3600))
	}})
	setup.Work.TTL, setup.Work.Processes, setup.Work.Workers = 200*time.Millisecond, 1, 1
	res, err := s.Play(t.Context(), &Plan{Name: "untidy", Setups: []Setup{setup}}, 50*time.Millisecond)
	forget(t, res)
	require.NoError(t, err)
	require.Len(t, res.Violations, 1)
	require.Equal(t, "I5", res.Violations[0].Invariant)
	require.Contains(t, res.Violations[0].Text, "leftover")
	require.NotContains(t, res.Violations[0].Text, "token")
}

func TestStage_ReportsKeysWithoutExpiry(t *testing.T) {
	t.Parallel()
	s := newTestStage(t)
	setup := fixture(Fault{Inject: func(a *Act) error {
		a.Hit()
		return a.Deployment.Do(a, a.Deployment.Servers[0], "set", "redisson_lock_token:{x}", 1)
	}})
	setup.Work.TTL, setup.Work.Processes, setup.Work.Workers = 200*time.Millisecond, 1, 1
	res, err := s.Play(t.Context(), &Plan{Name: "eternal", Setups: []Setup{setup}}, 50*time.Millisecond)
	forget(t, res)
	require.NoError(t, err)
	require.Len(t, res.Violations, 1)
	require.Equal(t, "I5", res.Violations[0].Invariant)
	require.Contains(t, res.Violations[0].Text, "without expiry: redisson_lock_token:{x}")
}

func TestStage_ViolationComesWithTheEventsAroundIt(t *testing.T) {
	r := newRound(&Stage{}, &Plan{}, fixture(), nil, 0)
	for i := range 40 {
		lock := []string{"a", "b"}[i%2]
		r.journal.record(history.Event{At: r.journal.began + int64(i)*int64(time.Millisecond), Process: 1, Op: i, Kind: history.Held, Lock: lock})
	}
	r.journal.record(history.Event{At: r.journal.began + int64(20*time.Millisecond), Kind: history.FaultBegin, Note: "the culprit"})
	text := r.journal.around(check.Violation{Lock: "a", Text: "from 0.001000 s to 0.020000 s"})
	require.Contains(t, text, `"op":20`)
	require.Contains(t, text, "the culprit")
	require.NotContains(t, text, `"op":21`, "another lock's")
	require.NotContains(t, text, `"op":38`, "too late")
	require.Equal(t, 15, strings.Count(text, "\n"))
	require.Empty(t, r.journal.around(check.Violation{Text: "without a time"}))
}

func TestStage_WaitEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	wait(ctx, time.Hour)
	require.Less(t, time.Since(began), time.Minute)
}

func TestStage_AnotherRoundAddsToTheResult(t *testing.T) {
	var res Result
	violation := check.Violation{Invariant: "I1", Lock: "a", Text: "two of them"}
	res.add(check.Report{Operations: 1234, Holds: 567, LongestWait: 2, Violations: []check.Violation{violation}})
	res.add(check.Report{Operations: 1, Losses: 2, Overlaps: 3, LongestWait: 1, Violations: []check.Violation{violation}})
	require.Equal(t, check.Report{
		Operations: 1235, Holds: 567, Losses: 2, Overlaps: 3, LongestWait: 2, Violations: []check.Violation{violation, violation},
	}, res.Report)
}
