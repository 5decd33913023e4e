package main

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/chaos/internal/check"
	"github.com/relock-go/relock/internal/redistest"
)

// The tests' binary is a client process, too, when it is started as one.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-client") {
		main()
	}
	redistest.Main(m)
}

func TestEveryScenarioIsListedOnceByNumberAndName(t *testing.T) {
	var out bytes.Buffer
	list(&out)
	seen := map[string]bool{}
	for _, s := range scenarios {
		for _, id := range []string{strconv.Itoa(s.number), s.name} {
			require.False(t, seen[id], id)
			seen[id] = true
		}
		require.NotEmpty(t, s.what)
		require.NotEmpty(t, s.casts, s.name)
		require.Contains(t, out.String(), s.name)
		for _, c := range s.casts {
			require.True(t, c.draw != nil || len(c.faults) > 0, s.name)
		}
	}
	for i := 1; i <= 31; i++ {
		require.True(t, seen[strconv.Itoa(i)], "scenario %d", i)
	}
}

func TestScenariosAreChosenByNameNumberOrSelection(t *testing.T) {
	all, err := choose("all")
	require.NoError(t, err)
	require.Equal(t, scenarios, all)
	two, err := choose("mix,7")
	require.NoError(t, err)
	require.Equal(t, []string{"mix", "client-paused"}, []string{two[0].name, two[1].name})
	ci, err := choose("ci")
	require.NoError(t, err)
	require.Len(t, ci, len(forCI))
	_, err = choose("1,nothing")
	require.ErrorContains(t, err, `no scenario "nothing"`)
}

func TestAFreshSeedIsNotZero(t *testing.T) {
	for range 100 {
		require.NotZero(t, freshSeed())
	}
}

func TestTheTableCountsViolationsAndSaysHowToSeeThemAgain(t *testing.T) {
	res := &result{scenario: scenarios[0], faults: 3, histories: []string{"file.jsonl"}}
	res.add(check.Report{Operations: 1234, Holds: 567, Violations: []check.Violation{
		{Invariant: "I1", Lock: "a", Text: "two of them"},
		{Invariant: "I6", Lock: "b", Text: "nobody came"},
		{Invariant: "something new", Text: "unknown to the table"},
	}})
	res.add(check.Report{Operations: 1, Violations: []check.Violation{{Invariant: "I1", Lock: "c", Text: "two more"}}})
	require.Equal(t, 1235, res.Operations)
	counts := res.byInvariant()
	require.Equal(t, 2, counts["I1"])
	require.Equal(t, 1, counts["I6"])
	require.Equal(t, 1, counts[scenarioCheck], "a violation without a column is not to vanish")

	var out bytes.Buffer
	table := newTable(&out)
	table.row(res)
	require.Equal(t, violated, table.finish(violated, 42))
	for _, want := range []string{
		"|    1235 |", "|  2 |  0 |  0 |  0 |  0 |  1 |  0 |         0 |        0 |        1 |", "I1 a: two of them", "unknown to the table",
		"-scenario acquire-reply-lost -seed 42", "file.jsonl",
	} {
		require.Contains(t, out.String(), want)
	}
}

func TestTheJudgeLooksForEveryInvariantThatTheTableShows(t *testing.T) {
	require.Equal(t, append(slices.Clone(check.Invariants), scenarioCheck), invariants)
}
