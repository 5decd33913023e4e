package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A target is what one of ours is to reach in a scenario. Most are ratios inside one run, so
// they hold on any machine.
type target struct {
	who      string // of ours; relock if empty
	scenario string
	load     string // the first one if empty
	text     string
	limit    float64
	atLeast  bool
	digits   int
	value    value
}

// value is what was measured of one of ours under a load.
type value func(r *report, s *scenario, load, who string) (float64, bool)

// against divides the main figure by that of a named contender.
func against(base string) value {
	return func(r *report, s *scenario, load, who string) (float64, bool) {
		f, ok := r.ratio(s.name, load, who, base, s.columns[0].key)
		return f.median, ok
	}
}

// againstBest divides the main figure by that of the best library.
func againstBest(r *report, s *scenario, load, who string) (float64, bool) {
	best, ok := r.bestRival(s, load)
	if !ok {
		return 0, false
	}
	return against(best)(r, s, load, who)
}

// againstRival divides a figure by that of a named library.
func againstRival(rival, figure string) value {
	return func(r *report, s *scenario, load, who string) (float64, bool) {
		f, ok := r.ratio(s.name, load, who, rival, figure)
		return f.median, ok
	}
}

// its is a figure of its own.
func its(figure string) value {
	return func(r *report, s *scenario, load, who string) (float64, bool) {
		f, ok := r.figure(s.name, load, who, figure)
		return f.median, ok
	}
}

// worst is the highest value of a figure of its own.
func worst(figure string) value {
	return func(r *report, s *scenario, load, who string) (float64, bool) {
		f, ok := r.figure(s.name, load, who, figure)
		return f.max, ok
	}
}

var targets = slices.Concat([]target{
	{scenario: "seq", text: "time ÷ floor", limit: 1.10, digits: 2, value: against(plainFloor)},
	{scenario: "seq", text: "time ÷ fastest library", limit: 1, digits: 2, value: againstBest},
	{scenario: "seq", text: "allocations", limit: 36, digits: 1, value: its("allocs")},
	{scenario: "nested", text: "time ÷ floor", limit: 1.10, digits: 2, value: against(plainFloor)},
	{scenario: "par", load: "64 goroutines", text: "rate ÷ floor", limit: 2, atLeast: true, digits: 2, value: against(plainFloor)},
	{scenario: "par", load: "64 goroutines", text: "rate ÷ best library", limit: 1.2, atLeast: true, digits: 2, value: againstBest},
	{scenario: "par", load: "512 goroutines", text: "rate ÷ floor", limit: 2, atLeast: true, digits: 2, value: against(plainFloor)},
	{scenario: "par", load: "512 goroutines", text: "rate ÷ best library", limit: 1.2, atLeast: true, digits: 2, value: againstBest},
	{scenario: "contended", load: "4 goroutines", text: "hand-offs ÷ best library", limit: 2, atLeast: true, digits: 2, value: againstBest},
	{scenario: "contended", load: "16 goroutines", text: "hand-offs ÷ best library", limit: 7, atLeast: true, digits: 2, value: againstBest},
	{scenario: "contended", load: "64 goroutines", text: "hand-offs ÷ best library", limit: 10, atLeast: true, digits: 2, value: againstBest},
	{scenario: "contended", load: "64 goroutines", text: "Jain's index", limit: 0.99, atLeast: true, digits: 3, value: its("jain")},
	{scenario: "contended", load: "64 goroutines", text: "commands per hand-off", limit: 0.1, digits: 2, value: its("commands")},
	{scenario: "processes", load: "4 processes", text: "hand-offs ÷ best library", limit: 6, atLeast: true, digits: 2, value: againstBest},
	{scenario: "processes", load: "4 processes", text: "Jain's index", limit: 0.98, atLeast: true, digits: 3, value: its("jain")},
	{scenario: "processes", load: "4 processes", text: "commands per hand-off", limit: 0.25, digits: 2, value: its("commands")},
	{who: fairName, scenario: "processes", load: "1 process", text: "commands per hand-off", limit: 2.2, digits: 2, value: its("commands")},
	{who: fairName, scenario: "processes", load: "32 processes", text: "commands per hand-off", limit: 2.2, digits: 2, value: its("commands")},
	{who: fairName, scenario: "queue", load: "2 waiters in 2 processes", text: "commands per hand-off", limit: 2.2, digits: 2, value: its("commands")},
	{who: fairName, scenario: "queue", load: "500 waiters in 4 processes", text: "commands per hand-off", limit: 2.2, digits: 2, value: its("commands")},
	{who: rwName, scenario: "readers", load: "64 goroutines", text: "rate ÷ a name each", limit: 0.8, atLeast: true, digits: 2, value: against(relockName)},
	{scenario: "wake", text: "p50 ÷ best library", limit: 0.9, digits: 2, value: againstBest},
	{who: fairName, scenario: "wake", text: "p50 ÷ best library", limit: 0.75, digits: 2, value: againstBest},
	{scenario: "idle", load: "64 waiters", text: "most commands in a safety poll of 5 s", limit: 1, value: worst("sent")},
	{scenario: "idle", load: "1000 waiters", text: "most commands in a safety poll of 5 s", limit: 1, value: worst("sent")},
	{scenario: "idle", load: "10000 waiters", text: "most commands in a safety poll of 5 s", limit: 1, value: worst("sent")},
	{scenario: "hold", text: "bytes per lock", limit: 3500, value: its("bytes")},
	{scenario: "hold", text: "bytes ÷ rueidislock", limit: 1, digits: 2, value: againstRival("rueidislock", "bytes")},
	{scenario: "hold", text: "latest renewal, in intervals", limit: 0.5, digits: 3, value: worst("share")},
	{scenario: "slow-contended", text: "hand-offs ÷ best library", limit: 25, atLeast: true, digits: 2, value: againstBest},
}, fleetTargets())

