package stage

import "github.com/relock-go/relock/chaos/check"

// Result is the result of a plan, in all its rounds.
type Result struct {
	check.Report
	Hits      int      // of faults; not all that were tried
	Histories []string // files, of the rounds with violations
}

// OwnPromise replaces the name of an invariant in a violation of a plan's own promise.
const OwnPromise = "scenario"

// Detailed is how many violations of a round are reported with the events around them.
const Detailed = 8

// add adds the report of another round.
func (r *Result) add(report check.Report) {
	r.Operations += report.Operations
	r.Holds += report.Holds
	r.Losses += report.Losses
	r.Overlaps += report.Overlaps
	r.LongestWait = max(r.LongestWait, report.LongestWait)
	r.Violations = append(r.Violations, report.Violations...)
}
