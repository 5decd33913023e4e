package stage

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

	"github.com/relock-go/relock/chaos/check"
	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/internal/deployment"
)

// judge adds the verdict on the round's history to res. An error means that nothing was tested.
func (r *round) judge(res *Result) (untested error) {
	events := r.journal.events
	report := check.Run(events, check.Rules{
		TTL: r.work.TTL, Poll: r.work.Poll, Slack: slack,
		SplitBrain: r.setup.SplitBrain, Lossless: r.setup.Lossless, Prompt: r.setup.Prompt, Untokened: r.work.Untokened,
		SentOnce: r.setup.Prompt && r.setup.Kind == deployment.Standalone,
		Quorum:   r.setup.Kind == deployment.Quorum || r.setup.Kind == deployment.SkewedQuorum,
	})
	e := &Evidence{Setup: r.setup, Began: r.journal.began, Events: events, Outages: r.outages, round: r}
	if r.plan.Check != nil {
		untested = r.plan.Check(e)
	}
	for _, text := range slices.Concat(r.breaches, e.Breaches) {
		report.Violations = append(report.Violations, check.Violation{Invariant: OwnPromise, Text: text})
	}
	for i, v := range report.Violations[:min(Detailed, len(report.Violations))] {
		report.Violations[i].Text += r.journal.around(v)
	}
	res.add(report)
	res.Hits += r.hits + e.Hits
	if len(report.Violations) > 0 {
		res.Histories = append(res.Histories, r.keep())
	}
	return untested
}

// moment matches a time in the text of a violation.
var moment = regexp.MustCompile(`([0-9]+\.[0-9]+) ?s`)

// around returns the events of a violation's lock, and of the director, before and after the last time in the text of the
// violation.
func (j *journal) around(v check.Violation) string {
	const before, after = 10, 5
	times := moment.FindAllStringSubmatch(v.Text, -1)
	if times == nil {
		return ""
	}
	s, _ := strconv.ParseFloat(times[len(times)-1][1], 64) // matches what is a number
	at := j.began + int64(s*float64(time.Second))
	events := slices.DeleteFunc(slices.Clone(j.events), func(e history.Event) bool {
		return e.Kind == history.Alive || e.Process != 0 && v.Lock != "" && !strings.Contains(v.Lock, e.Lock) && !strings.Contains(e.Lock, v.Lock)
	})
	slices.SortStableFunc(events, func(a, b history.Event) int { return cmp.Compare(a.At, b.At) })
	i, _ := slices.BinarySearchFunc(events, at, func(e history.Event, at int64) int { return cmp.Compare(e.At, at) })
	var text strings.Builder
	for _, e := range events[max(0, i-before):min(len(events), i+after)] {
		line, _ := json.Marshal(e) // has only what can be
		fmt.Fprintf(&text, "\n    %s  %s", sinceBeginning(j.began, e.At), line)
	}
	return text.String()
}

// keep writes the round's history to a file, and returns its name, or the reason why it could not.
func (r *round) keep() string {
	f, err := os.CreateTemp("", fmt.Sprintf("chaos-%s-%d-*.jsonl", r.plan.Name, r.number))
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	out := json.NewEncoder(f)
	for _, e := range r.journal.events {
		if err := out.Encode(e); err != nil {
			return err.Error()
		}
	}
	return f.Name()
}
