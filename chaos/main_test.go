package main

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/chaos/check"
	"github.com/relock-go/relock/chaos/internal/scenario"
	"github.com/relock-go/relock/chaos/internal/stage"
)

func TestList_HasEveryScenario(t *testing.T) {
	var out bytes.Buffer
	list(&out)
	for _, s := range scenario.All() {
		require.Contains(t, out.String(), fmt.Sprintf("%3d  %s ", s.Number, s.Name))
	}
	require.Contains(t, out.String(), " 11  subscribers-silent     subscribed connections stay open and receive nothing: waiters are served within a poll (cluster, sentinel, standalone)\n")
	require.Contains(t, out.String(), " (any)\n")
}

func TestSeed_FreshOneIsNotZero(t *testing.T) {
	for range 100 {
		require.NotZero(t, freshSeed())
	}
}

func TestTable_CountsViolationsAndHasTheCommandToRepeatThem(t *testing.T) {
	first := scenario.All()[0]
	res := &stage.Result{Hits: 3, Histories: []string{"file.jsonl"}, Report: check.Report{
		Operations: 1235, Holds: 567, Violations: []check.Violation{
			{Invariant: "I1", Lock: "a", Text: "two of them"},
			{Invariant: "I6", Lock: "b", Text: "never served"},
			{Invariant: "something new", Text: "unknown to the table"},
			{Invariant: "I1", Lock: "c", Text: "two more"},
		},
	}}
	counts := byInvariant(res.Violations)
	require.Equal(t, 2, counts["I1"])
	require.Equal(t, 1, counts["I6"])
	require.Equal(t, 1, counts[stage.OwnPromise], "a violation without a column is not to vanish")

	var out bytes.Buffer
	table := newTable(&out)
	table.row(first, res)
	table.finish(42)
	for _, want := range []string{
		"|    1235 |", "|  2 |  0 |  0 |  0 |  0 |  1 |  0 |         0 |        0 |        1 |", "I1 a: two of them", "unknown to the table",
		"-scenario acquire-reply-lost -seed 42", "file.jsonl",
	} {
		require.Contains(t, out.String(), want)
	}
}

func TestTable_HasEveryInvariantOfTheJudge(t *testing.T) {
	require.Equal(t, append(slices.Clone(check.Invariants), stage.OwnPromise), invariants)
}
