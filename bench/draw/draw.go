// Package draw draws the pictures of bench and sim, and writes blocks into pages.
package draw

import (
	"fmt"
	"os"
	"strings"
)

// The measures of a picture.
const (
	Width   = 720
	Padding = 16
)

// Style is the style of the texts and bars of a picture, by day and by night.
const Style = `text{font:13px system-ui,sans-serif;fill:#24292f}` +
	`.t{font-weight:600;font-size:14px}.u{fill:#57606a;font-size:12px}` +
	`.bar{fill:#9aa4af}.relock{fill:#1f883d}.floor{fill:#d0d7de}.whisker{stroke:#57606a}` +
	`@media(prefers-color-scheme:dark){text{fill:#e6edf3}.u{fill:#9198a1}.bar{fill:#6e7781}.relock{fill:#3fb950}` +
	`.floor{fill:#424a53}.whisker{stroke:#9198a1}}`

// Thousands prints a whole number in groups of three digits.
func Thousands(v float64) string {
	text := fmt.Sprintf("%.0f", v)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + " " + text[i:]
	}
	return text
}

// ReplaceBlock puts text between the two markers of that name in a page.
func ReplaceBlock(file, name, text string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	begin, end := "<!-- begin: "+name+" -->\n", "<!-- end: "+name+" -->\n"
	head, rest, found := strings.Cut(string(page), begin)
	_, tail, foundEnd := strings.Cut(rest, end)
	if !found || !foundEnd {
		return fmt.Errorf("%s has no %s … %s", file, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return os.WriteFile(file, []byte(head+begin+text+end+tail), 0o644)
}
