package play

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/check"
	"github.com/relock-go/relock/chaos/history"
)

// A play may not end for two reasons. If a goroutine waits for a mutex for ever, the clock of the bubble stops, and with it all
// others, which shows only in real time. And a goroutine may wait for ever while virtual time passes. In both cases some call
// does not return, although its context has ended.

// standstill is the longest real time without an event in a play: many times the duration of a whole play.
const standstill = 15 * time.Second

// watchProgress checks from outside the bubble whether the play makes progress, until its end.
func (p *play) watchProgress() (end func()) {
	ended := make(chan struct{})
	go func() {
		tick := time.NewTicker(standstill / 3)
		defer tick.Stop()
		seen, same := -1, 0
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
			}
			if n := p.journal.length(); n != seen {
				seen, same = n, 0
			} else if same++; same == 3 {
				p.hangs("time stands still; these do not wait for it", holdsTimeUp)
			}
		}
	}()
	return func() { close(ended) }
}

// holdsTimeUp reports whether the clock of the bubble waits for the goroutine with the given stack: it runs, or waits for
// something that may come from outside the bubble, such as a mutex.
func holdsTimeUp(stack string) bool {
	status, _, _ := strings.Cut(stack, "\n")
	return strings.Contains(status, "synctest bubble") && !strings.Contains(status, "(durable)")
}

// contains returns a function that reports whether a stack contains one of marks.
func contains(marks ...string) func(stack string) bool {
	return func(stack string) bool {
		return slices.ContainsFunc(marks, func(mark string) bool { return strings.Contains(stack, mark) })
	}
}

// hangs describes the goroutines whose stacks are of interest, and the calls that have not returned.
func (p *play) hangs(what string, interesting func(stack string) bool) {
	all := make([]byte, 4<<20)
	all = all[:runtime.Stack(all, true)]
	var b strings.Builder
	fmt.Fprintf(&b, "the play does not come to its end: %s:\n", what)
	for stack := range strings.SplitSeq(string(all), "\n\n") {
		if interesting(stack) {
			b.WriteString(frames(stack))
		}
	}
	b.WriteString("calls that have not returned:\n")
	events := p.journal.soFar()
	for _, line := range unreturned(events) {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	p.stuck(&Result{Plan: p.plan, Events: events, Report: check.Report{Violations: []check.Violation{{Invariant: "I6", Text: b.String()}}}})
}

// frames returns the first functions of a stack, without arguments.
func frames(stack string) string {
	const most = 14
	var b strings.Builder
	n := 0
	for line := range strings.SplitSeq(stack, "\n") {
		if strings.HasPrefix(line, "\t") {
			continue
		}
		if n++; n > most {
			break
		}
		if i := strings.LastIndex(line, "("); n > 1 && i > 0 {
			line = "    " + line[:i]
		}
		fmt.Fprintf(&b, "  %s\n", line)
	}
	return b.String()
}

// unreturned describes the calls that have not returned, of processes that are not gone.
func unreturned(events []history.Event) []string {
	type id struct{ process, op int }
	open := make(map[id]history.Event)
	var order []id
	gone := make(map[int]bool)
	for _, e := range events {
		at := id{e.Process, e.Op}
		switch e.Kind {
		case history.LockCall, history.UnlockCall:
			open[at] = e
			order = append(order, at)
		case history.LockReturn, history.UnlockReturn:
			delete(open, at)
		case history.Killed:
			gone[e.Process] = true
		}
	}
	var lines []string
	for _, at := range order {
		if e, is := open[at]; is && !gone[at.process] {
			lines = append(lines, lineOf(e))
		}
	}
	return lines
}
