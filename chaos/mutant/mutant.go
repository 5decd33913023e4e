// Package mutant breaks the lock library on purpose, one promise at a time, to see whether
// the harness finds out. A mutant is built from edits of the library's files by
// `go build -overlay`: nothing of it is in the library, or on any path that is shipped.
package mutant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Mutant is a library with one flaw.
type Mutant struct {
	Name   string
	Breaks string // what the flaw is
	Edits  []Edit
	Catch  []string // scenarios one of which must catch it
}

// Edit replaces a text that occurs once in a file of the library.
type Edit struct {
	File, Old, New string
}

// apply returns the mutant's files, by their names. root is where the library is.
func (m *Mutant) apply(root string) (map[string]string, error) {
	files := make(map[string]string)
	for _, e := range m.Edits {
		text, edited := files[e.File]
		if !edited {
			source, err := os.ReadFile(filepath.Join(root, e.File))
			if err != nil {
				return nil, fmt.Errorf("mutant %s: %w", m.Name, err)
			}
			text = string(source)
		}
		if n := strings.Count(text, e.Old); n != 1 {
			return nil, fmt.Errorf("mutant %s: %s has %d times what is to be replaced: %q", m.Name, e.File, n, e.Old)
		}
		files[e.File] = strings.Replace(text, e.Old, e.New, 1)
	}
	return files, nil
}

// Builder builds programs with the library broken.
type Builder struct {
	Root string // of the library
	Dir  string // for what is built, to be removed by its maker
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

// Build builds the package pkg with m, or with the library as it is if m is nil, and
// returns the program.
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

// overlay writes the mutant's files, and the list of them that the go command wants.
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

// explained adds to an error of a program what that has printed.
func explained(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return err
}
