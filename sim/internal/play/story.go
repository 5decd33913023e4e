package play

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/check"
	"github.com/relock-go/relock/chaos/history"
)

// Story returns the story of a play for people: the plan, the faults, the broken promises, and the events about the lock before
// and after the violation.
func (r *Result) Story() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n", r.Plan)
	for _, f := range r.Plan.Faults {
		fmt.Fprintf(&b, "  at %s: %v\n", seconds(int64(f.At)), f)
	}
	broken := make(map[string]int)
	for _, v := range r.Report.Violations {
		if broken[v.Invariant]++; broken[v.Invariant] <= 2 {
			fmt.Fprintf(&b, "\n%v\n", v)
		}
	}
	if len(r.Report.Violations) > 0 {
		b.WriteString("\n")
		b.WriteString(r.around(r.Report.Violations[0]))
	}
	return b.String()
}

func seconds(ns int64) string {
	return fmt.Sprintf("%10.6f s", float64(ns)/float64(time.Second))
}

// moment matches a time in the text of a violation.
var moment = regexp.MustCompile(`([0-9]+\.[0-9]+) ?s`)

const (
	linesBefore = 45
	linesAfter  = 6
)

// around returns the events before and after the last time of a violation.
func (r *Result) around(v check.Violation) string {
	times := moment.FindAllStringSubmatch(v.Text, -1)
	until := int64(1) << 62
	if times != nil {
		s, _ := strconv.ParseFloat(times[len(times)-1][1], 64) // matches what is a number
		until = int64(s*float64(time.Second)) + int64(time.Millisecond)
	}
	concerns := func(e history.Event) bool {
		if e.Lock == "" || v.Lock == "" {
			return e.Kind != history.Alive && (e.Lock == "" || v.Lock == "")
		}
		for name := range strings.SplitSeq(v.Lock, ",") {
			if slices.Contains(strings.Split(e.Lock, ","), name) {
				return true
			}
		}
		return false
	}
	var before, after []string
	for _, e := range r.Events {
		line := lineOf(e)
		switch {
		case line == "" || !concerns(e):
		case e.At <= until:
			before = append(before, line)
		case len(after) < linesAfter:
			after = append(after, line)
		}
	}
	return strings.Join(append(before[max(0, len(before)-linesBefore):], after...), "\n") + "\n"
}

// lineOf returns the line of an event in a story, or "" if it is of no interest.
func lineOf(e history.Event) string {
	who := fmt.Sprintf("process %d, goroutine %d", e.Process, e.Worker)
	if e.Process == 0 {
		who = "-----------------------"
	}
	what := ""
	switch e.Kind {
	case history.LockCall:
		what = request(e)
	case history.LockReturn:
		what = fmt.Sprintf("%d: ", e.Op)
		switch e.Outcome {
		case history.OK:
			what += fmt.Sprintf("has %s", e.Lock)
			if e.Depth > 1 {
				what += fmt.Sprintf(", level %d", e.Depth)
			}
			if e.Token != 0 {
				what += fmt.Sprintf(", token %d", e.Token)
			}
		case history.Taken:
			what += e.Lock + " is taken"
		default:
			what += fmt.Sprintf("does not get %s: %s", e.Lock, e.Err)
		}
	case history.Queued:
		what = fmt.Sprintf("%d: waits for %s", e.Op, e.Lock)
	case history.UnlockCall:
		what = fmt.Sprintf("%d: unlocks %s", e.Op, e.Lock)
	case history.UnlockReturn:
		what = fmt.Sprintf("%d: has unlocked %s: %s", e.Op, e.Lock, strings.TrimSpace(string(e.Outcome)+" "+e.Err))
	case history.Held:
		what = fmt.Sprintf("%d: finds that it holds %s", e.Op, e.Lock)
	case history.Counted:
		what = fmt.Sprintf("%d: holds %d levels of %s; Redis says %d", e.Op, e.Depth, e.Lock, e.Count)
	case history.Renewed:
		what = fmt.Sprintf("%s is renewed: until %s", e.Lock, seconds(e.Until))
	case history.Lost:
		what = fmt.Sprintf("%d: loses %s: %s", e.Op, e.Lock, e.Err)
	case history.WriteReturn:
		what = fmt.Sprintf("%d: writes with the token %d: %s", e.Op, e.Token, e.Outcome)
	case history.Left:
		what = "left over: " + e.Note
	case history.FaultBegin, history.Disturbed, history.DataLoss:
		what = fmt.Sprintf("fault %d: %s", e.Op, e.Note)
	case history.FaultEnd:
		what = fmt.Sprintf("fault %d is over", e.Op)
	case history.Paused, history.Resumed, history.Killed:
		what = map[history.Kind]string{history.Paused: "does not run any more", history.Resumed: "runs again", history.Killed: "is gone"}[e.Kind]
		who = fmt.Sprintf("process %d --------------", e.Process)
	case history.Bye:
		what = "ends"
	default:
		return ""
	}
	read := ""
	if e.Read {
		read = " (read)"
	}
	return fmt.Sprintf("%s  %-24s %s%s", seconds(e.At), who, what, read)
}

// request describes a call of Lock.
func request(e history.Event) string {
	what := fmt.Sprintf("%d: asks for %s (%s", e.Op, e.Lock, e.Note)
	if e.Weight > 0 {
		what += fmt.Sprintf(", %d of %d", e.Weight, e.Limit)
	}
	if e.Wait > 0 {
		what += fmt.Sprintf(", for %v at most", ms(time.Duration(e.Wait)))
	}
	if e.Fixed {
		what += ", a fixed lease"
	}
	return what + ")"
}
