// Command open measures lock libraries as an engineer sees them who has to choose one: the wait at a given load and its tail
// (arrivals in an open loop, time from the intended start), recovery from faults, and what a lock costs. It prints the results
// as Markdown, and writes them into docs/benchmark.md with -publish. It needs Linux.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	if os.Getenv(workerEnv) != "" {
		serve(os.Stdin, os.Stdout)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "open:", err)
		os.Exit(1)
	}
}

// config has the values of the command line.
type config struct {
	scenarios  []scenario
	contenders []contender
	rounds     int
	recovery   int // how often each fault is made
	memory     bool
	budget     time.Duration
	seed       uint64
	publish    string // the root of the repository
	save       string
	from       string
	command    string
}

func parse(args []string, stderr io.Writer) (config, error) {
	c := config{command: strings.TrimSpace("go run -C bench/open . " + strings.Join(args, " "))}
	flags := flag.NewFlagSet("open", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var scenarioNames, contenderNames []string
	for _, s := range scenarios {
		scenarioNames = append(scenarioNames, s.name)
	}
	for _, one := range contenders {
		contenderNames = append(contenderNames, one.name)
	}
	chosen := flags.String("scenarios", "all", "comma-separated `names` of: "+strings.Join(scenarioNames, ", ")+"; none leaves the loads out")
	beside := flags.String("contenders", "all", "comma-separated `names` of: "+strings.Join(contenderNames, ", "))
	flags.IntVar(&c.rounds, "rounds", 6, "how often each load is measured; intervals need 6")
	flags.IntVar(&c.recovery, "recovery", 3, "how often each fault is made; 0 leaves recovery out")
	flags.BoolVar(&c.memory, "memory", true, "measure the memory of locks and waiters")
	flags.DurationVar(&c.budget, "budget", time.Hour, "how long the run may take; the windows are as long as that allows")
	flags.Uint64Var(&c.seed, "seed", 1, "of the arrivals")
	flags.StringVar(&c.publish, "publish", "", "`root` of the repository: keep the results, and write pages and pictures, if the machine was quiet")
	flags.StringVar(&c.save, "save", "", "`file` to keep the results in")
	flags.StringVar(&c.from, "from", "", "a `file` of results to draw, instead of measuring")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if flags.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if c.rounds < 1 || c.recovery < 0 {
		return c, fmt.Errorf("-rounds %d -recovery %d: at least 1 and 0", c.rounds, c.recovery)
	}
	if c.publish != "" && c.from == "" && (*chosen != "all" || *beside != "all") {
		return c, errors.New("-publish measures all scenarios and contenders")
	}
	scenarios, err1 := choose("-scenarios", *chosen, scenarios, func(s scenario) string { return s.name })
	some, err2 := choose("-contenders", *beside, contenders, func(c contender) string { return c.name })
	c.scenarios, c.contenders = scenarios, some
	return c, errors.Join(err1, err2)
}

// choose returns those of all whose names are in a list, all of them for "all", and nothing for "none".
func choose[T any](flag, list string, all []T, name func(T) string) (chosen []T, err error) {
	switch list {
	case "all":
		return all, nil
	case "none":
		return nil, nil
	}
	for one := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(all, func(t T) bool { return name(t) == one })
		if i < 0 {
			return nil, fmt.Errorf("%s %s: there is no %q", flag, list, one)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// resultsFile is where the results of a published run are kept, below the root of the repository.
const resultsFile = "bench/open/results.json"

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	var r *results
	if c.from != "" {
		r, err = loadResults(c.from)
	} else {
		r, err = measure(ctx, c, stderr)
	}
	if err != nil {
		return err
	}
	if c.save != "" {
		err = r.save(c.save)
	}
	if _, werr := io.WriteString(stdout, r.page()); werr != nil {
		return errors.Join(err, werr)
	}
	if c.publish == "" || err != nil {
		return err
	}
	if !r.Noise.quiet() {
		return errors.New("the machine was not quiet: no page is written. " + r.Noise.String())
	}
	if c.from == "" {
		if err := r.save(filepath.Join(c.publish, resultsFile)); err != nil {
			return err
		}
	}
	return r.publish(c.publish)
}
