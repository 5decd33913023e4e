package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// page shows the table between two marks.
const (
	page  = "docs/operations.md"
	begin = "<!-- begin: servers -->\n"
	end   = "<!-- end: servers -->\n"
)

// draw returns the table, with the tests that were left out.
func draw(rows []row) string {
	var b, notes strings.Builder
	fmt.Fprint(&b, "| server | in |")
	for _, p := range parts {
		fmt.Fprintf(&b, " %s |", p.title)
	}
	fmt.Fprintf(&b, "\n|---|---|%s\n", strings.Repeat("---|", len(parts)))
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s |", r.server.name, r.server.source())
		for i := range parts {
			result := "**not run**"
			if i < len(r.cells) {
				result = r.cells[i]
			}
			fmt.Fprintf(&b, " %s |", result)
		}
		fmt.Fprintln(&b)
		for _, note := range r.notes {
			fmt.Fprintf(&notes, "* %s, left out %s\n", r.server.name, note)
		}
	}
	fmt.Fprintf(&b, "\nSeen with `make servers` on %s, %s/%s, %s.\n",
		time.Now().UTC().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.Version())
	if notes.Len() > 0 {
		fmt.Fprintf(&b, "\n%s", notes.String())
	}
	return b.String()
}

// write puts the table into the page.
func write(table string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	head, rest, found := strings.Cut(string(text), begin)
	_, tail, foundEnd := strings.Cut(rest, end)
	if !found || !foundEnd {
		return fmt.Errorf("%s has no %s … %s", page, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return os.WriteFile(page, []byte(head+begin+table+end+tail), 0o644)
}
