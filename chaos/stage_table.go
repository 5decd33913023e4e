package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/internal/check"
)

// table prints what became of the scenarios, one line each, as they end.
type table struct {
	out     io.Writer
	results []*result
}

// invariants are the columns of the violations.
var invariants = append(slices.Clone(check.Invariants), scenarioCheck)

// scenarioCheck is the name of the promises that a scenario makes besides the invariants.
const scenarioCheck = "scenario"

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

func (t *table) row(r *result) {
	t.results = append(t.results, r)
	fmt.Fprintf(t.out, "| %3d | %-22s | %7d | %6d | %7d | %6d | %8d | %12s |", r.scenario.number, r.scenario.name,
		r.Operations, r.faults, r.Holds, r.Losses, r.Overlaps, r.LongestWait.Round(time.Millisecond))
	counts := r.byInvariant()
	for _, i := range invariants {
		fmt.Fprintf(t.out, " %*d |", len(i), counts[i])
	}
	fmt.Fprintln(t.out)
}

func (t *table) missing(sc *scenario, why error) {
	fmt.Fprintf(t.out, "| %3d | %-22s | not played: %v\n", sc.number, sc.name, why)
}

// byInvariant counts the violations. One of an invariant that has no column counts as the
// scenario's.
func (r *result) byInvariant() map[string]int {
	counts := map[string]int{}
	for _, i := range invariants {
		counts[i] = 0
	}
	for _, v := range r.Violations {
		if _, known := counts[v.Invariant]; known {
			counts[v.Invariant]++
		} else {
			counts[scenarioCheck]++
		}
	}
	return counts
}

// most is how many violations of a scenario are printed.
const most = 8

// finish prints the violations, and returns the exit status.
func (t *table) finish(status int, seed uint64) int {
	for _, r := range t.results {
		if len(r.Violations) == 0 {
			continue
		}
		fmt.Fprintf(t.out, "\n%s: %d violations; again: -scenario %s -seed %d\n", r.scenario.name, len(r.Violations), r.scenario.name, seed)
		for _, v := range r.Violations[:min(most, len(r.Violations))] {
			fmt.Fprintf(t.out, "\n%s %s: %s\n", v.Invariant, v.Lock, v.Text)
		}
		for _, file := range r.histories {
			fmt.Fprintf(t.out, "\nthe whole history: %s\n", file)
		}
	}
	return status
}
