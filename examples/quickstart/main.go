// Quickstart runs four services that share locks on one Redis, or on a quorum, and shows what happens.
//
//	go run ./examples/quickstart                          on an embedded miniredis
//	go run ./examples/quickstart -redis localhost:6379    on a real Redis
//	go run ./examples/quickstart -kind fair               with another kind of lock: plain, fair, multi, rw or quorum
//	go run ./examples/quickstart -kind quorum -redis a:6379,b:6379,c:6379
//
// It checks each result and leaves no key on Redis. If a check fails, it exits with status 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

// patience bounds the whole run, whatever Redis does.
const patience = 30 * time.Second

func main() {
	addr := flag.String("redis", "", "`address` (host:port) of a Redis server, or several for a quorum, with commas; without it embedded miniredis")
	kind := flag.String("kind", "plain", "`kind` of the locks: plain, fair, multi, rw or quorum")
	flag.Parse()
	os.Exit(exitCode(os.Stdout, os.Stderr, *addr, *kind))
}

func exitCode(stdout, stderr io.Writer, addr, kind string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not done after %v", patience))
	defer cancel()
	if err := run(ctx, stdout, addr, kind); err != nil {
		fmt.Fprintln(stderr, "quickstart failed:", err)
		return 1
	}
	return 0
}

// run shows every part in turn on the Redis at addr, with locks of that kind.
func run(ctx context.Context, out io.Writer, addr, kind string) (err error) {
	d, err := newDemo(ctx, out, addr, kind)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()

	for _, part := range []struct {
		title string
		run   func(context.Context) error
	}{
		{"Four services add to one counter on Redis: GET, then SET, under one lock", d.countTogether},
		{"A function that holds a lock calls one that takes the same lock", d.nest},
		{"A job takes twice its TTL: the watchdog keeps the lock for it", d.outliveTTL},
		{"An operator takes a lock away: the holder stops through its context", d.loseLock},
		{"A waiter with a deadline: it gives up", d.giveUp},
		{"Four services call a provider: a semaphore lets two call at a time", d.limitCalls},
	} {
		d.part(part.title)
		if err := part.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.title, err)
		}
	}
	if err := d.checkNothingLeft(ctx, aMoment); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nOK: every check passed, nothing is left on Redis, %.1f s\n", d.elapsed().Seconds())
	return nil
}
