package stage

import (
	"math/rand/v2"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/worker"
)

// Plan is what a stage plays: faults, workloads, and promises besides the invariants.
type Plan struct {
	Number uint64  // different for each plan, because random choices follow from it and the seed
	Name   string  // for errors, and for files
	Setups []Setup // one for each round, in turn

	// Check judges the plan's own promises in a round in which all processes have ended; nil: there are none. An error means
	// that nothing was tested, and the round is played again.
	Check func(*Evidence) error
}

// Setup is the input of a round.
type Setup struct {
	Kind   deployment.Kind
	Work   worker.Workload
	Faults []Fault // each act injects one of them
	Lanes  int     // how many faults may be in force at once; 0: one

	// SplitBrain: the faults make Redis lose or fork data. Then there may be two holders, with different tokens, and the
	// resource refuses the older one.
	SplitBrain bool
	// Lossless: none of the faults is a reason to lose a hold.
	Lossless bool
	// Prompt: no message is lost.
	Prompt bool

	// Draw makes a random setup for a round; then the other fields are ignored. nil: the setup is the same for all rounds.
	Draw func(*rand.Rand) Setup
}

// Fault is one kind of fault.
type Fault struct {
	Name string

	// Inject injects the fault, waits until it has hit, and repairs what does not recover by itself. It calls [Act.Hit] when
	// the fault has hit. An error means that the stage itself is broken.
	Inject func(*Act) error

	// Single: it is for a server without replicas, because a replica would take over, or prevent the fault. The stage does not
	// use this field. It is for plans that choose their faults.
	Single bool
}
