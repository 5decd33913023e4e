// Package mutant breaks the lock library on purpose, one promise at a time, to test the harness. A mutant is built from edits
// of the library's files by `go build -overlay`. The library contains only comments that mark the lines to edit.
package mutant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/relock-go/relock/chaos/internal/turns"
)

// Mutant is the library with one defect.
type Mutant struct {
	Name   string
	Breaks string // the defect
	Edits  []Edit
	Catch  []string // scenarios, one of which must catch it; none: sim does
}

// Edit changes the line of the library that has its anchor. It replaces Old, which the line contains once, or the whole line
// if Old is empty. An Edit names as little of the line as possible, so that the library can be renamed without it: … in Old
// stands for any text, as short as possible, or, at its end, for the rest of the line. Then the first place that matches is
// replaced, and … in New is that text again.
type Edit struct {
	Old, New string
}

// replace returns line after the edit, and how often Old matches.
func (e Edit) replace(line string) (edited string, n int) {
	switch {
	case e.Old == "":
		return e.New, 1
	case !strings.Contains(e.Old, "…"):
		return strings.Replace(line, e.Old, e.New, 1), strings.Count(line, e.Old)
	}
	pattern := strings.ReplaceAll(regexp.QuoteMeta(e.Old), "…", "(.*?)")
	if strings.HasSuffix(e.Old, "…") {
		pattern += "$"
	}
	match := regexp.MustCompile(pattern).FindStringSubmatch(line)
	if match == nil {
		return line, 0
	}
	replacement := e.New
	for _, text := range match[1:] {
		replacement = strings.Replace(replacement, "…", text, 1)
	}
	return strings.Replace(line, match[0], replacement, 1), 1
}

// anchor returns the name of the i-th edit: the name of the mutant, with a number if the mutant has several edits.
func (m *Mutant) anchor(i int) string {
	if len(m.Edits) == 1 {
		return m.Name
	}
	return fmt.Sprintf("%s/%d", m.Name, i+1)
}

// anchored matches a line with the anchors of edits: // mutant: NAME, NAME. They mark the code before them in the line, or, if
// there is none, the next line.
var anchored = regexp.MustCompile(`^(.*?)\s*(?://|--) mutant: (\S+(?:, \S+)*)$`)

// apply returns the mutant's files, by their names. root is where the library is.
func (m *Mutant) apply(root string) (map[string]string, error) {
	files, err := sources(root)
	if err != nil {
		return nil, fmt.Errorf("mutant %s: %w", m.Name, err)
	}
	edited := make(map[string]string)
	for i, e := range m.Edits {
		file, err := e.apply(files, m.anchor(i))
		if err != nil {
			return nil, fmt.Errorf("mutant %s: %w", m.Name, err)
		}
		edited[file] = strings.Join(files[file], "\n")
	}
	return edited, nil
}

// apply edits the line at the anchor, and returns the name of its file.
func (e Edit) apply(files map[string][]string, anchor string) (string, error) {
	in, at := "", 0
	for file, lines := range files {
		for i, line := range lines {
			if !strings.Contains(line, anchor) { // to match the pattern with every line would take long
				continue
			}
			m := anchored.FindStringSubmatch(line)
			if m == nil || !slices.Contains(strings.Split(m[2], ", "), anchor) {
				continue
			}
			if in != "" {
				return "", fmt.Errorf("two lines have the anchor %s: one in %s, one in %s", anchor, in, file)
			}
			in, at = file, i
			if strings.TrimSpace(m[1]) == "" {
				at++
			}
		}
	}
	if in == "" {
		return "", fmt.Errorf("no line has the anchor %s", anchor)
	}
	line := files[in][at]
	edited, n := e.replace(line)
	if n != 1 {
		return "", fmt.Errorf("the line at the anchor %s in %s has %q %d times: %s", anchor, in, e.Old, n, line)
	}
	files[in][at] = edited
	return in, nil
}

// sources returns the lines of the library's files, by their names.
func sources(root string) (map[string][]string, error) {
	files := make(map[string][]string)
	return files, fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if _, err := os.Stat(filepath.Join(root, name, "go.mod")); name != "." && err == nil {
				return fs.SkipDir // a module of its own
			}
		case strings.HasSuffix(name, ".lua"), strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			text, err := os.ReadFile(filepath.Join(root, name))
			if err != nil {
				return err
			}
			files[name] = strings.Split(string(text), "\n")
		}
		return nil
	})
}

// Choose returns the mutants with the given names, all without one. A name k/n is the
// k-th of n turns.
func Choose(names []string) ([]Mutant, error) {
	if len(names) == 0 {
		return All, nil
	}
	var chosen []Mutant
	for _, name := range names {
		if strings.Contains(name, "/") {
			some, err := turns.Of(All, name)
			if err != nil {
				return nil, err
			}
			chosen = append(chosen, some...)
			continue
		}
		i := slices.IndexFunc(All, func(m Mutant) bool { return m.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("no mutant %q", name)
		}
		chosen = append(chosen, All[i])
	}
	return chosen, nil
}

// Builder builds programs with the library broken.
type Builder struct {
	Root string // of the library
	Dir  string // for the programs; the caller removes it
}

// NewBuilder finds the library that the module in the working directory uses.
func NewBuilder(ctx context.Context, dir string) (*Builder, error) {
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/relock-go/relock")
	root, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("where the library is: %w", explained(err))
	}
	return &Builder{Root: strings.TrimSpace(string(root)), Dir: dir}, nil
}

// Build builds the package pkg with m, or with the unchanged library if m is nil, and returns the program.
func (b *Builder) Build(ctx context.Context, m *Mutant, pkg string) (string, error) {
	name, args := "unbroken", []string{"build", "-buildvcs=false"}
	if m != nil {
		overlay, err := b.overlay(m)
		if err != nil {
			return "", err
		}
		name, args = m.Name, append(args, "-overlay", overlay)
	}
	program := filepath.Join(b.Dir, name)
	build := exec.CommandContext(ctx, "go", append(args, "-o", program, pkg)...)
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("mutant %s does not compile: %w\n%s", name, err, out)
	}
	return program, nil
}

// overlay writes the mutant's files, and their list for the go command.
func (b *Builder) overlay(m *Mutant) (string, error) {
	files, err := m.apply(b.Root)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(b.Dir, m.Name+".files")
	replace := make(map[string]string)
	for i, file := range slices.Sorted(maps.Keys(files)) {
		written := filepath.Join(dir, fmt.Sprintf("%d-%s", i, filepath.Base(file)))
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(written, []byte(files[file]), 0o644)); err != nil {
			return "", err
		}
		replace[filepath.Join(b.Root, file)] = written
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, list, 0o644)
}

// explained adds the output of a program to its error.
func explained(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return err
}
