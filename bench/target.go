package main

import (
	"cmp"
	"fmt"
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
type value func(r *report, s *scenario, load, who string) (spread, bool)

// against divides the main figure by the figure of a named contender.
func against(base string) value {
	return func(r *report, s *scenario, load, who string) (spread, bool) {
		return r.ratio(s.name, load, who, base, s.columns[0].key)
	}
}

// costAgainst divides the processor time of clients and Redis by the processor time that a named contender needs.
func costAgainst(base string) value {
	return func(r *report, s *scenario, load, who string) (spread, bool) {
		return r.compare(key(s.name, load, who), key(s.name, load, base), func(a, b figures) float64 {
			return (a.of("client") + a.of("server")) / (b.of("client") + b.of("server"))
		})
	}
}

// againstBest divides the main figure by the figure of the best library.
func againstBest(r *report, s *scenario, load, who string) (spread, bool) {
	best, ok := r.bestRival(s, load)
	if !ok {
		return spread{}, false
	}
	return against(best)(r, s, load, who)
}

// above subtracts the figure of a named contender.
func above(base, figure string) value {
	return func(r *report, s *scenario, load, who string) (spread, bool) {
		return r.compare(key(s.name, load, who), key(s.name, load, base), func(a, b figures) float64 {
			return a.of(figure) - b.of(figure)
		})
	}
}

// perWake divides the main figure by a wake-up of relock.
func perWake(r *report, s *scenario, load, who string) (spread, bool) {
	return r.compare(key(s.name, load, who), key("wake", load, relockName), func(a, b figures) float64 {
		return a.of("p50") / b.of("p50")
	})
}

// its is a figure of its own.
func its(figure string) value {
	return func(r *report, s *scenario, load, who string) (spread, bool) {
		return r.figure(s.name, load, who, figure)
	}
}

// targets are the targets that some runs miss, and those of permits. docs/testing.md has the others.
var targets = []target{
	{scenario: "seq", text: "time ÷ fastest library", limit: 1, digits: 2, value: againstBest},
	{scenario: "request", text: "time ÷ floor", limit: 1.1, digits: 2, value: against(plainFloor)},
	{scenario: "request", text: "time ÷ rueidislock", limit: 1, digits: 2, value: against("rueidislock")},
	{scenario: "request", text: "time ÷ redislock", limit: 1, digits: 2, value: against("redislock")},
	{scenario: "request", text: "time ÷ redsync", limit: 1.15, digits: 2, value: against("redsync")},
	{scenario: "request", text: "client CPU − that of the floor, µs", limit: 8, digits: 1, value: above(plainFloor, "client")},
	{scenario: "request", text: "allocations", limit: 16, value: its("allocs")},
	{who: asyncName, scenario: "names", text: "time ÷ redsync", limit: 0.75, digits: 2, value: against("redsync")},
	{who: asyncName, scenario: "slow-names", text: "time ÷ redsync", limit: 0.55, digits: 2, value: against("redsync")},
	{who: lingerName, scenario: "again", text: "time ÷ redsync", limit: 1.0 / 30, digits: 3, value: against("redsync")},
	{who: lingerName, scenario: "again", text: "commands", limit: 0.01, digits: 3, value: its("sent")},
	{who: lingerName, scenario: "wanted", text: "p50 ÷ that of wake", limit: 1.3, digits: 2, value: perWake},
	{scenario: "par", load: "64 goroutines", text: "rate ÷ floor", limit: 2, atLeast: true, digits: 2, value: against(plainFloor)},
	{scenario: "par", load: "64 goroutines", text: "rate ÷ rueidislock", limit: 1.15, atLeast: true, digits: 2, value: against("rueidislock")},
	{scenario: "par", load: "64 goroutines", text: "CPU of client and Redis ÷ rueidislock", limit: 1 / 1.15, digits: 2, value: costAgainst("rueidislock")},
	{scenario: "par", load: "512 goroutines", text: "rate ÷ rueidislock", limit: 1.15, atLeast: true, digits: 2, value: against("rueidislock")},
	{scenario: "par", load: "512 goroutines", text: "CPU of client and Redis ÷ rueidislock", limit: 1 / 1.15, digits: 2, value: costAgainst("rueidislock")},
	{scenario: "contended", load: "64 goroutines", text: "hand-offs ÷ best library", limit: 10, atLeast: true, digits: 2, value: againstBest},
	{scenario: "processes", load: "4 processes", text: "hand-offs ÷ best library", limit: 6, atLeast: true, digits: 2, value: againstBest},
	{scenario: "contended", load: "16 goroutines", text: "hand-offs ÷ best library", limit: 7, atLeast: true, digits: 2, value: againstBest},
	{scenario: "wake", text: "p50 ÷ rueidislock", limit: 0.95, digits: 2, value: against("rueidislock")},
	{scenario: "wake-clients", text: "p50 ÷ rueidislock", limit: 0.95, digits: 2, value: against("rueidislock")},
	{who: fairName, scenario: "wake", text: "p50 ÷ best library", limit: 0.75, digits: 2, value: againstBest},
	{scenario: "hold", text: "bytes per lock", limit: 3500, value: its("bytes")},
	{scenario: "fleet", load: "2 processes, 0 ms", text: "commands per hold, but for 2 of each process", limit: 2.05, digits: 2, value: its("steady")},
	{scenario: "fleet", load: "2 processes, 0 ms", text: "holds ÷ best library", limit: 0.8, atLeast: true, digits: 2, value: againstBest},
	{scenario: "fleet", load: "8 processes, 0 ms", text: "holds ÷ best library", limit: 0.8, atLeast: true, digits: 2, value: againstBest},
	{scenario: "fleet", load: "32 processes, 0 ms", text: "holds ÷ best library", limit: 0.8, atLeast: true, digits: 2, value: againstBest},
	{scenario: "fleet", load: "64 processes, 0 ms", text: "holds ÷ best library", limit: 0.8, atLeast: true, digits: 2, value: againstBest},
	{scenario: "fleet", load: "8 processes, 1 ms", text: "holds ÷ best library", limit: 0.92, atLeast: true, digits: 2, value: againstBest},
	{scenario: "fleet", load: "32 processes, 1 ms", text: "holds ÷ best library", limit: 0.92, atLeast: true, digits: 2, value: againstBest},
	{scenario: "fleet", load: "64 processes, 1 ms", text: "holds ÷ best library", limit: 0.92, atLeast: true, digits: 2, value: againstBest},
	{who: permitsName, scenario: "permits", text: "grants over the limit", limit: 0, value: its("over")},
	{who: permitsName, scenario: "permits", text: "commands per permit", limit: 2.05, digits: 2, value: its("commands")},
	{scenario: "fleet", load: "8 processes, 1 ms", text: "longest wait ÷ mean", limit: 2, digits: 2, value: its("max/mean")},
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
		f, ok := t.value(r, s, load, who)
		if !ok {
			continue
		}
		sign, verdict := "≤", "missed"
		if t.atLeast {
			sign = "≥"
		}
		if t.met(f.median) {
			verdict = "met"
		}
		number := digits(t.digits)
		fmt.Fprintf(&rows, "| %s | %s, %s | %s | %s %s | **%s** (%s–%s) | %s |\n", who, t.scenario, load, t.text,
			sign, number(t.limit), number(f.median), number(f.min), number(f.max), verdict)
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
