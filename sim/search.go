package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// search plays seeds until one breaks a promise, or all are done.
type search struct {
	crew    crew
	out     io.Writer
	first   uint64
	seeds   uint64 // 0: until the budget is spent
	budget  time.Duration
	verbose bool
}

// run returns the exit status.
func (s *search) run(ctx context.Context) int {
	began := time.Now()
	fmt.Fprintf(s.out, "seeds from %d on\n", s.first)
	var total answer
	var bad *answer
	played, at := 0, s.first
	next := func() (job, bool) {
		j := job{Seed: at, Report: s.verbose}
		at++
		return j, bad == nil && (s.seeds == 0 && time.Since(began) < s.budget || s.seeds > 0 && at <= s.first+s.seeds)
	}
	err := s.crew.play(ctx, next, func(a answer) {
		played++
		total.Holds += a.Holds
		total.Losses += a.Losses
		total.Overlaps += a.Overlaps
		total.Faults += a.Faults
		total.Commands += a.Commands
		if a.failed() && (bad == nil || a.Seed < bad.Seed) {
			bad = &a
		}
		if s.verbose {
			fmt.Fprintln(s.out, a.Story)
		}
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return failed
	}
	took := time.Since(began)
	fmt.Fprintf(s.out, "%d seeds in %v (%.0f a minute): %d holds, %d losses, %d overlaps after data was lost, %d faults, %d scripts run\n",
		played, took.Round(time.Millisecond), float64(played)/took.Minutes(), total.Holds, total.Losses, total.Overlaps, total.Faults, total.Commands)
	switch {
	case bad != nil:
		s.report(ctx, *bad)
		return violated
	case ctx.Err() != nil:
		return failed
	}
	return allKept
}

// report prints a seed that failed, with the fewest faults.
func (s *search) report(ctx context.Context, bad answer) {
	fmt.Fprintf(s.out, "\nseed %d breaks %v\n", bad.Seed, bad.Broken)
	small, times := s.shrink(ctx, bad)
	fmt.Fprintf(s.out, "with the fewest faults, after %d more plays (go run -C sim . -seed %d):\n\n%s%s\n", times, bad.Seed, small.Story, small.Crash)
}

// tries is how often a play with fewer faults has to pass until it counts as passed, because the order of goroutines does not
// depend on the seed alone.
const tries = 3

// shrink removes faults while the play still fails. It returns the answer of the smallest failing play, and the number of plays.
func (s *search) shrink(ctx context.Context, bad answer) (small answer, plays int) {
	small = bad
	var all []int
	for _, f := range (job{Seed: bad.Seed}).plan().Faults {
		all = append(all, f.Number)
	}
	fewest(all, func(only []int) bool {
		if ctx.Err() != nil {
			return false
		}
		left, found := tries, false
		j := job{Seed: bad.Seed, Only: only, None: len(only) == 0}
		_ = s.crew.play(ctx, func() (job, bool) { left--; return j, left >= 0 && !found }, func(a answer) {
			plays++
			if a.failed() && !found {
				found, small = true, a
			}
		})
		return found
	})
	return small, plays
}

// fewest returns a subset of all for which fails is true, and is false without any one element: delta debugging. It begins with
// large parts.
func fewest(all []int, fails func([]int) bool) []int {
	for size := (len(all) + 1) / 2; size > 0; {
		smaller := false
		for from := 0; from < len(all); from += size {
			rest := slices.Concat(all[:from], all[min(from+size, len(all)):])
			if fails(rest) {
				all, smaller = rest, true
				break
			}
		}
		switch {
		case smaller:
			size = min(size, (len(all)+1)/2)
		case size == 1:
			size = 0
		default:
			size = (size + 1) / 2
		}
	}
	return all
}

// sameness plays each seed several times, and prints how much was the same.
func (s *search) sameness(ctx context.Context, times int) int {
	if s.first == 0 {
		s.first = 1
	}
	left := max(s.seeds, 1) * uint64(times)
	n := uint64(0)
	first, least := make(map[uint64][]uint64), make(map[uint64]int)
	err := s.crew.play(ctx, func() (job, bool) {
		j := job{Seed: s.first + n/uint64(times), Same: true}
		n++
		return j, n <= left
	}, func(a answer) {
		if first[a.Seed] == nil {
			first[a.Seed], least[a.Seed] = a.Events, len(a.Events)
			return
		}
		for i, digest := range a.Events[:min(len(a.Events), least[a.Seed])] {
			if digest != first[a.Seed][i] {
				least[a.Seed] = i
				break
			}
		}
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return failed
	}
	same, all, whole := 0, 0, 0
	for seed, seconds := range least {
		same += seconds
		all += len(first[seed])
		if seconds == len(first[seed]) {
			whole++
		}
	}
	fmt.Fprintf(s.out, "%d seeds, each %d times: %d were the same to the nanosecond, to the end; on average %.0f of %.0f s were\n",
		len(first), times, whole, float64(same)/float64(len(first)), float64(all)/float64(len(first)))
	return allKept
}
