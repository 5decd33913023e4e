package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/internal/check"
	"github.com/relock-go/relock/chaos/internal/history"
)

// judge adds to res what the round's history shows.
func (r *round) judge(res *result) error {
	report := check.Run(r.events, check.Rules{
		TTL: r.work.TTL, Poll: r.work.Poll, Slack: slack,
		SplitBrain: r.cast.splitBrain, Lossless: r.cast.lossless, Prompt: r.cast.prompt,
	})
	var untested error
	if r.scenario.check != nil {
		untested = r.scenario.check(r)
	}
	for _, text := range r.breaches {
		report.Violations = append(report.Violations, check.Violation{Invariant: scenarioCheck, Text: text})
	}
	for i, v := range report.Violations[:min(most, len(report.Violations))] {
		report.Violations[i].Text += r.around(v)
	}
	res.add(report)
	res.faults += r.faults
	if len(report.Violations) > 0 {
		res.histories = append(res.histories, r.keep())
	}
	return untested
}

// moment is how the judge tells a time.
var moment = regexp.MustCompile(`([0-9]+\.[0-9]+) ?s`)

// around returns the events of a violation's lock, and of the director, before and after
// the last time that the violation tells of.
func (r *round) around(v check.Violation) string {
	const before, after = 10, 5
	times := moment.FindAllStringSubmatch(v.Text, -1)
	if times == nil {
		return ""
	}
	s, _ := strconv.ParseFloat(times[len(times)-1][1], 64) // matches what is a number
	at := r.began + int64(s*float64(time.Second))
	events := slices.DeleteFunc(slices.Clone(r.events), func(e history.Event) bool {
		return e.Kind == history.Alive || e.Process != 0 && v.Lock != "" && !strings.Contains(v.Lock, e.Lock) && !strings.Contains(e.Lock, v.Lock)
	})
	slices.SortStableFunc(events, func(a, b history.Event) int { return cmp.Compare(a.At, b.At) })
	i, _ := slices.BinarySearchFunc(events, at, func(e history.Event, at int64) int { return cmp.Compare(e.At, at) })
	var text strings.Builder
	for _, e := range events[max(0, i-before):min(len(events), i+after)] {
		line, _ := json.Marshal(e) // has only what can be
		fmt.Fprintf(&text, "\n    %s  %s", r.clock(e.At), line)
	}
	return text.String()
}

// add adds the report of another round.
func (r *result) add(report check.Report) {
	r.Operations += report.Operations
	r.Holds += report.Holds
	r.Losses += report.Losses
	r.Overlaps += report.Overlaps
	r.LongestWait = max(r.LongestWait, report.LongestWait)
	r.Violations = append(r.Violations, report.Violations...)
}

// keep writes the round's history to a file, for whoever wants to know what happened, and
// returns its name, or why it could not.
func (r *round) keep() string {
	f, err := os.CreateTemp("", fmt.Sprintf("chaos-%s-%d-*.jsonl", r.scenario.name, r.number))
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	out := json.NewEncoder(f)
	for _, e := range r.events {
		if err := out.Encode(e); err != nil {
			return err.Error()
		}
	}
	return f.Name()
}
