package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/relock-go/relock/bench/draw"
)

// The picture of what grows with the number of processes.

// growth draws holds per second, commands per hold and the longest wait over the number of processes.
func (r *report) growth() string {
	return draw.Lines(fmt.Sprintf("What grows with the number of processes: medians of %d rounds", r.config.rounds),
		r.panel("Processes that share one name, kept for 1 ms: holds per second", "rate"),
		r.panel("The same: commands per hold, less is better", "commands"),
		r.panel("The same: the longest wait, ms, less is better", "max"))
}

// panel has the medians of a figure of the fleet, a line for each contender.
func (r *report) panel(title, figure string) draw.Panel {
	p := draw.Panel{Title: title, Along: "processes"}
	for _, label := range growthLoads() {
		p.Ticks = append(p.Ticks, processesOf(label))
	}
	for _, name := range apart {
		l := draw.Line{Name: name, Ours: slices.Contains(ours, name)}
		for _, label := range growthLoads() {
			if f, ok := r.figure("fleet", label, name, figure); ok && f.median > 0 {
				l.Points = append(l.Points, [2]float64{processesOf(label), f.median})
			}
		}
		if len(l.Points) > 0 {
			p.Lines = append(p.Lines, l)
		}
	}
	return p
}

// processesOf is the number that the label of a load of the fleet begins with.
func processesOf(label string) float64 {
	n, _ := strconv.ParseFloat(strings.Fields(label)[0], 64)
	return n
}
