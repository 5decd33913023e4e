// Package scale measures how the library scales: with processes that share a name, with goroutines that wait,
// for a lock or for permits, with names, and with processes that lose Redis at once. Clients and scripts are
// real, time is virtual.
//
// The files:
//
//   - scale.go: the cases, and the report
//   - fleet.go, permits.go, names.go, outage.go: one measurement each
//   - world.go: a server and processes, and their counters
//   - publish.go: the tables and the picture of docs/scale.md
package scale

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"time"

	"github.com/relock-go/relock/sim/internal/bubble"
)

// The cases.
var (
	sizes      = []int{10, 100, 1000, 5000}
	roundTrips = []time.Duration{200 * time.Microsecond, time.Millisecond, 30 * time.Millisecond}

	fleets  = append(growing(), Fleet{Processes: 100, Waiters: 1000, RoundTrip: time.Millisecond, Hold: time.Millisecond, Rounds: 1})
	permits = []Permits{ofPermits(1, 10_000), ofPermits(200, 5)}
	names   = []Names{ofNames(100_000), ofNames(1_000_000)}
	outages = []Outage{outage(100, false), outage(1000, false), outage(5000, false), outage(100, true), outage(1000, true)}
)

// growing returns the fleets of all sizes on all links. Larger fleets have fewer rounds, with enough holds for a result. 5 000
// processes with 30 ms round trips are left out: a round takes two and a half minutes, and 500 000 polls.
func growing() []Fleet {
	var all []Fleet
	for _, n := range sizes {
		for _, trip := range roundTrips {
			if n == 5000 && trip == 30*time.Millisecond {
				continue
			}
			all = append(all, Fleet{Processes: n, Waiters: 1, RoundTrip: trip, Hold: time.Millisecond, Rounds: max(1, 2000/n)})
		}
	}
	return all
}

func ofPermits(processes, waiters int) Permits {
	return Permits{Processes: processes, Waiters: waiters, Limit: 4, RoundTrip: time.Millisecond, Hold: time.Millisecond}
}

func ofNames(count int) Names {
	return Names{Processes: 4, Workers: 16, RoundTrip: time.Millisecond, Count: count}
}

func outage(processes int, silent bool) Outage {
	own := min(processes, 1000) // the embedded server checks all keys at each command
	return Outage{Processes: processes, Own: own, RoundTrip: time.Millisecond, Hold: time.Millisecond, Lasts: 10 * time.Second, Silent: silent}
}

// Report has all results.
type Report struct {
	Go      string // its version
	Day     string // of the last measurement
	Fleets  []FleetResult
	Permits []PermitsResult
	Names   []NamesResult
	Outages []OutageResult
}

// Load reads the report from a file.
func Load(file string) (*Report, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := new(Report)
	return r, json.Unmarshal(text, r)
}

// Save writes the report to a file.
func (r *Report) Save(file string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// Measure measures each case whose name matches only, in a bubble of its own, and calls done after it. Other results stay.
func (r *Report) Measure(run bubble.Runner, only *regexp.Regexp, done func(name string, took time.Duration) error) error {
	measure := func(name string, f func() error) (err error) {
		if !only.MatchString(name) {
			return nil
		}
		began := time.Now()
		r.Go, r.Day = runtime.Version(), began.UTC().Format(time.DateOnly)
		run(func() { err = f() })
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return done(name, time.Since(began))
	}
	for _, f := range fleets {
		err := measure(f.String(), func() error {
			res, err := f.Run()
			r.Fleets = with(r.Fleets, res, func(old FleetResult) bool { return old.Fleet == f })
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, p := range permits {
		err := measure(p.String(), func() error {
			res, err := p.Run()
			r.Permits = with(r.Permits, res, func(old PermitsResult) bool { return old.Permits == p })
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, n := range names {
		err := measure(n.String(), func() error {
			res, err := n.Run()
			r.Names = with(r.Names, res, func(old NamesResult) bool { return old.Names == n })
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, o := range outages {
		err := measure(o.String(), func() error {
			res, err := o.Run()
			r.Outages = with(r.Outages, res, func(old OutageResult) bool { return old.Outage == o })
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// with returns all with res, which replaces the result for which same returns true.
func with[T any](all []T, res T, same func(T) bool) []T {
	if i := slices.IndexFunc(all, same); i >= 0 {
		all[i] = res
		return all
	}
	return append(all, res)
}

func (f Fleet) String() string {
	return fmt.Sprintf("fleet of %d × %d, %v", f.Processes, f.Waiters, f.RoundTrip)
}

func (p Permits) String() string { return fmt.Sprintf("permits of %d × %d", p.Processes, p.Waiters) }

func (n Names) String() string { return fmt.Sprintf("%d names", n.Count) }

func (o Outage) String() string {
	if o.Silent {
		return fmt.Sprintf("silent outage of %d", o.Processes)
	}
	return fmt.Sprintf("outage of %d", o.Processes)
}
