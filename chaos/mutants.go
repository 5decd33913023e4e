package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/mutant"
)

const (
	// mutantDuration is the duration of a scenario that must catch a mutant.
	mutantDuration = 10 * time.Second
	// mutantSeeds is how often each scenario is tried.
	mutantSeeds = 8
)

// hunt catches mutants.
type hunt struct {
	out     io.Writer
	builder *mutant.Builder
	whole   string          // the program with the unchanged library
	sound   map[take]string // its violations, by run; "" if it passed
}

// take is one run of a scenario.
type take struct {
	scenario string
	seed     int
}

func (t take) String() string { return fmt.Sprintf("%s, seed %d", t.scenario, t.seed) }

// runMutants builds every mutant of the library, or the named ones, runs the scenarios that must catch it, and reports whether
// all mutants were caught. A catch counts only if the unchanged library passes the same scenario with the same seed.
func runMutants(ctx context.Context, out io.Writer, names []string) bool {
	chosen, err := mutant.Choose(names)
	if err != nil {
		fmt.Fprintln(out, err)
		return false
	}
	dir, err := os.MkdirTemp("", "chaos-mutants-")
	if err != nil {
		fmt.Fprintln(out, err)
		return false
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // servers that do not run as root work below it
		fmt.Fprintln(out, err)
		return false
	}
	h := &hunt{out: out, sound: make(map[take]string)}
	if h.builder, err = mutant.NewBuilder(ctx, dir); err == nil {
		h.whole, err = h.builder.Build(ctx, nil, ".")
	}
	if err != nil {
		fmt.Fprintln(out, err)
		return false
	}
	fmt.Fprintf(out, "| %-30s | %-32s | %-30s |\n|%s|%s|%s|\n", "mutant", "caught in", "by",
		strings.Repeat("-", 32), strings.Repeat("-", 34), strings.Repeat("-", 32))
	free := 0
	for i := range chosen {
		if len(chosen[i].Catch) == 0 {
			continue
		}
		if ctx.Err() != nil || !h.hunt(ctx, &chosen[i]) {
			free++
		}
	}
	fmt.Fprintf(out, "\n%d mutants, %d not caught\n", len(chosen), free)
	return free == 0
}

// hunt reports whether m is caught.
func (h *hunt) hunt(ctx context.Context, m *mutant.Mutant) bool {
	program, err := h.builder.Build(ctx, m, ".")
	if err != nil {
		h.row(m, "", err.Error())
		return false
	}
	defer os.Remove(program)
	why := "nobody noticed"
	for seed := 1; seed <= mutantSeeds; seed++ {
		for _, scenario := range m.Catch {
			t := take{scenario, seed}
			by, err := h.play(ctx, program, t)
			if err != nil {
				why = err.Error() // an error of the run is no catch
			}
			if by == "" {
				continue
			}
			if flaw := h.passes(ctx, t); flaw != "" {
				why = fmt.Sprintf("%v: the library as it is does not pass either: %s", t, flaw)
				continue
			}
			h.row(m, t.String(), by)
			return true
		}
	}
	h.row(m, "", "NOT CAUGHT: "+why)
	return false
}

func (h *hunt) row(m *mutant.Mutant, in, by string) {
	fmt.Fprintf(h.out, "| %-30s | %-32s | %-30s |\n", m.Name, in, by)
}

// passes returns "" if the unchanged library passes, and otherwise the violations.
func (h *hunt) passes(ctx context.Context, t take) string {
	if flaw, known := h.sound[t]; known {
		return flaw
	}
	by, err := h.play(ctx, h.whole, t)
	if err != nil {
		by = err.Error()
	}
	h.sound[t] = by
	return by
}

// breach matches a line that reports a violation.
var breach = regexp.MustCompile(`(?m)^(I[1-7]|porcupine|resource|scenario) `)

// play plays a scenario with a program, and returns the violated invariants, or "". An error means that the run itself failed.
func (h *hunt) play(ctx context.Context, program string, t take) (by string, err error) {
	cmd := exec.CommandContext(ctx, program, "-scenario", t.scenario, "-duration", mutantDuration.String(), "-seed", fmt.Sprint(t.seed))
	cmd.Env = append(os.Environ(), "TMPDIR="+h.builder.Dir) // the histories of a mutant are not kept
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", nil
	case errors.As(err, &exit) && exit.ExitCode() == violated:
		found := make(map[string]bool)
		for _, line := range breach.FindAllSubmatch(out, -1) {
			found[string(line[1])] = true
		}
		if len(found) > 0 {
			return listed(found), nil
		}
	}
	return "", fmt.Errorf("%v: %w: %s", t, err, lastLine(out))
}

// listed returns the invariants that were found, in their order.
func listed(found map[string]bool) string {
	var by []string
	for _, name := range invariants {
		if found[name] {
			by = append(by, name)
		}
	}
	return strings.Join(by, ", ")
}

func lastLine(out []byte) string {
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	return string(lines[len(lines)-1])
}
