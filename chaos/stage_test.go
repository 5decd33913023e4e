package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/chaos/internal/check"
	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/history"
	"github.com/relock-go/relock/chaos/internal/scripts"
	"github.com/relock-go/relock/internal/redistest"
)

// schedule is what the seed says about the first acts of a round.
func schedule(seed uint64, number int) []string {
	r := newRound(&stage{seed: seed}, scenarios[0], scenarios[0].casts[0], nil, number)
	var acts []string
	for i := 1; i <= 20; i++ {
		c := r.draw(i)
		acts = append(acts, c.fault.name, c.pause.String(), time.Duration(c.r.Int64()).String())
	}
	return acts
}

func TestTheSeedAloneDecidesWhatIsDoneWhen(t *testing.T) {
	require.Equal(t, schedule(7, 0), schedule(7, 0))
	require.NotEqual(t, schedule(7, 0), schedule(8, 0))
	require.NotEqual(t, schedule(7, 0), schedule(7, 1), "another round is another schedule")
}

// A whole stage, with all resources.
func TestAStageHasSomethingToProtect(t *testing.T) {
	t.Parallel()
	newTestStage(t) // or skips
	s, err := newStage(1, nil)
	require.NoError(t, err)
	defer s.close()
	require.NotEmpty(t, s.resources)
	first := newRound(s, scenarios[0], scenarios[0].casts[0], nil, 0).protected()
	s.rounds += len(s.resources)
	require.Equal(t, first, newRound(s, scenarios[0], scenarios[0].casts[0], nil, 0).protected())
}

func newTestStage(t *testing.T) *stage {
	t.Helper()
	redistest.RequireServer(t)
	learned, err := scripts.Learn()
	require.NoError(t, err)
	s := &stage{seed: 1, scripts: learned, deployments: map[deployment.Kind]*deployment.Deployment{}}
	t.Cleanup(s.close)
	return s
}

func TestAScenarioIsPlayedAndJudged(t *testing.T) {
	t.Parallel()
	s := newTestStage(t)
	res, err := s.play(t.Context(), scenarios[0], 500*time.Millisecond)
	require.NoError(t, err)
	require.Empty(t, res.Violations)
	require.Positive(t, res.faults)
	require.Greater(t, res.Holds, 10)
	require.Positive(t, res.LongestWait)
}

func TestAKilledProcessIsReplacedAndAPausedOneGoesOn(t *testing.T) {
	t.Parallel()
	s := newTestStage(t)
	work := brief
	work.Processes, work.Workers = 2, 3
	sc := &scenario{name: "processes", casts: []cast{{kind: deployment.Standalone, work: work, faults: []fault{{
		inject: func(a *act) error {
			return errors.Join(killProcess.inject(a), pauseProcess(0.2, 0.3).inject(a))
		},
	}}}}, check: func(r *round) error {
		kinds := map[history.Kind]int{}
		for _, e := range r.events {
			kinds[e.Kind]++
		}
		require.Equal(t, r.faults, kinds[history.Killed]+kinds[history.Paused])
		require.Equal(t, kinds[history.Paused], kinds[history.Resumed])
		require.Equal(t, 2, kinds[history.Bye], "two processes are alive at any time")
		require.Equal(t, 2+kinds[history.Killed], len(r.processes))
		return nil
	}}
	res, err := s.play(t.Context(), sc, 300*time.Millisecond)
	require.NoError(t, err)
	require.Empty(t, res.Violations)
}

func TestAScenarioInWhichNoFaultHitsIsAnError(t *testing.T) {
	t.Parallel()
	s := newTestStage(t)
	sc := &scenario{name: "harmless", casts: []cast{{kind: deployment.Standalone, work: brief, faults: []fault{{
		inject: func(a *act) error { a.lasts(10 * time.Millisecond); return nil },
	}}}}}
	_, err := s.play(t.Context(), sc, 50*time.Millisecond)
	require.ErrorContains(t, err, "harmless: not one fault hit")
}

func TestARoundInWhichNothingWasTestedIsPlayedAgainButNotForEver(t *testing.T) {
	t.Parallel()
	s := newTestStage(t)
	work := brief
	work.TTL, work.Poll, work.Processes, work.Workers = 200*time.Millisecond, 100*time.Millisecond, 1, 1
	c := cast{kind: deployment.Standalone, work: work, faults: []fault{nothing}}
	untested := errors.New("nothing was tested")
	var numbers []int
	sc := &scenario{name: "chancy", casts: []cast{c, c}, check: func(r *round) error {
		numbers = append(numbers, r.number)
		if r.number == 4 {
			return nil
		}
		r.breach("it counts")
		return untested
	}}
	res, err := s.play(t.Context(), sc, 100*time.Millisecond)
	require.ErrorIs(t, err, untested)
	require.Equal(t, []int{0, 4, 1, 5, 9, 13}, numbers, "with other random numbers, and the same cast")
	require.Len(t, res.Violations, 5)
}

func TestAFaultThatCannotBeInjectedIsAnError(t *testing.T) {
	t.Parallel()
	s := newTestStage(t)
	broken := errors.New("no such lever")
	sc := &scenario{name: "leverless", casts: []cast{{kind: deployment.Standalone, work: brief, faults: []fault{{
		name: "a lever", inject: func(*act) error { return broken },
	}}}}}
	_, err := s.play(t.Context(), sc, 50*time.Millisecond)
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "a lever")
}

func TestKeysThatAreLeftAreTold(t *testing.T) {
	t.Parallel()
	s := newTestStage(t)
	work := brief
	work.TTL, work.Processes, work.Workers = 200*time.Millisecond, 1, 1
	sc := &scenario{name: "untidy", casts: []cast{{kind: deployment.Standalone, work: work, faults: []fault{{
		inject: func(a *act) error {
			a.hit()
			master, err := a.master()
			if err != nil {
				return err
			}
			return errors.Join(a.do(master, "hset", "leftover", "x", 1), a.do(master, "set", "redisson_lock_token:{x}", 1))
		},
	}}}}}
	res, err := s.play(t.Context(), sc, 50*time.Millisecond)
	require.NoError(t, err)
	require.Len(t, res.Violations, 1)
	require.Equal(t, "I5", res.Violations[0].Invariant)
	require.Contains(t, res.Violations[0].Text, "leftover")
	require.NotContains(t, res.Violations[0].Text, "token")
}

func TestAViolationComesWithTheEventsAroundIt(t *testing.T) {
	r := newRound(&stage{}, scenarios[0], scenarios[0].casts[0], nil, 0)
	for i := range 40 {
		lock := []string{"a", "b"}[i%2]
		r.record(history.Event{At: r.began + int64(i)*int64(time.Millisecond), Process: 1, Op: i, Kind: history.Held, Lock: lock})
	}
	r.record(history.Event{At: r.began + int64(20*time.Millisecond), Kind: history.FaultBegin, Note: "the culprit"})
	text := r.around(check.Violation{Lock: "a", Text: "from 0.001000 s to 0.020000 s"})
	require.Contains(t, text, `"op":20`)
	require.Contains(t, text, "the culprit")
	require.NotContains(t, text, `"op":21`, "another lock's")
	require.NotContains(t, text, `"op":38`, "too late")
	require.Equal(t, 15, strings.Count(text, "\n"))
	require.Empty(t, r.around(check.Violation{Text: "without a time"}))
}

func TestWaitEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	wait(ctx, time.Hour)
	require.Less(t, time.Since(began), time.Minute)
}
