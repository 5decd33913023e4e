package main

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestArrivals_SeedMakesThemAndTheRateIsKept(t *testing.T) {
	at := arrivals(randomOf(7, 1), 1000, 100*time.Second)
	require.Equal(t, at, arrivals(randomOf(7, 1), 1000, 100*time.Second))
	require.NotEqual(t, at, arrivals(randomOf(7, 2), 1000, 100*time.Second))
	require.InDelta(t, 100_000, len(at), 1500, "five standard deviations")
	require.True(t, slices.IsSorted(at))
	require.Less(t, at[len(at)-1], micros(100*time.Second))

	// Of a Poisson process the gaps are exponential: the share e^-1 is longer than the mean.
	longer := 0
	for i := 1; i < len(at); i++ {
		if at[i]-at[i-1] > 1000 {
			longer++
		}
	}
	require.InDelta(t, 0.368, float64(longer)/float64(len(at)), 0.01)
}

func TestZipf_FirstNameHasItsShare(t *testing.T) {
	z := newZipf(1000, skew)
	drawn := z.draw(randomOf(7, 1), 100_000)
	counts := make([]int, 1000)
	for _, name := range drawn {
		counts[name]++
	}
	want := 1 / z.cumulated[999]
	require.InDelta(t, want, float64(counts[0])/100_000, 0.01)
	require.Greater(t, counts[0], counts[9])
	require.Positive(t, counts[999]+counts[998]+counts[997])
}
