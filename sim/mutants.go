package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/mutant"
)

// runMutants builds every mutant of the library, or the named ones, and plays seeds from 1 on until one breaks a promise that the
// unchanged library keeps with the same seed. A crash is no catch.
func runMutants(ctx context.Context, out io.Writer, size int, budget time.Duration, seeds uint64, names []string) int {
	chosen, err := mutant.Choose(names)
	if err != nil {
		fmt.Fprintln(out, err)
		return failed
	}
	dir, err := os.MkdirTemp("", "sim-mutants-")
	if err != nil {
		fmt.Fprintln(out, err)
		return failed
	}
	defer os.RemoveAll(dir)
	builder, err := mutant.NewBuilder(ctx, dir)
	if err != nil {
		fmt.Fprintln(out, err)
		return failed
	}
	whole, err := builder.Build(ctx, nil, ".")
	if err != nil {
		fmt.Fprintln(out, err)
		return failed
	}
	h := hunt{out: out, builder: builder, whole: crew{whole, size}, size: size, budget: budget, seeds: seeds}
	fmt.Fprintf(out, "| %-30s | %-8s | %-8s | %-40s |\n|---|---|---|---|\n", "mutant", "seeds", "after", "by")
	caught := 0
	for i := range chosen {
		if h.hunt(ctx, &chosen[i]) {
			caught++
		}
	}
	fmt.Fprintf(out, "\n%d of %d mutants caught\n", caught, len(chosen))
	if caught < len(chosen) {
		return violated
	}
	return allKept
}

// hunt catches mutants.
type hunt struct {
	out     io.Writer
	builder *mutant.Builder
	whole   crew
	size    int
	budget  time.Duration
	seeds   uint64 // for each mutant; 0: until the budget is spent
}

// hunt reports whether m is caught.
func (h *hunt) hunt(ctx context.Context, m *mutant.Mutant) bool {
	program, err := h.builder.Build(ctx, m, ".")
	if err != nil {
		fmt.Fprintf(h.out, "| %-30s | - | - | %v |\n", m.Name, err)
		return false
	}
	defer os.Remove(program)
	began, seed, played := time.Now(), uint64(0), 0
	why, by, after := "nothing was broken", "", uint64(0)
	err = crew{program, h.size}.play(ctx, func() (job, bool) {
		seed++
		return job{Seed: seed}, by == "" && (h.seeds == 0 && time.Since(began) < h.budget || seed <= h.seeds)
	}, func(a answer) {
		played++
		switch {
		case a.Crash != "":
			why = "crashed with seed " + fmt.Sprint(a.Seed)
		case len(a.Broken) == 0 || by != "":
		case h.passes(ctx, a.Seed):
			by, after = strings.Join(a.Broken, ", "), a.Seed
		default:
			why = fmt.Sprintf("the library as it is does not pass seed %d either", a.Seed)
		}
	})
	if err != nil {
		why = err.Error()
	}
	took := time.Since(began).Round(100 * time.Millisecond)
	if by == "" {
		fmt.Fprintf(h.out, "| %-30s | %-8d | %-8v | NOT CAUGHT: %s |\n", m.Name, played, took, why)
		return false
	}
	fmt.Fprintf(h.out, "| %-30s | %-8d | %-8v | %-40s |\n", m.Name, after, took, by)
	return true
}

// passes reports whether the unchanged library keeps all promises with a seed.
func (h *hunt) passes(ctx context.Context, seed uint64) bool {
	left, kept := 2, true
	err := h.whole.play(ctx, func() (job, bool) { left--; return job{Seed: seed}, left >= 0 }, func(a answer) { kept = kept && !a.failed() })
	return err == nil && kept
}
