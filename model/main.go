// Command model checks the models of the protocol with Spin: every promise holds, and breaks as soon as
// a rule is disabled. README.md describes the models.
//
//	go run ./model                     what the gate checks
//	go run ./model -long               larger sizes, too: 35 to 45 minutes in all
//	go run ./model -rule NO_RETIRE     what happens without that rule
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"time"
)

func main() {
	long := flag.Bool("long", false, "check larger sizes, too")
	rule := flag.String("rule", "", "show what happens without this rule")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *long, *rule); err != nil {
		fmt.Fprintln(os.Stderr, "model:", err)
		os.Exit(1)
	}
}

// What one run may take. Of the large sizes most are searched to their end within it. One of the usual sizes takes half a
// minute at most, but the gate gives it only what tests in real time leave of the processors.
var (
	usual = limits{time: 5 * time.Minute, memory: 4000}
	large = limits{time: 5 * time.Minute, memory: 8000}
)

func run(ctx context.Context, out io.Writer, long bool, rule string) error {
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%w; on Debian: apt-get install spin gcc", err)
		}
	}
	checks, err := plan()
	if err != nil {
		return err
	}
	if rule != "" {
		return show(ctx, out, checks, rule)
	}
	for _, c := range checks {
		if c.long && !long {
			continue
		}
		most := usual
		if c.long {
			most = large
		}
		v, err := verify(ctx, c, most)
		if err != nil {
			return fmt.Errorf("%v: %w", c, err)
		}
		if v.broken != c.promise {
			printBreach(out, v)
			return fmt.Errorf("%v: broken is %q, not %q", c, v.broken, c.promise)
		}
		says := "keeps its promises"
		if c.rule != "" {
			says = "breaks " + c.promise
		}
		if v.part {
			says += " as far as it was searched"
		}
		fmt.Fprintf(out, "%-60v %s, %d states, %.1f s\n", c, says, v.states, v.took.Seconds())
	}
	return nil
}

// show prints what happens without a rule, in each model that has it.
func show(ctx context.Context, out io.Writer, checks []check, rule string) error {
	found := false
	for _, c := range checks {
		if c.rule != rule {
			continue
		}
		found = true
		v, err := verify(ctx, c, usual)
		if err != nil {
			return fmt.Errorf("%v: %w", c, err)
		}
		fmt.Fprintf(out, "%s: %s: %s.\n\n", c.model, c.rule, c.meaning)
		printBreach(out, v)
	}
	if found {
		return nil
	}
	fmt.Fprintln(out, "The rules that can be switched off:")
	for _, c := range checks {
		if c.rule != "" {
			fmt.Fprintf(out, "  %-12s %-23s %s\n", c.model, c.rule, c.meaning)
		}
	}
	return fmt.Errorf("there is no rule %q", rule)
}

// printBreach prints how a promise is broken.
func printBreach(out io.Writer, v verdict) {
	for _, line := range v.story {
		fmt.Fprintln(out, "  "+line)
	}
	if v.broken != "" {
		fmt.Fprintln(out, "\nThe broken promise: "+v.broken+".\n")
	}
}
