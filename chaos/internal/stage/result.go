package stage

import "github.com/relock-go/relock/chaos/check"

// Result is what became of a plan, in all its rounds.
type Result struct {
	check.Report
	Hits      int      // of faults; not all that were tried
	Histories []string // files, of the rounds with violations
}

// OwnPromise is what stands in place of an invariant's name in a violation of what the plan
// promises besides the invariants.
const OwnPromise = "scenario"

// Detailed is how many violations of a round come with the events around them.
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
