package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"

	"github.com/relock-go/relock/bench/draw"
)

// chart is one group of bars: a load of a scenario.
type chart struct {
	scenario string
	load     string
	title    string
	unit     string
}

// charts are the main results.
var charts = []chart{
	{"fleet", "32 processes, 1 ms", "32 processes × 1 goroutine, one name, held for 1 ms", "holds per second"},
	{"processes", "4 processes", "4 processes × 16 goroutines, one name", "hand-overs per second"},
	{"contended", "64 goroutines", "64 goroutines, one name", "hand-overs per second"},
	{"par", "64 goroutines", "64 goroutines, a name each", "locks + unlocks per second"},
	{"request", "1 goroutine", "One goroutine, one name", "µs per lock + unlock, less is better"},
	{"names", "1 goroutine", "One goroutine, a new name each time", "µs per lock + unlock, less is better"},
	{"wake", "idle for 30 ms before", "Waking a waiter in another process", "µs, less is better"},
	{"permits", permitsLoad, "32 processes × 4 goroutines, a semaphore of 4, permits held for 1 ms", "permits per second"},
}

// The measures of the picture.
const (
	svgLabel = 170 // width of the names
	svgBar   = 430 // width of the longest bar
	svgRow   = 22
	svgHead  = 46

	offScale = 5 // times ours
)

// svg draws the charts whose scenarios have been run, as one picture that needs no other file.
func (r *report) svg() string {
	var body strings.Builder
	y := draw.Padding
	for _, c := range charts {
		y = r.chart(&body, c, y)
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img">`+
		"\n<title>Go lock libraries on one Redis: medians of %d rounds, lines from minimum to maximum</title>\n"+
		"<style>%s</style>\n%s</svg>\n", draw.Width, y, r.config.rounds, draw.Style, body.String())
}

// chart draws one group of bars from y on, and returns where it ends.
func (r *report) chart(b *strings.Builder, c chart, y int) int {
	s := scenarioNamed(c.scenario)
	figure := s.columns[0].key
	longest := 0.0
	for _, name := range s.contenders {
		if f, ok := r.figure(s.name, c.load, name, figure); ok {
			longest = math.Max(longest, f.max)
		}
	}
	if longest == 0 {
		return y
	}
	// One that is far off would make all others look alike: its bar goes off the scale.
	if f, ok := r.figure(s.name, c.load, s.contenders[0], figure); ok {
		longest = math.Min(longest, offScale*f.median)
	}
	fmt.Fprintf(b, "<text class=\"t\" x=\"%d\" y=\"%d\">%s</text>\n", draw.Padding, y+14, html.EscapeString(c.title))
	fmt.Fprintf(b, "<text class=\"u\" x=\"%d\" y=\"%d\">%s</text>\n", draw.Padding, y+32, html.EscapeString(c.unit))
	y += svgHead
	scale := func(v float64) float64 { return svgLabel + math.Min(1, v/longest)*svgBar }
	for _, name := range s.contenders {
		f, ok := r.figure(s.name, c.load, name, figure)
		if !ok {
			continue
		}
		class := "bar"
		switch {
		case slices.Contains(kinds, name):
			class = "relock"
		case slices.Contains(floors, name):
			class = "floor"
		}
		value := draw.Thousands(f.median)
		if f.median > longest {
			value = "→ " + value
		}
		middle := float64(y) + svgRow/2 - 2
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\">%s</text>\n", draw.Padding, y+13, html.EscapeString(name))
		fmt.Fprintf(b, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>\n",
			class, svgLabel, y, scale(f.median)-svgLabel, svgRow-5)
		fmt.Fprintf(b, "<line class=\"whisker\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
			scale(f.min), middle, scale(f.max), middle)
		fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%d\">%s</text>\n", scale(f.max)+8, y+13, value)
		y += svgRow
	}
	return y + draw.Padding
}
