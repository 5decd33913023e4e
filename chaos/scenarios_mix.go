package main

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
)

// mix is everything at random: each round draws a deployment, and every act a fault of any
// scenario that can be played on it.
var mix = &scenario{
	number: 29, name: "mix",
	what:  "everything at random: deployments, and all faults that can be played on them",
	casts: []cast{{draw: drawMix}},
	check: func(r *round) error {
		if r.d.Kind == deployment.Standalone {
			return misuseWasRefused(r)
		}
		return nil
	},
}

// mixed are the deployments of mix, those that cost least most often.
var mixed = []deployment.Kind{deployment.Standalone, deployment.Standalone, deployment.Standalone, deployment.Persistent, deployment.Skewed, deployment.Cluster, deployment.Cluster, deployment.Sentinel}

func drawMix(r *rand.Rand) cast {
	k := mixed[r.IntN(len(mixed))]
	if k == deployment.Skewed && !deployment.CanSetClocks() {
		k = deployment.Standalone
	}
	work := usual()
	work.Misuse = 0.03
	if r.IntN(3) == 0 {
		work.TTL = 600 * time.Millisecond
	}
	if r.IntN(4) == 0 {
		work.PoolSize = 1
	}
	work.Sharded = k == deployment.Cluster && r.IntN(2) == 0
	return cast{kind: k, work: work, splitBrain: true, faults: faultsOn(k)}
}

// anywhere are the scenarios whose faults need no special deployment.
var anywhere = []int{1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 15, 18, 22, 27}

// faultsOn are the faults of all scenarios that can be played on a deployment.
func faultsOn(k deployment.Kind) []fault {
	single := k == deployment.Standalone || k == deployment.Persistent || k == deployment.Skewed
	var faults []fault
	for _, s := range slices.Concat(networkScenarios, serverScenarios, failoverScenarios, clientScenarios) {
		for _, c := range s.casts {
			if c.kind != k && (c.kind != deployment.Standalone || !single && !slices.Contains(anywhere, s.number)) {
				continue
			}
			for _, f := range c.faults {
				if single || !f.single {
					faults = append(faults, f)
				}
			}
		}
	}
	return faults
}