// fleetTargets are those for processes of one goroutine: few commands, and turns for all,
// under every load; how fast and how even depends on it.
func fleetTargets() []target {
	var all []target
	for _, l := range fleet {
		add := func(t target) {
			t.scenario, t.load = "fleet", l.label
			all = append(all, t)
		}
		add(target{text: "commands per hold, but for 2 of each process", limit: 2.05, digits: 2, value: its("steady")})
		add(target{text: "Jain's index", limit: 0.98, atLeast: true, digits: 3, value: its("jain")})
		add(target{text: "most processes that were never served", limit: 0, value: worst("unserved")})
		switch {
		case l.hold == 0:
			add(target{text: "holds ÷ best library", limit: 0.8, atLeast: true, digits: 2, value: againstBest})
			add(target{text: "longest wait, ms", limit: 50, digits: 1, value: its("max")})
			if l.processes >= 32 {
				add(target{text: "holds ÷ rueidislock", limit: 4, atLeast: true, digits: 2, value: against("rueidislock")})
			}
		case l.processes >= 8:
			add(target{text: "holds ÷ best library", limit: 0.92, atLeast: true, digits: 2, value: againstBest})
			add(target{text: "longest wait ÷ mean", limit: 2, digits: 2, value: its("max/mean")})
		}
	}
	return all
}

// targets returns the table of those whose scenario has been run.
func (r *report) targets() string {
	var rows strings.Builder
	for _, t := range targets {
		s := scenarioNamed(t.scenario)
		load := t.load
		if load == "" {
			load = s.loads[0].label
		}
		who := cmp.Or(t.who, relockName)
		v, ok := t.value(r, s, load, who)
		if !ok {
			continue
		}
		sign, verdict := "≤", "missed"
		if t.atLeast {
			sign = "≥"
		}
		if t.met(v) {
			verdict = "met"
		}
		fmt.Fprintf(&rows, "| %s | %s, %s | %s | %s %s | **%s** | %s |\n", who, t.scenario, load, t.text,
			sign, digits(t.digits)(t.limit), digits(t.digits)(v), verdict)
	}
	if rows.Len() == 0 {
		return ""
	}
	return "| | | | target | measured | |\n|---|---|---|--:|--:|---|\n" + rows.String() + "\n"
}

func (t target) met(v float64) bool {
	if t.atLeast {
		return v >= t.limit
	}
	return v <= t.limit
}
