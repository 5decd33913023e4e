package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/bench/draw"
)

// block is a part of docs/benchmark.md that is written by a run.
type block struct {
	name string
	text func(*results) string
}

var blocks = []block{
	{"source", (*results).source},
	{"contenders", (*results).contenders},
	{"picture", (*results).pictureLink},
	{"free", func(r *results) string { return r.scenario("free") }},
	{"skewed", func(r *results) string { return r.scenario("skewed") }},
	{"hot", func(r *results) string { return r.scenario("hot") }},
	{"fleet", func(r *results) string { return r.scenario("fleet") }},
	{"served", func(r *results) string { return r.recovery(false) }},
	{"learned", func(r *results) string { return r.recovery(true) }},
	{"cost", (*results).cost},
	{"memory", (*results).memory},
}

// page is all blocks, one after the other.
func (r *results) page() string {
	var b strings.Builder
	for _, part := range blocks {
		if text := part.text(r); text != "" {
			fmt.Fprintf(&b, "## %s\n\n%s\n", part.name, text)
		}
	}
	return b.String()
}

func (r *results) source() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s; %d rounds, windows of %v, by `%s`.\n\n%s\n", r.Machine, r.Began.Format(time.DateOnly), r.Rounds, r.Window, r.Command, r.Noise)
	for _, part := range sortedKeys(r.Failed) {
		fmt.Fprintf(&b, "\nWithout a result: %s (%s).\n", part, oneLine(r.Failed[part]))
	}
	return b.String()
}

func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	return text[:min(len(text), 300)]
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// contenders lists who took part, and what remains of their locks.
func (r *results) contenders() string {
	var b strings.Builder
	b.WriteString("| | version | server | what a crash of the server leaves of a lock | waiters of a process | configured |\n|---|---|---|---|--:|---|\n")
	for _, c := range contenders {
		configured := c.legend
		if why, missing := r.Missing[c.name]; missing {
			configured = "**did not take part: " + why + "**"
		}
		version := r.Versions[c.name]
		if version == "" && strings.HasPrefix(c.name, relockName) {
			version = "this tree"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %d | %s |\n", c.name, version, strings.TrimSpace(c.server+" "+r.Versions[c.server]), c.durable, c.threads, configured)
	}
	return b.String()
}

// took returns the contenders that have results in a scenario.
func (r *results) took(s string) (names []contender) {
	for _, c := range contenders {
		if r.Load[cellKey(s, c.name, sameLoad)] != nil {
			names = append(names, c)
		}
	}
	return names
}

// scenario is the table of the waits at shares of each contender's own limit, and that at the same rate.
func (r *results) scenario(name string) string {
	took := r.took(name)
	if len(took) == 0 {
		return ""
	}
	s := scenarios[slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })]
	var b strings.Builder
	b.WriteString("| p50 · p99 · p99.9 · max, ms | what a crash leaves | own limit, per s | at 20 % of it | 50 % | 80 % | 95 % |\n|---|---|--:|--:|--:|--:|--:|\n")
	for _, c := range took {
		limit := intervalOf(r.Load[cellKey(name, c.name, sameLoad)].Limit)
		fmt.Fprintf(&b, "| %s | %s | %s |", c.name, short(c.durable), limit.print(1))
		for _, l := range levels {
			if l.share > 0 {
				fmt.Fprintf(&b, " %s |", r.Load[cellKey(name, c.name, l.name)].waits())
			}
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "\nThe same load for all, %.0f per second:\n\n", s.same)
	b.WriteString("| | p50, ms | p99, ms | p99.9, ms | max, ms | unserved | failed | p99 ÷ the p99 of relock |\n|---|--:|--:|--:|--:|--:|--:|--:|\n")
	ours := r.Load[cellKey(name, relockName, sameLoad)]
	for _, c := range took {
		one := r.Load[cellKey(name, c.name, sameLoad)]
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", c.name, intervalOf(one.P50).print(1000), intervalOf(one.P99).print(1000),
			number(one.quantile(99.9)/1000), number(one.quantile(100)/1000), one.unserved(), one.wrong(), beside(c, one, ours))
	}
	return b.String()
}

// short is what stands in a narrow column.
func short(durable string) string {
	first, _, _ := strings.Cut(durable, ";")
	return first
}

// waits are the quantiles of all rounds, with what went wrong.
func (c *cell) waits() string {
	if c == nil || c.all == nil {
		return ""
	}
	var parts []string
	for _, percent := range []float64{50, 99, 99.9, 100} {
		parts = append(parts, number(c.quantile(percent)/1000))
	}
	text := strings.Join(parts, " · ")
	if c.Unserved > 0 {
		text += fmt.Sprintf(" (%s unserved)", c.unserved())
	}
	if c.Lost > 0 || c.Overlaps > 0 {
		text += fmt.Sprintf(" (%s)", c.wrong())
	}
	return text
}

// wrong is what went wrong with calls, and with exclusion.
func (c *cell) wrong() string {
	text := fmt.Sprint(c.Lost)
	if c.Lost > 0 {
		text += " failed"
	}
	if c.Overlaps > 0 {
		text += fmt.Sprintf(", **%d holds overlapped**", c.Overlaps)
	}
	return text
}

func (c *cell) unserved() string {
	if c.Unserved == 0 {
		return "0"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(c.Unserved)/float64(c.Arrivals))
}

// beside compares a p99 to the p99 of relock. A difference that the rounds do not show is none.
func beside(c contender, one, ours *cell) string {
	if ours == nil || c.name == relockName {
		return ""
	}
	times, differ := ratio(one.P99, ours.P99)
	if !differ {
		return "none"
	}
	return "**" + number(times) + "**"
}

// print prints the median and its interval, in a unit. With few rounds there is no interval.
func (i interval) print(unit float64) string {
	if math.IsNaN(i.center) {
		return ""
	}
	text := number(i.center / unit)
	if !math.IsInf(i.low, 0) && !math.IsInf(i.high, 0) {
		text += fmt.Sprintf(" (%s–%s)", number(i.low/unit), number(i.high/unit))
	}
	return text
}

// number prints about three digits.
func number(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return ""
	case v < 9.95:
		return fmt.Sprintf("%.2f", v)
	case v < 99.5:
		return fmt.Sprintf("%.1f", v)
	}
	return draw.Thousands(v)
}
