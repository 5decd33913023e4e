package main

import (
	"math"
	"math/rand/v2"
	"sort"
	"time"
)

// arrivals are the instants of a Poisson process, in microseconds after the start: the gaps are exponential, so the next
// arrival does not depend on when the last one was served. The same seed makes the same arrivals.
func arrivals(random *rand.Rand, rate float64, window time.Duration) []int64 {
	var at []int64
	end := float64(micros(window))
	for t := random.ExpFloat64() * 1e6 / rate; t < end; t += random.ExpFloat64() * 1e6 / rate {
		at = append(at, int64(t))
	}
	return at
}

// zipf draws names: name k with a probability in proportion to 1/(k+1)^skew.
type zipf struct{ cumulated []float64 }

func newZipf(names int, skew float64) zipf {
	z := zipf{make([]float64, names)}
	sum := 0.0
	for k := range z.cumulated {
		sum += 1 / math.Pow(float64(k+1), skew)
		z.cumulated[k] = sum
	}
	return z
}

func (z zipf) draw(random *rand.Rand, n int) []int {
	drawn := make([]int, n)
	for i := range drawn {
		drawn[i] = sort.SearchFloat64s(z.cumulated, random.Float64()*z.cumulated[len(z.cumulated)-1])
	}
	return drawn
}

func randomOf(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }
