package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"
)

// console is where the command writes.
type console struct {
	out, err io.Writer
	colours  bool // of out
	errTTY   bool
	width    int // of the terminal that err is
}

func newConsole() *console {
	plain := os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb"
	c := &console{out: os.Stdout, err: os.Stderr, width: 80,
		colours: !plain && term.IsTerminal(int(os.Stdout.Fd())),
		errTTY:  term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb"}
	if w, _, err := term.GetSize(int(os.Stderr.Fd())); err == nil && w > 10 {
		c.width = w
	}
	return c
}

// style is how a line looks where there are colours.
type style string

const (
	normal style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
)

// paint returns text in a style.
func (c *console) paint(s style, text string) string {
	if !c.colours || s == normal {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// table is drawn with columns as wide as they need to be.
type table struct {
	rows   [][]string
	styles []style
}

func (t *table) add(s style, cells ...string) {
	t.rows, t.styles = append(t.rows, cells), append(t.styles, s)
}

// draw draws t. Columns that are empty but for their head are left out.
func (c *console) draw(t *table) {
	used := make([]bool, len(t.rows[0]))
	for _, row := range t.rows[1:] {
		for i, cell := range row {
			used[i] = used[i] || cell != ""
		}
	}
	var buf bytes.Buffer
	w := tabwriter.NewWriter(&buf, 0, 0, 2, ' ', 0)
	for _, row := range t.rows {
		var cells []string
		for i, cell := range row {
			if used[i] || len(t.rows) == 1 {
				cells = append(cells, cell)
			}
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	w.Flush()
	// Styles come after the columns are aligned: tabwriter would count them as text.
	for i, line := range strings.Split(strings.TrimRight(buf.String(), "\n"), "\n") {
		fmt.Fprintln(c.out, c.paint(t.styles[i], strings.TrimRight(line, " ")))
	}
}

// printJSON prints v, indented.
func (c *console) printJSON(v any) error {
	encoder := json.NewEncoder(c.out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// printLine prints v as one line of JSON.
func (c *console) printLine(v any) error { return json.NewEncoder(c.out).Encode(v) }

// short is d for eyes.
func short(d time.Duration) string {
	switch {
	case d < 0:
		return "never ends"
	case d < 10*time.Second:
		return d.Truncate(100 * time.Millisecond).String()
	case d < time.Minute:
		return d.Truncate(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	default:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
}

// clean is text from Redis or a user that cannot steer the terminal.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
}
