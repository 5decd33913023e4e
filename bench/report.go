package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// report collects the samples of all cells.
type report struct {
	config  config
	redis   string // its version
	began   time.Time
	samples map[string][]sample // by key

	machine  string   // where it ran
	versions []string // of the libraries
	loss     *timeline
}

// sample is one cell's result.
type sample struct {
	round   int
	figures figures
	err     error // why it is void
}

func newReport(c config, s *server) *report {
	version, err := s.version(context.Background())
	if err != nil {
		version = err.Error()
	}
	return &report{config: c, redis: version, began: time.Now(), samples: make(map[string][]sample), machine: machine(), versions: versions()}
}

func key(scenario, load, contender string) string { return scenario + "|" + load + "|" + contender }

func (r *report) add(s *scenario, l load, contender string, one sample) {
	k := key(s.name, l.label, contender)
	r.samples[k] = append(r.samples[k], one)
}

// hopeless reports whether the last rounds of a contender are all void.
func (r *report) hopeless(s *scenario, l load, contender string) bool {
	samples := r.samples[key(s.name, l.label, contender)]
	return len(samples) >= voidInARow && allVoid(samples[len(samples)-voidInARow:])
}

func allVoid(samples []sample) bool {
	return !slices.ContainsFunc(samples, func(s sample) bool { return s.err == nil })
}

// void reports whether a contender took part, and all of its rounds are void.
func (r *report) void(scenario, load, contender string) bool {
	samples := r.samples[key(scenario, load, contender)]
	return len(samples) > 0 && allVoid(samples)
}

// voidInARow is how many void rounds in a row end the part of a contender in a load.
const voidInARow = 3

// spread is the middle and the ends of what several rounds have measured.
type spread struct{ median, min, max float64 }

func spreadOf(values []float64) (spread, bool) {
	if len(values) == 0 {
		return spread{math.NaN(), math.NaN(), math.NaN()}, false
	}
	values = slices.Clone(values)
	slices.Sort(values)
	n := len(values)
	return spread{(values[(n-1)/2] + values[n/2]) / 2, values[0], values[n-1]}, true
}

// figure returns what the valid rounds have measured.
func (r *report) figure(scenario, load, contender, figure string) (spread, bool) {
	var values []float64
	for _, s := range r.samples[key(scenario, load, contender)] {
		if v, ok := s.figures[figure]; ok && s.err == nil {
			values = append(values, v)
		}
	}
	return spreadOf(values)
}

// ratio returns one contender's figure divided by another's, round by round: what changes
// from round to round is the machine.
func (r *report) ratio(scenario, load, contender, base, figure string) (spread, bool) {
	return r.compare(key(scenario, load, contender), key(scenario, load, base), func(a, b figures) float64 {
		return a.of(figure) / b.of(figure)
	})
}

// compare returns what f makes of the figures of two cells, round by round.
func (r *report) compare(a, b string, f func(a, b figures) float64) (spread, bool) {
	var values []float64
	for _, a := range r.samples[a] {
		for _, b := range r.samples[b] {
			if a.round != b.round || a.err != nil || b.err != nil {
				continue
			}
			if v := f(a.figures, b.figures); !math.IsNaN(v) && !math.IsInf(v, 0) {
				values = append(values, v)
			}
		}
	}
	return spreadOf(values)
}

// bestRival returns the library, other than ours, with the best median.
func (r *report) bestRival(s *scenario, load string) (string, bool) {
	best, found := "", false
	var top float64
	for _, name := range s.contenders {
		if slices.Contains(ours, name) {
			continue
		}
		f, ok := r.figure(s.name, load, name, s.columns[0].key)
		if ok && (!found || (f.median > top) == s.higher) {
			best, top, found = name, f.median, true
		}
	}
	return best, found
}

// markdown returns the whole report.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, Redis %s, %s.\n\n", r.machine, r.redis, r.began.UTC().Format("2006-01-02 15:04 MST"))
	fmt.Fprintf(&b, "%s.\n\n", strings.Join(r.versions, ", "))
	fmt.Fprintf(&b, "```\n%s\n```\n\n", r.config.command)
	fmt.Fprintf(&b, "Medians of %d rounds, minimum and maximum in parentheses, ratios round by round. The contenders:\n\n", r.config.rounds)
	for _, c := range contenders {
		fmt.Fprintf(&b, "* **%s**: %s.\n", c.name, c.legend)
	}
	b.WriteString("\n")
	b.WriteString(r.targets())
	for _, s := range r.config.scenarios {
		fmt.Fprintf(&b, "### %s: %s\n\n", s.name, s.title)
		for _, l := range s.loads {
			if r.config.measures(s, l) {
				r.table(&b, s, l)
			}
		}
	}
	return b.String()
}

// table writes the results of one load.
func (r *report) table(b *strings.Builder, s *scenario, l load) {
	fmt.Fprintf(b, "| %s |", l.label)
	for i, c := range s.columns {
		fmt.Fprintf(b, " %s |", c.head)
		if i == 0 {
			fmt.Fprintf(b, " ÷ %s |", s.base)
		}
	}
	b.WriteString("\n|---|" + strings.Repeat("--:|", len(s.columns)+1) + "\n")
	var notes []string
	for _, name := range s.contenders {
		samples := r.samples[key(s.name, l.label, name)]
		if len(samples) == 0 {
			continue
		}
		if note := voids(name, samples); note != "" {
			notes = append(notes, note)
		}
		fmt.Fprintf(b, "| %s |", name)
		for i, c := range s.columns {
			f, ok := r.figure(s.name, l.label, name, c.key)
			switch {
			case !ok && i == 0:
				b.WriteString(" void | |")
			case !ok:
				b.WriteString(" |")
			case i == 0:
				fmt.Fprintf(b, " **%s** (%s–%s) | %s |", c.format(f.median), c.format(f.min), c.format(f.max),
					r.ratioText(s, l, name))
			default:
				fmt.Fprintf(b, " %s |", c.format(f.median))
			}
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	for _, note := range notes {
		fmt.Fprintf(b, "%s\n\n", note)
	}
}

func (r *report) ratioText(s *scenario, l load, name string) string {
	f, ok := r.ratio(s.name, l.label, name, s.base, s.columns[0].key)
	if !ok {
		return ""
	}
	return digits(2)(f.median)
}

// voids says how many of a contender's cells are void, and why the first one is.
func voids(name string, samples []sample) string {
	n, why := 0, ""
	for _, s := range samples {
		if s.err != nil {
			if n == 0 {
				why = strings.ReplaceAll(s.err.Error(), "\n", "; ")
			}
			n++
		}
	}
	if n == 0 {
		return ""
	}
	if len(why) > 300 {
		why = strings.ToValidUTF8(why[:300], "") + "…"
	}
	return fmt.Sprintf("%s: %d of %d rounds void: %s", name, n, len(samples), why)
}

// machine describes where this runs.
func machine() string {
	cpu := ""
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
				cpu = " of an " + strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d cores%s, %s/%s, %s", runtime.NumCPU(), cpu, runtime.GOOS, runtime.GOARCH, runtime.Version())
}

// versions lists the libraries that this program is built from.
func versions() []string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	var list []string
	for _, module := range []string{"github.com/redis/go-redis/v9", "github.com/redis/rueidis",
		"github.com/go-redsync/redsync/v4", "github.com/bsm/redislock"} {
		for _, m := range info.Deps {
			if m.Path == module {
				list = append(list, strings.TrimPrefix(m.Path, "github.com/")+" "+m.Version)
			}
		}
	}
	return list
}
