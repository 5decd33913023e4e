// Command chaos tests the lock library on real servers, with real client processes, under many faults, and checks the history
// of the clients.
//
// This package is the program: its flags (main.go), its output (table.go), and the runs of broken
// libraries (mutants.go). Package internal/scenario contains the scenarios, internal/stage plays them,
// and internal/worker is the client processes. README.md and scenarios.md have more.
package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/scenario"
	"github.com/relock-go/relock/chaos/internal/stage"
	"github.com/relock-go/relock/chaos/internal/worker"
)

// Exit statuses. Only a violation is 1.
const (
	allKept     = 0
	violated    = 1
	stageFailed = 2
)

func main() { os.Exit(run()) }

func run() int {
	var (
		names    = flag.String("scenario", "all", "`what` to play: list, all, a turn of all as 2/4, or names or numbers of scenarios, separated by commas")
		duration = flag.Duration("duration", 10*time.Second, "how long faults are injected, for each scenario")
		seed     = flag.Uint64("seed", 0, "what everything random comes from; 0: a fresh one, which is printed")
		mutants  = flag.Bool("mutants", false, "have deliberately broken variants of the library caught; names of them as arguments, or a turn as 3/8: only those")
		verbose  = flag.Bool("v", false, "say what is done when")
		client   = flag.Bool("client", false, "be a client process; for internal use")
	)
	flag.Parse()
	redis.SetLogger(silent{})
	if *client {
		if err := worker.Run(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return stageFailed
		}
		return allKept
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if *mutants {
		if !runMutants(ctx, os.Stdout, flag.Args()) {
			return violated
		}
		return allKept
	}
	if *names == "list" {
		list(os.Stdout)
		return allKept
	}
	chosen, err := scenario.Choose(*names)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return stageFailed
	}
	if *seed == 0 {
		*seed = freshSeed()
	}
	log := io.Discard
	if *verbose {
		log = os.Stdout
	}
	return playAll(ctx, chosen, *duration, *seed, log)
}

// playAll plays the scenarios, and prints their results.
func playAll(ctx context.Context, chosen []*scenario.Scenario, duration time.Duration, seed uint64, log io.Writer) int {
	fmt.Printf("seed %d, %v of faults for each scenario\n\n", seed, duration)
	s, err := stage.New(seed, log)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return stageFailed
	}
	defer s.Close()
	status := allKept
	t := newTable(os.Stdout)
	for _, sc := range chosen {
		if ctx.Err() != nil {
			status = stageFailed
			break
		}
		fmt.Fprintf(log, "%s: %s\n", sc.Name, sc.What)
		res, err := sc.Play(ctx, s, duration)
		switch {
		case errors.Is(err, deployment.ErrNoCompiler):
			t.missing(sc, err)
			continue
		case err != nil:
			fmt.Fprintln(os.Stderr, "chaos:", err)
			status = max(status, stageFailed)
		}
		t.row(sc, res)
		if len(res.Violations) > 0 {
			status = violated
		}
	}
	t.finish(seed)
	return status
}

func freshSeed() uint64 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return uint64(binary.NativeEndian.Uint32(b[:])) + 1
}

// silent keeps go-redis from logging every connection that a fault breaks.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
