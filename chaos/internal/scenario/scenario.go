// Package scenario is the list of scenarios: their faults, their workloads, and their own promises besides the invariants.
//
// It defines how faults are injected. Package stage decides when a fault is injected, into which process, and judges the
// result. The package prints nothing. The files:
//
//   - scenario.go: the Scenario, and how scenarios are selected
//   - workloads.go: the ways in which locks are used
//   - network.go, server.go, refusal.go, failover.go, quorum.go, client.go: the scenarios by the part that they break, and
//     their faults
//   - permits.go: the scenarios of semaphores
//   - mix.go: everything at random
//   - targeted.go: scenarios for one promise each
//   - faults.go: helpers of several faults
//   - probe.go: a lock that has to survive the faults of servers
//   - check.go: the own promises of scenarios
package scenario

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/internal/stage"
	"github.com/relock-go/relock/chaos/internal/turns"
)

// Scenario is a set of faults, with the workload and the deployments for it.
type Scenario struct {
	Number int
	Name   string
	What   string // is injected

	setups []stage.Setup
	check  func(*stage.Evidence) error
}

// Play plays s on a stage: see [stage.Stage.Play].
func (s *Scenario) Play(ctx context.Context, on *stage.Stage, duration time.Duration) (*stage.Result, error) {
	return on.Play(ctx, &stage.Plan{Number: uint64(s.Number), Name: s.Name, Setups: s.setups, Check: s.check}, duration)
}

// Kinds returns the names of the deployments of s, "any" if they are random.
func (s *Scenario) Kinds() []string {
	kinds := make([]string, len(s.setups))
	for i, setup := range s.setups {
		kinds[i] = string(cmp.Or(setup.Kind, "any"))
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// general are the scenarios of the selection "all", in the order of their numbers.
var general = slices.SortedFunc(
	slices.Values(slices.Concat(networkScenarios, serverScenarios, failoverScenarios, quorumScenarios, clientScenarios, permitScenarios, []*Scenario{mix})),
	func(a, b *Scenario) int { return cmp.Compare(a.Number, b.Number) },
)

// All returns every scenario: those of the selection "all", and those for one promise each.
func All() []*Scenario { return slices.Concat(general, targeted, targetedAtPermits) }

// Choose returns the scenarios of a selection: "all", a turn as "2/4" of these, or names and numbers, separated by commas.
func Choose(names string) ([]*Scenario, error) {
	switch {
	case names == "all":
		return general, nil
	case strings.Contains(names, "/"):
		return turns.Of(general, names)
	}
	var chosen []*Scenario
	known := All()
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(known, func(s *Scenario) bool {
			return s.Name == name || strconv.Itoa(s.Number) == name
		})
		if i < 0 {
			return nil, fmt.Errorf("no scenario %q: -scenario list names them", name)
		}
		chosen = append(chosen, known[i])
	}
	return chosen, nil
}
