package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/check"
	"github.com/relock-go/relock/chaos/internal/scenario"
	"github.com/relock-go/relock/chaos/internal/stage"
)

// list prints the scenarios.
func list(out io.Writer) {
	for _, s := range scenario.All() {
		fmt.Fprintf(out, "%3d  %-22s %s (%s)\n", s.Number, s.Name, s.What, strings.Join(s.Kinds(), ", "))
	}
}

// table prints the results of the scenarios, one line each, as they end.
type table struct {
	out  io.Writer
	rows []row
}

// row is a scenario and its result.
type row struct {
	scenario *scenario.Scenario
	*stage.Result
}

// invariants are the columns of the violations.
var invariants = append(slices.Clone(check.Invariants), stage.OwnPromise)

func newTable(out io.Writer) *table {
	t := &table{out: out}
	fmt.Fprintf(out, "| %-3s | %-22s | %7s | %6s | %7s | %6s | %8s | %12s |", "", "scenario", "calls", "faults", "holds", "losses", "overlaps", "longest wait")
	for _, i := range invariants {
		fmt.Fprintf(out, " %s |", i)
	}
	fmt.Fprintln(out)
	fmt.Fprint(out, "|----:|------------------------|--------:|-------:|--------:|-------:|---------:|-------------:|")
	for _, i := range invariants {
		fmt.Fprint(out, strings.Repeat("-", len(i)+1), ":|")
	}
	fmt.Fprintln(out)
	return t
}

func (t *table) row(sc *scenario.Scenario, r *stage.Result) {
	t.rows = append(t.rows, row{sc, r})
	fmt.Fprintf(t.out, "| %3d | %-22s | %7d | %6d | %7d | %6d | %8d | %12s |", sc.Number, sc.Name,
		r.Operations, r.Hits, r.Holds, r.Losses, r.Overlaps, r.LongestWait.Round(time.Millisecond))
	counts := byInvariant(r.Violations)
	for _, i := range invariants {
		fmt.Fprintf(t.out, " %*d |", len(i), counts[i])
	}
	fmt.Fprintln(t.out)
}

// missing is the row of a scenario that cannot be played here.
func (t *table) missing(sc *scenario.Scenario, why error) {
	fmt.Fprintf(t.out, "| %3d | %-22s | not played: %v\n", sc.Number, sc.Name, why)
}

// byInvariant counts violations. A violation of an invariant without a column counts for the scenario's own promise.
func byInvariant(violations []check.Violation) map[string]int {
	counts := map[string]int{}
	for _, i := range invariants {
		counts[i] = 0
	}
	for _, v := range violations {
		if _, known := counts[v.Invariant]; known {
			counts[v.Invariant]++
		} else {
			counts[stage.OwnPromise]++
		}
	}
	return counts
}

// finish prints the violations, and the commands that repeat them.
func (t *table) finish(seed uint64) {
	for _, r := range t.rows {
		if len(r.Violations) == 0 {
			continue
		}
		fmt.Fprintf(t.out, "\n%s: %d violations; again: -scenario %s -seed %d\n", r.scenario.Name, len(r.Violations), r.scenario.Name, seed)
		for _, v := range r.Violations[:min(stage.Detailed, len(r.Violations))] {
			fmt.Fprintf(t.out, "\n%s %s: %s\n", v.Invariant, v.Lock, v.Text)
		}
		for _, file := range r.Histories {
			fmt.Fprintf(t.out, "\nthe whole history: %s\n", file)
		}
	}
}
