package main

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/worker"
)

// scenario is one way in which things go wrong, and what is to be expected then besides
// the invariants.
type scenario struct {
	number int
	name   string
	what   string
	casts  []cast             // played in turn
	check  func(*round) error // an error says that nothing was tested
}

// cast is who and what a round is played with.
type cast struct {
	kind   deployment.Kind
	work   worker.Workload
	faults []fault
	lanes  int // how many faults may be in force at once; 0: one

	// splitBrain says that the faults make Redis lose or fork data. Then two may hold, with
	// different tokens, and the resource refuses the older one.
	splitBrain bool
	// lossless says that none of the faults is a reason to lose a hold.
	lossless bool
	// prompt says that nothing keeps a message from arriving.
	prompt bool

	// draw makes the cast of a round, if it is not the same for all.
	draw func(*rand.Rand) cast
}

// usual is the workload of most scenarios: some of everything.
func usual() worker.Workload {
	return worker.Workload{
		Processes: 3, Workers: 6, Names: 3,
		TTL: time.Second, Poll: 250 * time.Millisecond,
		Long: 0.03, Fixed: 0.05, Joint: 0.1, Fair: 0.4, Shared: 0.1, Impatient: 0.25, Sides: 0.3, Reads: 0.7,
	}
}

// Leases of another length: short ones where a fault has to outlast them, long ones where
// it must not, on a machine that is busy. There the place of a fair waiter has to last, too:
// for two polls.
var (
	brief   = usual().With(func(w *worker.Workload) { w.TTL = 600 * time.Millisecond })
	lasting = usual().With(func(w *worker.Workload) {
		w.TTL, w.Poll, w.Long, w.Fixed = 1500*time.Millisecond, 750*time.Millisecond, 0.04, 0
	})
)

// plain is a workload without fair locks and read-write locks.
func plain() worker.Workload {
	return usual().With(func(w *worker.Workload) { w.Fair, w.Sides = 0, 0 })
}

// shard has wake-ups come by sharded pub/sub.
func shard(w *worker.Workload) { w.Sharded = true }

// scenarios are all that there are, in the order of their numbers.
var scenarios = slices.Concat(networkScenarios, serverScenarios, failoverScenarios, quorumScenarios, clientScenarios, []*scenario{mix})

func init() {
	slices.SortFunc(scenarios, func(a, b *scenario) int { return cmp.Compare(a.number, b.number) })
}

// forCI are the scenarios of the selection "ci": those whose faults need no seconds, but for
// those that come close to another one.
var forCI = []int{1, 2, 3, 4, 6, 7, 8, 9, 13, 14, 15, 16, 18, 21, 22, 24, 25, 27, 28, 29, 30, 31}

// choose returns the scenarios that are meant.
func choose(names string) ([]*scenario, error) {
	switch names {
	case "all":
		return scenarios, nil
	case "ci":
		var chosen []*scenario
		for _, s := range scenarios {
			if slices.Contains(forCI, s.number) {
				chosen = append(chosen, s)
			}
		}
		return chosen, nil
	}
	var chosen []*scenario
	known := slices.Concat(scenarios, pointedScenarios)
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(known, func(s *scenario) bool {
			return s.name == name || strconv.Itoa(s.number) == name
		})
		if i < 0 {
			return nil, fmt.Errorf("no scenario %q: -scenario list names them", name)
		}
		chosen = append(chosen, known[i])
	}
	return chosen, nil
}

// list prints the scenarios.
func list(out io.Writer) {
	for _, s := range slices.Concat(scenarios, pointedScenarios) {
		kinds := make([]string, len(s.casts))
		for i, c := range s.casts {
			kinds[i] = string(cmp.Or(c.kind, "any"))
		}
		slices.Sort(kinds)
		fmt.Fprintf(out, "%3d  %-22s %s (%s)\n", s.number, s.name, s.what, strings.Join(slices.Compact(kinds), ", "))
	}
}
