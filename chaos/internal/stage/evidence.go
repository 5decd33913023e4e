package stage

import (
	"fmt"

	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/internal/scripts"
	"github.com/relock-go/relock/internal/redistest"
)

// Evidence is the input of a plan's check for a round, and its result.
type Evidence struct {
	Setup   Setup
	Began   int64 // when the round began, as the times of events
	Events  []history.Event
	Outages []Outage

	// The fields below are the result of the check.
	Breaches []string // of the plan's promises
	Hits     int      // of faults that were not counted before: see Act.HitUncounted

	round *round // for Sent; a test may have made evidence without a round
}

// Outage is a period in which one process, or all, could get no answer from a server.
type Outage struct {
	Process  int // 0: every one
	From, To int64
}

// Breach records that a promise of the plan was broken.
func (e *Evidence) Breach(format string, args ...any) {
	e.Breaches = append(e.Breaches, fmt.Sprintf(format, args...))
}

// Clock returns a time as the time since the beginning of the round.
func (e *Evidence) Clock(at int64) string { return sinceBeginning(e.Began, at) }

// Sent returns the number of commands for verb that all processes have sent.
func (e *Evidence) Sent(verb scripts.Verb) int {
	if e.round == nil {
		return 0
	}
	n := 0
	for _, p := range e.round.processes {
		for _, relay := range p.Relays {
			n += relay.Count(e.round.stage.scripts[verb].And(redistest.Any))
		}
	}
	return n
}
