package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// row has the results of the parts on a server.
type row struct {
	server server
	cells  []string // one for each part
	notes  []string // which tests were left out, and why
}

// part runs something on a server. It returns the text for the table.
type part struct {
	title string
	long  bool
	run   func(*stage, context.Context) (result string, err error)
}

var parts = []part{
	{title: "tests", run: (*stage).tests},
	{title: "quickstart of each kind", run: (*stage).quickstart},
	{title: "faults", long: true, run: (*stage).faults},
}

// stage is where the parts are run: with one server as the redis-server of the PATH.
type stage struct {
	env   []string
	short bool
	notes []string
}

// play runs the parts on a server, all of them even if one fails.
func play(ctx context.Context, out io.Writer, s server, short bool) (row, error) {
	r := row{server: s}
	dir, err := s.dir(ctx)
	if err != nil {
		return r, err
	}
	st := &stage{env: environment(dir), short: short}
	for _, p := range parts {
		if short && p.long {
			r.cells = append(r.cells, "")
			continue
		}
		began := time.Now()
		result, failed := p.run(st, ctx)
		if failed != nil {
			result = "**failed**"
			err = errors.Join(err, fmt.Errorf("%s failed", p.title))
			fmt.Fprintf(out, "\n%v\n", failed)
		}
		r.cells = append(r.cells, result)
		fmt.Fprintf(out, "%s, %s: %s, %.0f s\n", s.name, p.title, result, time.Since(began).Seconds())
	}
	r.notes = st.notes
	return r, err
}

// environment returns an environment with the directory first on the PATH, and without a running server.
func environment(dir string) []string {
	env := append(os.Environ(), "RELOCK_REDIS=", "RELOCK_REQUIRE_REDIS=1") // of two of a name the last counts
	if dir != "" {
		env = append(env, "PATH="+dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	}
	return env
}

// command prepares one that a person would run in this environment.
func (s *stage) command(ctx context.Context, name string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = s.env
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	return cmd, &complaints
}

const (
	servant     = "github.com/relock-go/relock/internal/redistest" // starts the servers of the tests
	quickstarts = "github.com/relock-go/relock/examples/quickstart"
)

// tests runs the tests of the library that start a server, but for those of the quickstart. The short way has those of the API
// and of the scripts.
func (s *stage) tests(ctx context.Context) (string, error) {
	packages := []string{"./tests", "./internal/protocol"}
	if !s.short {
		var err error
		if packages, err = s.served(ctx); err != nil {
			return "", err
		}
	}
	t, err := s.test(ctx, packages...)
	if err != nil {
		return "", err
	}
	s.notes = t.reasons()
	result := fmt.Sprintf("%d passed", t.passed)
	if t.skipped > 0 {
		result += fmt.Sprintf(", %d left out", t.skipped)
	}
	return result, nil
}

// served lists the packages whose tests start servers.
func (s *stage) served(ctx context.Context) ([]string, error) {
	cmd, complaints := s.command(ctx, "go", "list", "-f", "{{.ImportPath}} {{.TestImports}} {{.XTestImports}}", "./...")
	listed, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, complaints)
	}
	var packages []string
	uses := regexp.MustCompile(`\b` + regexp.QuoteMeta(servant) + `[\] ]`)
	for line := range strings.Lines(string(listed)) {
		name, imports, _ := strings.Cut(line, " ")
		if uses.MatchString(imports) && name != quickstarts {
			packages = append(packages, name)
		}
	}
	return packages, nil
}

// quickstart runs the quickstart with each kind of lock.
func (s *stage) quickstart(ctx context.Context) (string, error) {
	t, err := s.test(ctx, "-run", "^TestQuickstart_RunsOnARealRedisAndLeavesNothing$", quickstarts)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d passed", t.passed), nil
}

// faults runs all scenarios of chaos.
func (s *stage) faults(ctx context.Context) (string, error) {
	scratch, err := os.MkdirTemp("", "relock-servers-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	chaos := filepath.Join(scratch, "chaos")
	build, complaints := s.command(ctx, "go", "build", "-C", "chaos", "-o", chaos, ".")
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, complaints)
	}
	play, complaints := s.command(ctx, chaos, "-duration", "1s")
	play.Cancel = func() error { return play.Process.Signal(os.Interrupt) } // it has servers and clients to stop
	printed, err := play.Output()
	if err != nil {
		return "", fmt.Errorf("chaos: %w\n%s\n%s", err, printed, complaints)
	}
	missing := bytes.Count(printed, []byte("| not played: "))
	result := fmt.Sprintf("%d passed", len(regexp.MustCompile(`(?m)^\| +\d+ \| `).FindAll(printed, -1))-missing)
	if missing > 0 {
		result += fmt.Sprintf(", %d not played", missing)
	}
	return result, nil
}
