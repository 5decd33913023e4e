package stage

import (
	"math/rand/v2"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/worker"
)

// Plan is what is played: one way in which things go wrong, and what has to be kept then
// besides the invariants.
type Plan struct {
	Number uint64  // part of what the seed decides by: plans differ in it
	Name   string  // for errors, and for files
	Setups []Setup // one for each round, in turn

	// Check judges a round, in which all processes have ended, by what the plan promises of its
	// own; nil if it promises nothing. An error says that nothing was tested: then the round is
	// played again.
	Check func(*Evidence) error
}

// Setup is what a round is played with.
type Setup struct {
	Kind   deployment.Kind
	Work   worker.Workload
	Faults []Fault // each act injects one of them
	Lanes  int     // how many faults may be in force at once; 0: one

	// SplitBrain says that the faults make Redis lose or fork data. Then two may hold, with
	// different tokens, and the resource refuses the older one.
	SplitBrain bool
	// Lossless says that none of the faults is a reason to lose a hold.
	Lossless bool
	// Prompt says that nothing keeps a message from arriving.
	Prompt bool

	// Draw makes the setup of a round, if it is not the same for all: the rest is ignored then.
	Draw func(*rand.Rand) Setup
}

// Fault is one kind of harm.
type Fault struct {
	Name string

	// Inject does the harm, waits until it has hit, and repairs what does not heal by itself.
	// It calls [Act.Hit] when it has hit. An error says that the stage itself is broken.
	Inject func(*Act) error

	// Single says that it is for a server without replicas, which would take over, or not
	// let it be done. The stage does not look at it: it is for plans that choose their faults.
	Single bool
}
