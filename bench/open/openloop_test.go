package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/bench/contend"
)

// stalling is a library whose locks are free, and which answers nothing from one instant to another.
type stalling struct{ from, to time.Time }

func (s stalling) Mutex(string) contend.Mutex { return s }
func (s stalling) Close() error               { return nil }
func (s stalling) Unlock() error              { return nil }

func (s stalling) Lock(ctx context.Context) error {
	if now := time.Now(); now.Before(s.from) || !now.Before(s.to) {
		return nil
	}
	select {
	case <-time.After(time.Until(s.to)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A closed loop would have one wait of a second for each of its goroutines, and a p99 without a trace of it.
func TestLoad_StallIsInTheWaitOfAllThatWereDueMeanwhile(t *testing.T) {
	for _, goroutines := range []int{1, 3, 5000} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			o := order{Name: "a", Start: start.UnixMicro(), Workers: goroutines, Duration: micros(20 * time.Second)}
			for at := time.Duration(0); at < 10*time.Second; at += 10 * time.Millisecond {
				o.Arrivals = append(o.Arrivals, micros(at))
			}
			r := loadResult{waits: newHistogram()}
			require.NoError(t, r.add(o, load(stalling{start.Add(4 * time.Second), start.Add(5 * time.Second)}, o), nil))
			require.Equal(t, 1000, r.served)
			require.Equal(t, int64(1), r.waits.ValueAtQuantile(50))
			require.InDelta(t, 900_000, r.waits.ValueAtQuantile(99), 15_000, "%d goroutines", goroutines)
			require.InDelta(t, 1_000_000, r.waits.Max(), 2000)
			require.Equal(t, int64(100), r.waits.TotalCount()-countUpTo(r, 5000), "all that were due in the second")
		})
	}
}

func countUpTo(r loadResult, limit int64) (n int64) {
	for _, bar := range r.waits.Distribution() {
		if bar.To <= limit {
			n += bar.Count
		}
	}
	return n
}

func TestLoad_ArrivalThatIsNeverServedCountsWithTheTimeItWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		o := order{Name: "a", Start: start.UnixMicro(), Workers: 10, Duration: micros(3 * time.Second), Arrivals: []int64{0, micros(time.Second)}}
		r := loadResult{waits: newHistogram()}
		a := load(stalling{start, start.Add(time.Hour)}, o)
		require.NoError(t, r.add(o, a, nil))
		require.Equal(t, 2, r.unserved)
		require.Zero(t, r.served+r.lost)
		require.InDelta(t, micros(3*time.Second), r.waits.Max(), 3000)
		require.InDelta(t, micros(2*time.Second), r.waits.Min(), 3000)
	})
}

// exclusive is a lock that works.
type exclusive struct{ locks map[string]chan struct{} }

func (e exclusive) Close() error                    { return nil }
func (e exclusive) Mutex(name string) contend.Mutex { return exclusiveMutex(e.locks[name]) }

type exclusiveMutex chan struct{}

func (m exclusiveMutex) Lock(ctx context.Context) error {
	select {
	case m <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m exclusiveMutex) Unlock() error {
	<-m
	return nil
}

func TestClosedLoop_CountsThePairsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := exclusive{map[string]chan struct{}{"a:0": make(chan struct{}, 1)}}
		a := closed(e, order{Name: "a", Names: []int{0}, Start: time.Now().UnixMicro(), Workers: 8, Hold: 1000, Duration: micros(time.Second)})
		require.InDelta(t, 1000, a.Served, 2, "one hold of 1 ms after the other")
		require.Zero(t, a.Lost)
	})
}

func TestLoad_OverlapsAreCountedForEachName(t *testing.T) {
	require.Zero(t, overlapping([]span{{5, 9}, {0, 5}, {9, 12}}))
	require.Equal(t, 2, overlapping([]span{{0, 10}, {2, 3}, {4, 5}, {10, 11}}))

	r, spans := loadResult{waits: newHistogram()}, make(map[int][]span)
	o := order{Arrivals: []int64{0, 1, 2}, Names: []int{1, 1, 2}}
	require.NoError(t, r.add(o, answer{Got: []int64{1, 4, 3}, Gave: []int64{5, 6, 4}}, spans))
	require.Equal(t, 1, overlapping(spans[1]))
	require.Zero(t, overlapping(spans[2]))
	require.ErrorContains(t, r.add(o, answer{}, spans), "0 of 3 arrivals")
}
