package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/bench/draw"
)

// What README and docs show of the results: pictures, and blocks of text between two markers. All of it
// is drawn from the samples of one run, which are kept in a file. So a picture can be drawn
// again without measuring, and a test finds what was changed by hand.

// The published selection: what is measured for it, and where the samples are kept.
var (
	publishedScenarios = []string{"request", "names", "again", "par", "contended", "processes", "fleet", "queue", "read-mostly", "write-mostly",
		"permits", "wake", "wake-clients", "wanted", "idle", "hold", "slow-names", "slow-par", "slow-contended", "quorum-seq", "quorum"}
	publishedContenders = []string{relockName, asyncName, lingerName, fairName, rwName, permitsName, "counter", "counter 2ms",
		"rueidislock", "redsync", "redislock", plainFloor, notifiedFloor, askedFloor, quorumName, "redsync quorum", "rueidislock quorum"}

	// publishedLoads are some of those of a scenario; of the others all are published.
	publishedLoads = map[string][]string{
		"contended": {"64 goroutines"},
		"processes": {"4 processes"},
		"fleet":     growthLoads(),
		"idle":      {"10000 waiters"},
		"slow-par":  {"64 goroutines"},
	}
)

const (
	publishedSamples = "bench/results.json"
	publishCommand   = "go run -C bench . -publish .."

	publishedRounds   = 15
	publishedDuration = 400 * time.Millisecond
)

// publishedParts are the contenders of a scenario that has only these in the tables.
var publishedParts = map[string][]string{"idle": renewing, "wake-clients": {relockName, fairName, "rueidislock"}}

// growthLoads are those of the fleet whose processes keep the lock for a millisecond.
func growthLoads() []string {
	var labels []string
	for _, l := range fleet {
		if l.hold == time.Millisecond {
			labels = append(labels, l.label)
		}
	}
	return labels
}

// measures reports whether a load of a scenario is measured.
func (c config) measures(s *scenario, l load) bool {
	some, chosen := publishedLoads[s.name]
	return c.publish == "" || !chosen || slices.Contains(some, l.label)
}

// partsOf returns the contenders that are measured in a scenario.
func (c config) partsOf(s *scenario) []string {
	return slices.DeleteFunc(slices.Clone(s.contenders), func(name string) bool { return !c.takesPart(s, name) })
}

// takes returns about how long a run takes on two cores.
func (c config) takes() time.Duration {
	round := time.Duration(0)
	for _, s := range c.scenarios {
		for _, l := range s.loads {
			if !c.measures(s, l) {
				continue
			}
			each := cellStart + time.Duration(l.processes)*processStart + time.Duration(l.goroutines)*memberStart
			if s.times > 0 {
				each += time.Duration(s.times) * c.duration
			} else {
				each += warmUp(c.duration) + l.window(c.duration)
			}
			round += each * time.Duration(len(c.partsOf(s)))
		}
	}
	return round*time.Duration(c.rounds) + lostTime
}

// What a run takes beside the measurements.
const (
	cellStart    = 350 * time.Millisecond
	processStart = 30 * time.Millisecond
	memberStart  = 200 * time.Microsecond // a goroutine, or a lock to be held
	lostTime     = 6 * time.Minute        // rounds with lost waiters: of rueidislock, in about four loads
)

// takesPart reports whether a contender is measured in a scenario.
func (c config) takesPart(s *scenario, name string) bool {
	some, chosen := publishedParts[s.name]
	return (len(c.contenders) == 0 || slices.Contains(c.contenders, name)) && (c.publish == "" || !chosen || slices.Contains(some, name))
}

// saved is a report in a file.
type saved struct {
	Machine, Redis, Command string
	Versions                []string
	Began                   time.Time
	Rounds                  int
	Loss                    *timeline
	Samples                 map[string][]savedSample
}

type savedSample struct {
	Round   int
	Figures figures `json:",omitempty"`
	Void    string  `json:",omitempty"`
}

