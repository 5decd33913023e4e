package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// timeline prints what happens, and when.
type timeline struct {
	start time.Time

	mu    sync.Mutex // guards out and parts
	out   io.Writer
	parts int
}

func newTimeline(out io.Writer) *timeline {
	return &timeline{start: time.Now(), out: out}
}

func (t *timeline) elapsed() time.Duration { return time.Since(t.start) }

// part prints a heading.
func (t *timeline) part(title string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.parts++
	fmt.Fprintf(t.out, "\n%d. %s\n", t.parts, title)
}

// print prints what an actor does.
func (t *timeline) print(who, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, "%8.3f s  %-8s  %s\n", t.elapsed().Seconds(), who, fmt.Sprintf(format, args...))
}

// ms rounds a duration for the timeline.
func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
