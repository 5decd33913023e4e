// Command sim runs the whole lock library in virtual time: many clients in one process, on embedded servers, with faults that
// follow from a seed. The judge of chaos checks the history.
//
// This package is the program: its flags (main.go), the child processes that play (crew.go), the search
// for the fewest faults that fail (search.go), the runs of broken libraries (mutants.go), and
// measurements of growth (scale.go). Package internal/play contains the plays, internal/scale the
// measurements, and internal/bubble the virtual time. Connections are links in memory. README.md has
// more.
package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/sim/internal/bubble"
)

// Exit statuses. Only a promise that was broken is 1.
const (
	allKept  = 0
	violated = 1
	failed   = 2
)

func main() {
	var (
		seeds   = flag.Uint64("seeds", 0, "how many seeds to play, for each mutant, too; 0: one with -seed, and otherwise as many as the budget allows")
		seed    = flag.Uint64("seed", 0, "the first seed; 0: a fresh one, which is printed")
		budget  = flag.Duration("budget", time.Minute, "how long to play if -seeds does not say how many; for each mutant, too")
		mutants = flag.Bool("mutants", false, "have deliberately broken variants of the library caught; names of them as arguments: only those")
		scales  = flag.Bool("scale", false, "measure what grows with processes, waiters and names, and what an outage costs, instead of playing")
		only    = flag.String("only", "", "with -scale: only what this `expression` matches, as \"fleet of 100 \"")
		publish = flag.String("publish", "", "with -scale: the `root` of the repository; keep what is measured, and write it into the pages")
		same    = flag.Int("same", 0, "play each seed so many times, and say how much of it was the same")
		crews   = flag.Int("children", runtime.NumCPU(), "how many plays are played at once")
		verbose = flag.Bool("v", false, "print the story of every seed")
		ischild = flag.Bool("child", false, "be a process that plays; for internal use")
	)
	bubble.Flags()
	flag.Parse()
	redis.SetLogger(silent{})
	if *ischild {
		bubble.Main(serve)
	}
	if *scales {
		bubble.Main(func(run bubble.Runner) int { return runScale(run, *only, *publish) })
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if *mutants {
		os.Exit(runMutants(ctx, os.Stdout, *crews, *budget, *seeds, flag.Args()))
	}
	program, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(failed)
	}
	s := search{crew: crew{program, *crews}, out: os.Stdout, first: *seed, seeds: *seeds, budget: *budget, verbose: *verbose}
	switch {
	case *same > 0:
		os.Exit(s.sameness(ctx, *same))
	case s.first == 0:
		s.first = freshSeed()
	case s.seeds == 0:
		s.seeds = 1
	}
	os.Exit(s.run(ctx))
}

func freshSeed() uint64 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return uint64(binary.NativeEndian.Uint32(b[:])) + 1
}

// silent keeps go-redis from logging every connection that a fault breaks.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
