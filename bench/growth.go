package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// The picture of what grows with the number of processes: panels of lines, on logarithmic scales.

const (
	panelLeft, panelRight = 64, 540
	panelHeight           = 200
	panelGap              = 74
)

const growthStyle = svgStyle + `.grid{stroke:#d0d7de;stroke-width:1}.l{fill:none;stroke:#9aa4af;stroke-width:1.5}.l.relock{stroke:#1f883d;stroke-width:3}` +
	`@media(prefers-color-scheme:dark){.grid{stroke:#3d444d}.l{stroke:#6e7781}.l.relock{stroke:#3fb950}}`

// dashes tell lines of one colour apart.
var dashes = []string{"", "7 4", "2 3", "9 3 2 3", "4 3", "1 4"}

// growth draws holds per second and commands per hold over the number of processes.
func (r *report) growth() string {
	var b strings.Builder
	y := r.panel(&b, svgPadding, "Processes that share one name, kept for 1 ms: holds per second", "rate")
	y = r.panel(&b, y, "The same: commands per hold, less is better", "commands")
	y = r.panel(&b, y, "The same: the longest wait, ms, less is better", "max")
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img">`+
		"\n<title>What grows with the number of processes: medians of %d rounds</title>\n<style>%s</style>\n%s</svg>\n",
		svgWidth, y-panelGap+44, r.config.rounds, growthStyle, b.String())
}

// line is one contender's medians, by the number of processes.
type line struct {
	name   string
	points [][2]float64
}

// lines are those of a figure of the fleet.
func (r *report) lines(figure string) []line {
	var all []line
	for _, name := range apart {
		l := line{name: name}
		for _, label := range growthLoads() {
			n, _ := strconv.ParseFloat(strings.Fields(label)[0], 64)
			if f, ok := r.figure("fleet", label, name, figure); ok && f.median > 0 {
				l.points = append(l.points, [2]float64{n, f.median})
			}
		}
		if len(l.points) > 0 {
			all = append(all, l)
		}
	}
	return all
}

// panel draws one figure from y on, and returns where the next panel begins.
func (r *report) panel(b *strings.Builder, y int, title, figure string) int {
	lines := r.lines(figure)
	low, high := math.Inf(1), 0.0
	for _, l := range lines {
		for _, p := range l.points {
			low, high = math.Min(low, p[1]), math.Max(high, p[1])
		}
	}
	if high == 0 {
		return y
	}
	low, high = math.Pow(10, math.Floor(math.Log10(low))), high*1.2
	top := float64(y + 28)
	xOf := func(n float64) float64 { return panelLeft + math.Log2(n)/math.Log2(64)*(panelRight-panelLeft) }
	yOf := func(v float64) float64 {
		return top + panelHeight*(1-math.Log(v/low)/math.Log(high/low))
	}
	fmt.Fprintf(b, "<text class=\"t\" x=\"%d\" y=\"%d\">%s</text>\n", svgPadding, y+14, html.EscapeString(title))
	for _, v := range grid(low, high) {
		fmt.Fprintf(b, "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>\n", panelLeft, yOf(v), panelRight, yOf(v))
		fmt.Fprintf(b, "<text class=\"u\" text-anchor=\"end\" x=\"%d\" y=\"%.1f\">%s</text>\n", panelLeft-6, yOf(v)+4, number(v))
	}
	for _, label := range growthLoads() {
		n, _ := strconv.ParseFloat(strings.Fields(label)[0], 64)
		fmt.Fprintf(b, "<text class=\"u\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%.0f</text>\n", xOf(n), top+panelHeight+18, n)
	}
	fmt.Fprintf(b, "<text class=\"u\" x=\"%d\" y=\"%.1f\">processes</text>\n", panelRight+18, top+panelHeight+18)
	for i, l := range lines {
		var path []string
		for _, p := range l.points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", xOf(p[0]), yOf(p[1])))
		}
		fmt.Fprintf(b, "<polyline class=\"%s\" stroke-dasharray=\"%s\" points=\"%s\"/>\n", lineClass(l.name), dashes[i%len(dashes)], strings.Join(path, " "))
	}
	labels(b, lines, xOf, yOf)
	return int(top) + panelHeight + panelGap
}

// grid returns the values that have a line across the panel: powers of ten from low on, and twice and
// five times them where one line would be too little to read a value by.
func grid(low, high float64) []float64 {
	steps := []float64{1}
	if high < 10*low {
		steps = []float64{1, 2, 5}
	}
	var values []float64
	for decade := low; decade <= high; decade *= 10 {
		for _, step := range steps {
			if v := decade * step; v <= high {
				values = append(values, v)
			}
		}
	}
	return values
}

func lineClass(name string) string {
	if slices.Contains(ours, name) {
		return "l relock"
	}
	return "l"
}

// labels writes the name of each line at its end, those of lines that end close together below each other.
func labels(b *strings.Builder, lines []line, xOf, yOf func(float64) float64) {
	last := func(l line) [2]float64 { return l.points[len(l.points)-1] }
	sorted := slices.Clone(lines)
	slices.SortFunc(sorted, func(a, b line) int { return int(yOf(last(a)[1]) - yOf(last(b)[1])) })
	free := math.Inf(-1)
	for _, l := range sorted {
		y := math.Max(yOf(last(l)[1])+4, free)
		free = y + 15
		value := number(last(l)[1])
		if n := last(l)[0]; xOf(n) < panelRight { // the rounds of more processes were void
			value = fmt.Sprintf("%s, at %.0f", value, n)
		}
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%.1f\">%s %s</text>\n", panelRight+8, y, html.EscapeString(l.name), value)
	}
}

// number prints a value of any size.
func number(v float64) string {
	if v >= 100 {
		return thousands(v)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}
