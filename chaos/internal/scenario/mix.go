package scenario

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/stage"
)

// mix is everything at random: each round has a random deployment, and each act is a random fault of any scenario that can be
// played on it.
var mix = &Scenario{
	Number: 29, Name: "mix",
	What:   "everything at random: deployments, and all faults that can be played on them",
	setups: []stage.Setup{{Draw: drawMix}},
	check: func(seen *stage.Evidence) error {
		if seen.Setup.Kind == deployment.Standalone {
			return misuseWasRefused(seen)
		}
		return nil
	},
}

// mixed are the deployments of mix. The cheapest are the most frequent.
var mixed = []deployment.Kind{deployment.Standalone, deployment.Standalone, deployment.Standalone, deployment.Persistent, deployment.Skewed, deployment.Cluster, deployment.Cluster, deployment.Sentinel, deployment.Quorum}

func drawMix(r *rand.Rand) stage.Setup {
	k := mixed[r.IntN(len(mixed))]
	if k == deployment.Skewed && !deployment.CanSetClocks() {
		k = deployment.Standalone
	}
	work := usual()
	if k == deployment.Quorum {
		work = voting
	}
	work.Misuse = 0.03
	if r.IntN(3) == 0 {
		work.TTL = 600 * time.Millisecond
	}
	if r.IntN(4) == 0 {
		work.PoolSize = 1
	}
	work.Sharded = k == deployment.Cluster && r.IntN(2) == 0
	return stage.Setup{Kind: k, Work: work, SplitBrain: true, Faults: faultsOn(k)}
}

// anywhere are the scenarios whose faults need no special deployment.
var anywhere = []int{1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 15, 18, 22, 27}

// forgetting are the scenarios whose faults delete token counters: after a clock was set back, tokens would begin again.
var forgetting = []int{13, 14}

// faultsOn are the faults of all scenarios that can be played on a deployment. Those of semaphores are among them, except that
// processes are replaced.
func faultsOn(k deployment.Kind) []stage.Fault {
	single := k == deployment.Standalone || k == deployment.Persistent || k == deployment.Skewed
	var faults []stage.Fault
	for _, s := range slices.Concat(networkScenarios, serverScenarios, failoverScenarios, clientScenarios, quorumScenarios) {
		if k == deployment.Skewed && slices.Contains(forgetting, s.Number) {
			continue
		}
		for _, c := range s.setups {
			if c.Kind != k && (c.Kind != deployment.Standalone || !single && !slices.Contains(anywhere, s.Number)) {
				continue
			}
			for _, f := range c.Faults {
				if single || !f.Single {
					faults = append(faults, f)
				}
			}
		}
	}
	return faults
}
