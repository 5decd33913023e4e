package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/relock-go/relock/bench/draw"
)

// recovery is the table of the events of one sort: when waiters are served, or when holders learn.
func (r *results) recovery(learns bool) string {
	if len(r.Recovery) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("| |")
	line := "\n|---|"
	for _, ev := range events {
		if ev.learns == learns {
			b.WriteString(" " + ev.title + " |")
			line += "--:|"
		}
	}
	b.WriteString(line + "\n")
	for _, c := range contenders {
		if r.Recovery[c.name] == nil {
			continue
		}
		fmt.Fprintf(&b, "| %s |", c.name)
		for _, ev := range events {
			if ev.learns == learns {
				fmt.Fprintf(&b, " %s |", outcomes(r.Recovery[c.name][ev.name], learns))
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// outcomes prints the medians of the observations, with the least and the greatest.
func outcomes(all []outcome, learns bool) string {
	if len(all) == 0 {
		return ""
	}
	all = slices.DeleteFunc(slices.Clone(all), func(o outcome) bool { return o.Note == tooEarly })
	if len(all) == 0 {
		return tooEarly
	}
	if all[0].Note == noNotice {
		return "no notice"
	}
	if all[0].Note == errNotHere.Error() {
		return "–"
	}
	if all[0].Note != "" {
		return all[0].Note
	}
	column := func(of func(outcome) float64) string {
		var times []float64
		for _, o := range all {
			times = append(times, of(o))
		}
		return spread(times)
	}
	if learns {
		return column(func(o outcome) float64 { return o.Learned })
	}
	return column(func(o outcome) float64 { return o.First }) + "; " + column(func(o outcome) float64 { return o.Last })
}

// spread prints the median of a few times in ms, with the least and the greatest. What never came is the greatest.
func spread(times []float64) string {
	times = slices.Clone(times)
	for i, t := range times {
		if t == never {
			times[i] = math.Inf(1)
		}
	}
	slices.Sort(times)
	print := func(t float64) string {
		if math.IsInf(t, 1) {
			return fmt.Sprintf("> %.0f", giveUp.Seconds())
		}
		return fmt.Sprintf("%.2f", t/1000)
	}
	text := print(times[len(times)/2])
	if low, high := print(times[0]), print(times[len(times)-1]); low != high {
		text += fmt.Sprintf(" (%s–%s)", low, high)
	}
	return text
}

// cost is what each lock costs at the same load for all.
func (r *results) cost() string {
	var b strings.Builder
	for _, s := range scenarios {
		took := r.took(s.name)
		if len(took) == 0 {
			continue
		}
		fmt.Fprintf(&b, "**%s**, %.0f per second:\n\n", s.title, s.same)
		b.WriteString("| for each lock with its unlock | CPU of clients, µs | CPU of the server, µs | bytes | allocations | collections for 1 000 |\n|---|--:|--:|--:|--:|--:|\n")
		for _, c := range took {
			one := r.Load[cellKey(s.name, c.name, sameLoad)]
			allocs := ""
			if c.open != nil {
				allocs = intervalOf(one.Allocs).print(1)
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", c.name, intervalOf(one.ClientCPU).print(1), intervalOf(one.ServerCPU).print(1),
				intervalOf(one.Bytes).print(1), allocs, intervalOf(one.GCs).print(1))
		}
		b.WriteString("\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// memory is what locks and waiters take.
func (r *results) memory() string {
	if len(r.Footprint) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("| bytes in the client; in the server | a lock that is held | a goroutine or thread that waits | a process that waits |\n|---|--:|--:|--:|\n")
	for _, c := range contenders {
		if f, measured := r.Footprint[c.name]; measured {
			fmt.Fprintf(&b, "| %s | %s; %s | %s; %s | %s; %s |\n", c.name, size(f.HeldClient), size(f.HeldServer),
				size(f.WaitingClient), size(f.WaitingServer), size(f.ProcessClient), size(f.ProcessServer))
		}
	}
	return b.String()
}

// size prints a number of bytes: none if less memory was used afterwards than before, because the rest of the process has
// released some.
func size(v float64) string { return draw.Thousands(max(0, math.Round(v))) }
