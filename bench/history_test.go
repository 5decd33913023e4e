package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHistory_OverlappingHoldsAreFoundWhoeverHasThem(t *testing.T) {
	start := time.Unix(0, 0)
	_, err := newHistory([][]span{
		{{Asked: 0, Got: 10, Gave: 20}, {Asked: 30, Got: 40, Gave: 50}},
		{{Asked: 0, Got: 20, Gave: 30}},
	}, start, time.Second)
	require.NoError(t, err, "one ends when the next one begins")

	_, err = newHistory([][]span{
		{{Asked: 0, Got: 10, Gave: 20}, {Asked: 30, Got: 40, Gave: 50}},
		{{Asked: 0, Got: 49, Gave: 60}},
	}, start, time.Second)
	require.EqualError(t, err, "two holders: hold 2 began 1ns before one before it ended")
}

func TestHistory_OnlyReadersMayOverlap(t *testing.T) {
	read := func(got, gave int64) span { return span{Got: got, Gave: gave, Read: true, Shared: true} }
	write := func(got, gave int64) span { return span{Got: got, Gave: gave} }
	alone := func(got, gave int64) span { return span{Got: got, Gave: gave, Read: true} }
	h, err := newHistory([][]span{
		{read(10, 50), write(60, 70), read(70, 80)},
		{read(20, 30), read(40, 60), read(71, 72)},
	}, time.Unix(0, 0), time.Second)
	require.NoError(t, err, "readers, then a writer, then readers")
	require.Equal(t, tally{holds: 5, longest: 71}, h.reads)
	require.Equal(t, tally{holds: 1, longest: 60}, h.writes)

	for name, spans := range map[string][]span{
		"a writer beside the last reader":         {read(10, 20), write(19, 30)},
		"a writer beside a reader who came first": {read(10, 50), read(20, 30), write(40, 60)},
		"a reader beside a writer":                {write(10, 20), read(19, 30)},
		"a second reader beside a writer":         {write(10, 50), read(50, 51), read(49, 60)},
		"two writers":                             {write(10, 20), write(19, 30)},
		"readers of a lock that excludes them":    {alone(10, 20), alone(19, 30)},
	} {
		_, err := newHistory([][]span{spans}, time.Unix(0, 0), time.Second)
		require.ErrorContains(t, err, "two holders", name)
	}
}

func TestHistory_OnlyTheWindowCounts(t *testing.T) {
	h, err := newHistory([][]span{
		{{Asked: 0, Got: 5, Gave: 6}, {Asked: 90, Got: 100, Gave: 101}, {Asked: 102, Got: 199, Gave: 300}},
		{{Asked: 0, Got: 110, Gave: 120}, {Asked: 190, Got: 301, Gave: 302}},
		{},
	}, time.Unix(0, 100), 100)
	require.NoError(t, err)
	require.Equal(t, []int{2, 1, 0}, h.counts)
	require.Equal(t, 3, h.handoffs())
	require.Equal(t, []time.Duration{10, 97, 110}, h.waits)
	require.Equal(t, time.Duration(97), h.wait(0.5))
	require.Equal(t, time.Duration(110), h.wait(1))
	require.InDelta(t, 3e7, h.rate(), 1)
	require.InDelta(t, 9.0/(3*5), h.jain(), 1e-9)
	require.Equal(t, time.Duration(72), h.mean())
	require.Equal(t, time.Duration(110), h.longest)
	require.Equal(t, 1, h.unserved())

	_, err = newHistory([][]span{{{Asked: 0, Got: 5, Gave: 6}}}, time.Unix(0, 100), 100)
	require.ErrorIs(t, err, errIdle)
}

func TestHistory_UnservedWaiterHasWaitedTheWholeWindow(t *testing.T) {
	h, err := newHistory([][]span{
		{{Asked: 100, Got: 101, Gave: 102}, {Asked: 103, Got: 104, Gave: 105}},
		{{Asked: 100, Got: 300, Gave: 301}},
	}, time.Unix(0, 100), 100)
	require.NoError(t, err)
	require.Equal(t, time.Duration(100), h.longest)
	require.Equal(t, 1, h.unserved())
	require.Equal(t, []time.Duration{1, 1}, h.waits)
}

func TestSpread_IsTheMedianAndTheEnds(t *testing.T) {
	s, ok := spreadOf([]float64{5, 1, 3})
	require.True(t, ok)
	require.Equal(t, spread{3, 1, 5}, s)
	s, _ = spreadOf([]float64{4, 1, 2, 3})
	require.Equal(t, spread{2.5, 1, 4}, s)
	_, ok = spreadOf(nil)
	require.False(t, ok)
}

func TestRatios_AreTakenRoundByRound(t *testing.T) {
	s := scenarioNamed("seq")
	l := s.loads[0]
	r := &report{samples: make(map[string][]sample)}
	// The machine is ten times slower in the second round; the ratio is the same.
	for round, us := range []float64{100, 1000} {
		r.add(s, l, relockName, sample{round: round, figures: figures{"us": us}})
		r.add(s, l, plainFloor, sample{round: round, figures: figures{"us": us / 1.05}})
	}
	ratio, ok := r.ratio("seq", l.label, relockName, plainFloor, "us")
	require.True(t, ok)
	require.InDelta(t, 1.05, ratio.min, 1e-9)
	require.InDelta(t, 1.05, ratio.max, 1e-9)
}

func TestTarget_IsMetOnItsOwnSide(t *testing.T) {
	require.True(t, target{limit: 1.1}.met(1.1))
	require.False(t, target{limit: 1.1}.met(1.2))
	require.True(t, target{limit: 2, atLeast: true}.met(2))
	require.False(t, target{limit: 2, atLeast: true}.met(1.9))
}

func TestTarget_AndChartsAreAboutMeasuredScenarios(t *testing.T) {
	loads := func(name string) []string {
		s := scenarioNamed(name)
		require.NotNil(t, s, name)
		labels := []string{""}
		for _, l := range s.loads {
			labels = append(labels, l.label)
		}
		return labels
	}
	for _, x := range targets {
		require.Contains(t, loads(x.scenario), x.load)
	}
	for _, c := range charts {
		require.Contains(t, loads(c.scenario), c.load)
	}
	for _, s := range scenarios {
		require.Contains(t, s.contenders, s.base)
		for _, name := range s.contenders {
			_, err := contenderNamed(name)
			require.NoError(t, err)
		}
	}
}

func TestPermits_GrantsOverTheLimitAreCounted(t *testing.T) {
	three := gather([][]span{
		{{Got: 10, Gave: 40}, {Got: 40, Gave: 50}},
		{{Got: 20, Gave: 45}},
		{{Got: 30, Gave: 60}, {Got: 70, Gave: 80}},
	}, time.Unix(0, 0), time.Second).spans
	require.Zero(t, overLimit(three, 3), "one ends when another one begins")
	require.Equal(t, 2, overLimit(three, 2), "those that began at 30 and 40")
	require.Equal(t, 3, overLimit(three, 1))
	require.Zero(t, overLimit(nil, 1))
}
