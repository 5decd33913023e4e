package draw

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

const (
	panelLeft, panelRight = 64, 540
	panelHeight           = 200
	panelGap              = 74
)

const lineStyle = Style + `.grid{stroke:#d0d7de;stroke-width:1}.l{fill:none;stroke:#9aa4af;stroke-width:1.5}.l.relock{stroke:#1f883d;stroke-width:3}` +
	`@media(prefers-color-scheme:dark){.grid{stroke:#3d444d}.l{stroke:#6e7781}.l.relock{stroke:#3fb950}}`

// dashes distinguish lines of one colour.
var dashes = []string{"", "7 4", "2 3", "9 3 2 3", "4 3", "1 4"}

// Line is one line of a panel.
type Line struct {
	Name   string
	Ours   bool
	Points [][2]float64
}

// Panel is lines over what there is more and more of, both on logarithmic scales.
type Panel struct {
	Title string
	Along string    // what there is more of
	Ticks []float64 // how many, each a power of 2 or not; the last one is the most
	Lines []Line
}

// Lines draws panels below each other, as one picture that needs no other file.
func Lines(title string, panels ...Panel) string {
	var b strings.Builder
	y := Padding
	for _, p := range panels {
		y = p.draw(&b, y)
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img">`+
		"\n<title>%s</title>\n<style>%s</style>\n%s</svg>\n",
		Width, y-panelGap+44, html.EscapeString(title), lineStyle, b.String())
}

// draw draws a panel from y on, and returns where the next one begins.
func (p Panel) draw(b *strings.Builder, y int) int {
	low, high := math.Inf(1), 0.0
	for _, l := range p.Lines {
		for _, at := range l.Points {
			low, high = math.Min(low, at[1]), math.Max(high, at[1])
		}
	}
	if high == 0 {
		return y
	}
	low, high = math.Pow(10, math.Floor(math.Log10(low))), high*1.2
	first, most := p.Ticks[0], p.Ticks[len(p.Ticks)-1]
	top := float64(y + 28)
	xOf := func(n float64) float64 {
		return panelLeft + math.Log2(n/first)/math.Log2(most/first)*(panelRight-panelLeft)
	}
	yOf := func(v float64) float64 {
		return top + panelHeight*(1-math.Log(v/low)/math.Log(high/low))
	}
	fmt.Fprintf(b, "<text class=\"t\" x=\"%d\" y=\"%d\">%s</text>\n", Padding, y+14, html.EscapeString(p.Title))
	for _, v := range grid(low, high) {
		fmt.Fprintf(b, "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>\n", panelLeft, yOf(v), panelRight, yOf(v))
		fmt.Fprintf(b, "<text class=\"u\" text-anchor=\"end\" x=\"%d\" y=\"%.1f\">%s</text>\n", panelLeft-6, yOf(v)+4, number(v))
	}
	for _, n := range p.Ticks {
		fmt.Fprintf(b, "<text class=\"u\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%.0f</text>\n", xOf(n), top+panelHeight+18, n)
	}
	fmt.Fprintf(b, "<text class=\"u\" x=\"%d\" y=\"%.1f\">%s</text>\n", panelRight+18, top+panelHeight+18, html.EscapeString(p.Along))
	for i, l := range p.Lines {
		var path []string
		for _, at := range l.Points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", xOf(at[0]), yOf(at[1])))
		}
		class := "l"
		if l.Ours {
			class = "l relock"
		}
		fmt.Fprintf(b, "<polyline class=\"%s\" stroke-dasharray=\"%s\" points=\"%s\"/>\n", class, dashes[i%len(dashes)], strings.Join(path, " "))
	}
	labels(b, p.Lines, xOf, yOf)
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

// labels writes the name of each line at its end, those of lines that end close together below each other.
func labels(b *strings.Builder, lines []Line, xOf, yOf func(float64) float64) {
	last := func(l Line) [2]float64 { return l.Points[len(l.Points)-1] }
	sorted := slices.Clone(lines)
	slices.SortFunc(sorted, func(a, b Line) int { return int(yOf(last(a)[1]) - yOf(last(b)[1])) })
	free := math.Inf(-1)
	for _, l := range sorted {
		y := math.Max(yOf(last(l)[1])+4, free)
		free = y + 15
		value := number(last(l)[1])
		if n := last(l)[0]; xOf(n) < panelRight { // of more there is no figure
			value = fmt.Sprintf("%s, at %.0f", value, n)
		}
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%.1f\">%s %s</text>\n", panelRight+8, y, html.EscapeString(l.Name), value)
	}
}

// number prints a value of any size.
func number(v float64) string {
	if v >= 100 {
		return Thousands(v)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}
