package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/relock-go/relock/bench/stat"
)

// span is one hold of a lock that goroutines share, in nanoseconds since 1970. Got is
// taken after Lock has returned and Gave before Unlock is called, so the spans of a lock
// that excludes do not overlap, across processes neither: they have one clock. Those who read
// together may.
type span struct {
	Asked, Got, Gave int64
	Read             bool // it was taken to read,
	Shared           bool // and others may read meanwhile
}

// errIdle is why a window was too short for this machine.
var errIdle = errors.New("nobody got the lock")

// history is what all goroutines of all processes did with one lock.
type history struct {
	spans  []span // by the time they began
	counts []int  // of each goroutine, in the window
	waits  []time.Duration
	window time.Duration

	longest time.Duration // wait in the window, of those who still wait at its end, too

	reads, writes tally
}

// tally is what those of one side did in the window.
type tally struct {
	holds   int
	longest time.Duration // wait
}

func (t *tally) add(wait time.Duration) {
	t.holds++
	t.longest = max(t.longest, wait)
}

// newHistory puts the goroutines' spans together and proves that no two overlap.
func newHistory(goroutines [][]span, start time.Time, window time.Duration) (*history, error) {
	h := gather(goroutines, start, window)
	if err := exclusive(h.spans); err != nil {
		return nil, err
	}
	return h, h.idle()
}

// gather puts the goroutines' spans together. What began outside of the window counts as neither hand-off nor wait.
func gather(goroutines [][]span, start time.Time, window time.Duration) *history {
	h := &history{window: window}
	from, to := start.UnixNano(), start.Add(window).UnixNano()
	for _, spans := range goroutines {
		count := 0
		for _, s := range spans {
			if s.Got < from {
				continue
			}
			h.longest = max(h.longest, time.Duration(min(s.Got, to)-s.Asked))
			if s.Got >= to {
				continue
			}
			wait := time.Duration(s.Got - s.Asked)
			count++
			h.waits = append(h.waits, wait)
			if s.Read {
				h.reads.add(wait)
			} else {
				h.writes.add(wait)
			}
		}
		h.counts = append(h.counts, count)
		h.spans = append(h.spans, spans...)
	}
	slices.SortFunc(h.spans, func(a, b span) int { return compare(a.Got, b.Got) })
	slices.Sort(h.waits)
	return h
}

// idle returns an error if nobody got the lock in the window.
func (h *history) idle() error {
	if len(h.waits) > 0 {
		return nil
	}
	return fmt.Errorf("%w within %v", errIdle, h.window)
}

// exclusive proves of spans, by the time they began, that none overlaps another, unless
// both are shared.
func exclusive(spans []span) error {
	var all, alone int64 // when the last hold ended, and the last that is not shared
	for i, s := range spans {
		ended := all
		if s.Shared {
			ended = alone
		} else {
			alone = max(alone, s.Gave)
		}
		if over := ended - s.Got; over > 0 {
			return fmt.Errorf("two holders: hold %d began %v before one before it ended", i, time.Duration(over))
		}
		all = max(all, s.Gave)
	}
	return nil
}

// overLimit returns how many of the spans, by the time they began, began while as many as the limit had not ended.
func overLimit(spans []span, limit int) int {
	ends := make([]int64, 0, len(spans))
	for _, s := range spans {
		ends = append(ends, s.Gave)
	}
	slices.Sort(ends)
	over, ended := 0, 0
	for i, s := range spans {
		for ended < len(ends) && ends[ended] <= s.Got {
			ended++
		}
		if i+1-ended > limit { // i+1 have begun
			over++
		}
	}
	return over
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// handoffs returns how often the lock changed hands in the window.
func (h *history) handoffs() int { return len(h.waits) }

// rate returns the hand-offs per second.
func (h *history) rate() float64 { return float64(h.handoffs()) / h.window.Seconds() }

// wait returns the quantile q of the time between calling Lock and holding the lock.
func (h *history) wait(q float64) time.Duration { return stat.Quantile(h.waits, q) }

// mean is what the waits are on average.
func (h *history) mean() time.Duration {
	sum := time.Duration(0)
	for _, wait := range h.waits {
		sum += wait
	}
	return sum / time.Duration(len(h.waits))
}

// unserved returns how many goroutines did not get the lock.
func (h *history) unserved() int {
	n := 0
	for _, count := range h.counts {
		if count == 0 {
			n++
		}
	}
	return n
}

// jain returns Jain's fairness index over the goroutines: 1 if all got the lock equally
// often, 1/n if only one of n did.
func (h *history) jain() float64 { return stat.Jain(h.counts) }
