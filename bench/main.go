// Command bench runs relock and other Go lock libraries side by side on one Redis, and prints the
// results as Markdown.
//
// Every measurement is a cell: one contender, one scenario, one load. Each cell runs in processes of
// its own. The cells of a load are interleaved: each round runs every contender once, in a rotated
// order, so that a disturbance of the machine affects all of them.
//
// A cell is void, and counts as no measurement, if two owners held one lock at the same time, a call
// failed, or a waiter was never served.
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
	"time"

	"github.com/relock-go/relock/internal/redistest"
)

func main() {
	if isWorker() {
		serve(os.Stdin, os.Stdout)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// config has the values of the command line.
type config struct {
	scenarios  []*scenario
	contenders []string // empty: all
	rounds     int
	duration   time.Duration
	redis      string
	markdown   string
	svg        string
	profiles   string
	publish    string // the root of the repository, whose pictures and blocks are to be written
	from       string // the samples to publish; measured if empty
	command    string // itself, to be printed
}

func parse(args []string, stderr io.Writer) (config, error) {
	var c config
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	scenario := flags.String("scenario", "all", "comma-separated `names` of: "+strings.Join(scenarioNames(), ", "))
	contender := flags.String("contender", "all", "comma-separated `names`, as in the tables; ratios need theirs")
	flags.IntVar(&c.rounds, "rounds", 5, fmt.Sprintf("how often each cell is measured; %d times with -publish", publishedRounds))
	flags.DurationVar(&c.duration, "duration", time.Second, fmt.Sprintf("how long one measurement takes, %v with -publish; idle, wake, wake-clients and wanted take 5 times that, hold 10 times, fleet and permits at least ten turns of each process", publishedDuration))
	flags.StringVar(&c.redis, "redis", "", "`address` of a Redis that nobody else uses; by default one is started")
	flags.StringVar(&c.markdown, "markdown", "", "`file` to write the tables to, besides standard output")
	flags.StringVar(&c.svg, "svg", "", "`file` to draw the main results to")
	flags.StringVar(&c.profiles, "profiles", "", "`directory` for CPU, allocation, mutex and block profiles of the workers")
	flags.StringVar(&c.publish, "publish", "", "`root` of the repository: measure what its pages show, keep the samples, and write pictures and tables into the pages")
	flags.StringVar(&c.from, "from", "", "with -publish: a `file` of samples to publish, instead of measuring")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if c.publish != "" && (*scenario != "all" || *contender != "all") {
		return c, errors.New("-publish chooses scenarios and contenders itself")
	}
	if c.publish != "" {
		given := make(map[string]bool)
		flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
		if !given["rounds"] {
			c.rounds = publishedRounds
		}
		if !given["duration"] {
			c.duration = publishedDuration
		}
		*scenario, *contender = strings.Join(publishedScenarios, ","), strings.Join(publishedContenders, ",")
	} else if c.from != "" {
		return c, fmt.Errorf("-from %s: only with -publish", c.from)
	}
	c.command = strings.TrimSpace("go run -C bench . " + strings.Join(args, " "))
	if flags.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if c.rounds < 1 || c.duration < 10*time.Millisecond {
		return c, fmt.Errorf("-rounds %d -duration %v: at least 1 and 10ms", c.rounds, c.duration)
	}
	for _, s := range scenarios {
		if *scenario == "all" || slices.Contains(strings.Split(*scenario, ","), s.name) {
			c.scenarios = append(c.scenarios, s)
		}
	}
	if *scenario != "all" && len(c.scenarios) != len(strings.Split(*scenario, ",")) {
		return c, fmt.Errorf("-scenario %s: the names are %s", *scenario, strings.Join(scenarioNames(), ", "))
	}
	if *contender == "all" {
		return c, nil
	}
	c.contenders = strings.Split(*contender, ",")
	for _, name := range c.contenders {
		if _, err := contenderNamed(name); err != nil {
			return c, fmt.Errorf("-contender %s: %w", *contender, err)
		}
	}
	return c, nil
}

// run is the whole program.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if c.from != "" {
		r, err := loadReport(c.from)
		if err != nil {
			return err
		}
		return r.publish(c.publish)
	}
	if c.redis == "" {
		server, err := redistest.StartServer("")
		if err != nil {
			return err
		}
		defer server.Close()
		c.redis = server.Addr
	}
	b, err := newBench(c, stderr)
	if err != nil {
		return err
	}
	defer b.close()
	if c.publish != "" {
		fmt.Fprintf(stderr, "This takes about %v.\n", c.takes().Round(time.Minute))
	}
	r := newReport(c, b.server)
	for _, s := range c.scenarios {
		if err := b.measure(ctx, s, r); err != nil {
			return err
		}
	}
	text := r.markdown()
	if _, err := io.WriteString(stdout, text); err != nil {
		return err
	}
	if c.markdown != "" {
		err = os.WriteFile(c.markdown, []byte(text), 0o644)
	}
	if c.publish != "" {
		err = errors.Join(err, r.measureAndPublish(ctx, c))
	}
	if c.svg != "" {
		err = errors.Join(err, os.WriteFile(c.svg, []byte(r.svg()), 0o644))
	}
	return err
}