// save writes the samples, with five significant digits, so that the file stays small.
func (r *report) save(file string) error {
	s := saved{Machine: r.machine, Redis: r.redis, Command: r.config.command, Versions: r.versions,
		Began: r.began.UTC(), Rounds: r.config.rounds, Loss: r.loss, Samples: make(map[string][]savedSample)}
	for k, samples := range r.samples {
		for _, one := range samples {
			kept := savedSample{Round: one.round, Figures: make(figures)}
			for name, v := range one.figures {
				if !math.IsNaN(v) && !math.IsInf(v, 0) {
					kept.Figures[name] = significant(v)
				}
			}
			if one.err != nil {
				kept.Void = one.err.Error()
			}
			s.Samples[k] = append(s.Samples[k], kept)
		}
	}
	text, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

func significant(v float64) float64 {
	if v == 0 {
		return 0
	}
	unit := math.Pow(10, 4-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*unit) / unit
}

// loadReport returns the report that save has written.
func loadReport(file string) (*report, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var s saved
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	r := &report{config: config{rounds: s.Rounds, command: s.Command}, redis: s.Redis, began: s.Began,
		machine: s.Machine, versions: s.Versions, loss: s.Loss, samples: make(map[string][]sample)}
	for k, samples := range s.Samples {
		for _, one := range samples {
			kept := sample{round: one.Round, figures: one.Figures}
			if one.Void != "" {
				kept.err = errors.New(one.Void)
			}
			r.samples[k] = append(r.samples[k], kept)
		}
	}
	return r, nil
}

// measureAndPublish adds the timeline of a loss, keeps the samples, and publishes them.
func (r *report) measureAndPublish(ctx context.Context, c config) (err error) {
	if r.loss, err = measureLoss(ctx, c.redis); err != nil {
		return err
	}
	file := filepath.Join(c.publish, publishedSamples)
	if err := r.save(file); err != nil {
		return err
	}
	kept, err := loadReport(file) // what is drawn is what was kept, digit for digit
	if err != nil {
		return err
	}
	return kept.publish(c.publish)
}

// publish draws the pictures and writes the blocks, below the root of the repository.
func (r *report) publish(root string) error {
	pictures := map[string]string{"results.svg": r.svg(), "growth.svg": r.growth(), "loss.svg": r.loss.svg()}
	for name, text := range pictures {
		if err := os.WriteFile(filepath.Join(root, "docs", "pictures", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	blocks := []struct{ file, name, text string }{
		{"README.md", "speed", r.speedBlock()},
		{"bench/README.md", "source", fmt.Sprintf("%s, with %s.\n", r.source(), strings.Join(r.versions, ", "))},
		{"bench/README.md", "targets", strings.TrimSuffix(r.targets(), "\n")},
		{"docs/scale.md", "growth", r.growthBlock()},
	}
	var err error
	for _, b := range blocks {
		err = errors.Join(err, draw.ReplaceBlock(filepath.Join(root, b.file), b.name, b.text))
	}
	for _, t := range tables {
		err = errors.Join(err, draw.ReplaceBlock(filepath.Join(root, t.file), t.name, r.block(t)))
	}
	return err
}

// source says what the numbers of a block come from.
func (r *report) source() string {
	return fmt.Sprintf("%s, Redis %s, %s; %s", r.machine, r.redis, r.began.UTC().Format(time.DateOnly), rounds(r.config.rounds))
}

func rounds(n int) string {
	if n == 1 {
		return "one round"
	}
	return fmt.Sprintf("medians of %d rounds", n)
}

// speedRow is a row of README's table: one of ours beside the fastest rival.
type speedRow struct{ text, unit, who, scenario, load string }

var speedRows = []speedRow{
	{"one goroutine, one name", "µs", relockName, "request", "1 goroutine"},
	{"64 goroutines, a name each", "locks per s", relockName, "par", "64 goroutines"},
	{"512 goroutines, a name each", "locks per s", relockName, "par", "512 goroutines"},
	{"64 goroutines, one name", "holds per s", relockName, "contended", "64 goroutines"},
	{"4 processes of 16 goroutines, one name", "holds per s", relockName, "processes", "4 processes"},
	{"32 processes, one name, held for 1 ms", "holds per s", relockName, "fleet", "32 processes, 1 ms"},
	{"from `Unlock` to a waiter in another process", "µs", relockName, "wake", "idle for 30 ms before"},
	{"from `Unlock` to a waiter of the same process, with another client", "µs", relockName, "wake-clients", "idle for 30 ms before"},
	{"a new name each time, `WithAsyncUnlock`", "µs", asyncName, "names", "1 goroutine"},
	{"the same, with Redis 1 ms away", "µs", asyncName, "slow-names", "1 goroutine"},
	{"one name again and again, `WithLinger`", "µs", lingerName, "again", "1 goroutine"},
	{"`Semaphore` of 4 for 128 goroutines in 32 processes, held for 1 ms", "permits per s", permitsName, "permits", permitsLoad},
}

// speed returns how many times as fast as a rival one of ours is, by the main figure.
func (r *report) speed(row speedRow, rival string) (spread, bool) {
	s := scenarioNamed(row.scenario)
	over, under := row.who, rival
	if !s.higher {
		over, under = rival, row.who
	}
	return r.ratio(s.name, row.load, over, under, s.columns[0].key)
}

// speedBlock is what README says of speed. It leaves out what was not measured.
func (r *report) speedBlock() string {
	var b strings.Builder
	b.WriteString("![Bars: relock and other Go libraries on one Redis](docs/pictures/results.svg)\n\n" +
		"| | relock | CPU, µs | fastest rival | CPU, µs | times as fast |\n|---|--:|--:|--:|--:|--:|\n")
	var slower []string
	rows := 0
	for _, row := range speedRows {
		s := scenarioNamed(row.scenario)
		rival, ok := r.bestRival(s, row.load)
		if !ok {
			continue
		}
		times, ok := r.speed(row, rival)
		if !ok {
			continue
		}
		cell := func(who, figure string) string {
			return strings.TrimSuffix(r.cellText(row.scenario, row.load, who, figure, 0), " |")
		}
		main := s.columns[0].key
		fmt.Fprintf(&b, "| %s: %s |%s |%s | %s:%s |%s | **%s** (%s–%s) |\n", row.text, row.unit, cell(row.who, main), cell(row.who, bothCosts),
			rival, cell(rival, main), cell(rival, bothCosts), ratioDigits(times.median), ratioDigits(times.min), ratioDigits(times.max))
		if rows++; times.median < 1 {
			slower = append(slower, fmt.Sprintf("%s (%s)", rival, row.text))
		}
	}
	b.WriteString("\nTimes as fast: the median of the ratios of all rounds, the least and the greatest; the ratio of the medians shown may differ. CPU: the processor time of clients, and of Redis, for each lock with its unlock.\n\n")
	if len(slower) == 0 {
		b.WriteString("* **No rival is faster** in a row of this table.\n")
	} else {
		fmt.Fprintf(&b, "* **A rival is faster** in %d of %d rows: %s.\n", len(slower), rows, strings.Join(slower, "; "))
	}
	const processes = "32 processes, 1 ms"
	if rival, ok := r.bestRival(scenarioNamed("fleet"), processes); ok {
		median := func(name, figure string) float64 {
			f, _ := r.figure("fleet", processes, name, figure)
			return f.median
		}
		fmt.Fprintf(&b, "* **Fairness** of the 32 processes (Jain's index, 1 is best): %.2f, with %s %.2f. Longest wait: %.0f ms, with %s %s ms.\n",
			median(relockName, "jain"), rival, median(rival, "jain"), median(relockName, "max"), rival, draw.Thousands(median(rival, "max")))
	}
	fmt.Fprintf(&b, "\nMeasured by `%s` ([how](bench/README.md)) on %s.\n", publishCommand, r.source())
	return b.String()
}

// ratioDigits prints a ratio with about three digits.
func ratioDigits(v float64) string {
	if v < 9.95 {
		return digits(2)(v)
	}
	return draw.Thousands(v)
}
