package main

import (
	"encoding/json"
	"math"
	"os"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/perf/benchmath"
)

// results is all that a run has measured, as it is kept in a file. All tables and pictures are drawn from it.
type results struct {
	Machine, Command string
	Began            time.Time
	Rounds           int
	Window           time.Duration
	Versions         map[string]string // of contenders and servers
	Missing          map[string]string // contenders that did not take part, and why
	Failed           map[string]string // parts that ended with an error
	Noise            noise
	Load             map[string]*cell                // by cellKey
	Recovery         map[string]map[string][]outcome // by contender and event
	Footprint        map[string]footprint            // by contender
}

func newResults(c config) *results {
	return &results{Machine: machine(), Command: c.command, Began: time.Now().UTC(), Rounds: c.rounds,
		Versions: make(map[string]string), Missing: make(map[string]string), Failed: make(map[string]string),
		Load: make(map[string]*cell), Recovery: make(map[string]map[string][]outcome), Footprint: make(map[string]footprint)}
}

func cellKey(s, contender, level string) string { return s + "/" + contender + "/" + level }

// cell is a contender under a load: each list has a number for each round.
type cell struct {
	Limit, Rate        []float64 // per second; the limit is of the closed loop just before
	P50, P99           []float64 // µs
	Histogram          string    // of all rounds, compressed, as HdrHistogram defines it
	Arrivals, Unserved int
	Lost, Overlaps     int
	ClientCPU          []float64 // µs for each lock
	ServerCPU          []float64
	Bytes, Allocs, GCs []float64 // for each lock; GCs for 1 000
	all                *hdrhistogram.Histogram
}

// add counts a window.
func (c *cell) add(limit float64, window time.Duration, r loadResult) {
	c.Limit, c.Rate = append(c.Limit, limit), append(c.Rate, float64(r.arrivals)/window.Seconds())
	if r.arrivals > 0 {
		c.P50 = append(c.P50, float64(r.waits.ValueAtQuantile(50)))
		c.P99 = append(c.P99, float64(r.waits.ValueAtQuantile(99)))
	}
	c.Arrivals, c.Unserved = c.Arrivals+r.arrivals, c.Unserved+r.unserved
	c.Lost, c.Overlaps = c.Lost+r.lost, c.Overlaps+r.overlaps
	if n := float64(r.served); n > 0 {
		c.ClientCPU = append(c.ClientCPU, float64(micros(r.clientCPU))/n)
		c.ServerCPU = append(c.ServerCPU, float64(micros(r.serverCPU))/n)
		c.Bytes = append(c.Bytes, float64(r.bytes)/n)
		c.Allocs = append(c.Allocs, float64(r.allocs)/n)
		c.GCs = append(c.GCs, 1000*float64(r.gcs)/n)
	}
	if c.all == nil {
		c.all = newHistogram()
	}
	c.all.Merge(r.waits)
}

// quantile returns the wait of all rounds that a percentage of the arrivals did not exceed.
func (c *cell) quantile(percent float64) float64 {
	if c.all == nil || float64(c.all.TotalCount())*(100-percent) < 100 && percent < 100 {
		return math.NaN() // not one of them is beyond it
	}
	return float64(c.all.ValueAtQuantile(percent))
}

// interval is the median of the rounds, with the interval in which the true median is with 95 % confidence.
type interval struct{ center, low, high float64 }

func intervalOf(rounds []float64) interval {
	if len(rounds) == 0 {
		return interval{math.NaN(), math.NaN(), math.NaN()}
	}
	s := benchmath.AssumeNothing.Summary(sampleOf(rounds), 0.95)
	return interval{s.Center, s.Lo, s.Hi}
}

func sampleOf(rounds []float64) *benchmath.Sample {
	return benchmath.NewSample(append([]float64(nil), rounds...), &benchmath.DefaultThresholds)
}

// ratio returns how many times a is b, and whether the rounds show a difference at all: if they do not, there is none.
func ratio(a, b []float64) (times float64, differ bool) {
	if len(a) == 0 || len(b) == 0 {
		return math.NaN(), false
	}
	c := benchmath.AssumeNothing.Compare(sampleOf(a), sampleOf(b))
	return intervalOf(a).center / intervalOf(b).center, c.P < c.Alpha
}

func (r *results) save(file string) error {
	for _, c := range r.Load {
		if c.all != nil {
			text, err := c.all.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
			if err != nil {
				return err
			}
			c.Histogram = string(text)
		}
	}
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

func loadResults(file string) (*results, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &results{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, err
	}
	for _, c := range r.Load {
		if c.Histogram != "" {
			if c.all, err = hdrhistogram.Decode([]byte(c.Histogram)); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}
