package main

import (
	"fmt"
	"html"
	"strings"
	"time"
)

// line is one line of output.
type line struct {
	at    time.Duration // when it was printed, since the start of the program
	style string        // the number of its style in an escape sequence; "" for none
	text  string
}

// lineOf returns the line that a terminal shows for text, in which at most the whole line has a style.
func lineOf(at time.Duration, text string) line {
	l := line{at: at, text: text}
	if rest, found := strings.CutPrefix(text, "\x1b["); found {
		l.style, l.text, _ = strings.Cut(rest, "m")
	}
	l.text = strings.TrimSuffix(l.text, "\x1b[0m")
	return l
}

// The measures of a picture. A column is as wide as a character of the monospace fonts of the common systems.
const (
	columns    = 104
	columnWide = 7.25
	lineHigh   = 18
	padding    = 14
	atEnd      = 8 * time.Second // how long the whole output stays before the animation begins again
)

// style is the style of the terminal, by day and by night. Without animations all lines are there from the beginning.
const style = `rect{fill:#f6f8fa;stroke:#d0d7de}text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#24292f;white-space:pre}` +
	`.s1{font-weight:600}.s2{fill:#57606a}.s31{fill:#cf222e}.s32{fill:#1a7f37}.s33{fill:#9a6700}` +
	`@media(prefers-color-scheme:dark){rect{fill:#161b22;stroke:#30363d}text{fill:#e6edf3}.s2{fill:#9198a1}.s31{fill:#ff7b72}.s32{fill:#3fb950}.s33{fill:#d29922}}` +
	`@media(prefers-reduced-motion:reduce){text{animation:none!important}}`

// draw returns a picture in which lines appear as they were printed by command, again and again.
func draw(title, command string, lines []line) string {
	rows := []line{{style: "1", text: "$ " + command}}
	for _, l := range lines {
		rows = append(rows, wrapped(l)...)
	}
	total := rows[len(rows)-1].at + atEnd
	var frames, body strings.Builder
	for i, l := range rows {
		appears := ""
		if l.at > 0 {
			percent := 100 * l.at.Seconds() / total.Seconds()
			fmt.Fprintf(&frames, "@keyframes l%d{0%%,%.2f%%{opacity:0}%.2f%%,100%%{opacity:1}}", i, percent, percent+.01)
			appears = fmt.Sprintf(` style="animation:l%d %.1fs infinite"`, i, total.Seconds())
		}
		fmt.Fprintf(&body, "<text class=\"s%s\"%s x=\"%d\" y=\"%d\" xml:space=\"preserve\">%s</text>\n",
			l.style, appears, padding, padding+lineHigh*(i+1)-5, html.EscapeString(l.text))
	}
	wide, high := columns*columnWide+2*padding, len(rows)*lineHigh+2*padding
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %d\" role=\"img\">\n<title>%s</title>\n"+
		"<style>%s%s</style>\n<rect x=\".5\" y=\".5\" width=\"%.0f\" height=\"%d\" rx=\"6\"/>\n%s</svg>\n",
		wide, high, html.EscapeString(title), style, frames.String(), wide-1, high-1, body.String())
}

// wrapped returns the rows that l takes in the picture.
func wrapped(l line) []line {
	var rows []line
	for len(l.text) > columns {
		cut := strings.LastIndex(l.text[:columns], " ")
		if cut <= len(l.text)-len(strings.TrimLeft(l.text, " ")) {
			cut = columns
		}
		rows = append(rows, line{l.at, l.style, l.text[:cut]})
		l.text = strings.Repeat(" ", columns/8) + strings.TrimLeft(l.text[cut:], " ")
	}
	return append(rows, l)
}
