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
	publishedScenarios = []string{"seq", "par", "contended", "processes", "fleet", "queue", "read-mostly", "write-mostly", "wake", "idle", "hold",
		"slow-seq", "slow-par", "slow-contended", "quorum-seq", "quorum"}
	publishedContenders = []string{relockName, fairName, rwName, "rueidislock", "redsync", "redsync 2ms", "redislock", plainFloor, notifiedFloor,
		quorumName, "redsync quorum", "rueidislock quorum"}

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
)

// publishedParts are the contenders of a scenario that has only these in the tables.
var publishedParts = map[string][]string{"idle": renewing}

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
	err := errors.Join(draw.ReplaceBlock(filepath.Join(root, "README.md"), "speed", r.speedBlock()),
		draw.ReplaceBlock(filepath.Join(root, "docs/scale.md"), "growth", r.growthBlock()))
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

// speedBlock is what README says of speed.
func (r *report) speedBlock() string {
	var b strings.Builder
	fmt.Fprintf(&b, "![Bars: relock and other Go libraries on one Redis](docs/pictures/results.svg)\n\n")
	const processes, goroutines, names = "32 processes, 1 ms", "64 goroutines", "512 goroutines"
	median := func(scenario, load, name, figure string) float64 {
		f, _ := r.figure(scenario, load, name, figure)
		return f.median
	}
	if rival, ok := r.bestRival(scenarioNamed("fleet"), processes); ok {
		f, _ := r.ratio("fleet", processes, relockName, rival, "rate")
		fmt.Fprintf(&b, "* 32 processes, one name, held for 1 ms: **%.2f times** the holds per second of the fastest rival, %s. "+
			"Fairness (Jain's index, 1 is best): %.2f, there %.2f; longest wait: %.0f ms, there %s ms.\n", f.median, rival,
			median("fleet", processes, relockName, "jain"), median("fleet", processes, rival, "jain"),
			median("fleet", processes, relockName, "max"), draw.Thousands(median("fleet", processes, rival, "max")))
	}
	if rival, ok := r.bestRival(scenarioNamed("contended"), goroutines); ok {
		f, _ := r.ratio("contended", goroutines, relockName, rival, "rate")
		fmt.Fprintf(&b, "* 64 goroutines, one name: **%.1f times** the holds per second of the fastest rival, %s. Fairness: %.2f, there %.2f.\n",
			f.median, rival, median("contended", goroutines, relockName, "jain"), median("contended", goroutines, rival, "jain"))
	}
	if rival, ok := r.bestRival(scenarioNamed("par"), names); ok {
		f, _ := r.ratio("par", names, relockName, rival, "ops")
		fmt.Fprintf(&b, "* 512 goroutines with a name each: **%.1f times** the locks per second of the fastest rival, %s.\n", f.median, rival)
	}
	if rival, ok := r.bestRival(scenarioNamed("wake"), "idle for 30 ms before"); ok {
		f, _ := r.ratio("wake", "idle for 30 ms before", fairName, rival, "p50")
		plain, _ := r.ratio("wake", "idle for 30 ms before", relockName, rival, "p50")
		fmt.Fprintf(&b, "* From `Unlock` to the waiter in another process: **%.2f times** as long as with the fastest rival, %s; `FairMutex`: %.2f times.\n",
			plain.median, rival, f.median)
	}
	fmt.Fprintf(&b, "\nMeasured by `%s` ([how](bench/README.md)) on %s.\n", publishCommand, r.source())
	return b.String()
}
