package main

import (
	"fmt"
	"os"
	"time"
)

// noisy is the share of all processors that others may use, or the hypervisor take away, on a quiet machine.
const noisy = 0.04

// watch compares what the machine was busy with to what this process and all below it have used.
type watch struct {
	machine machineTime
	own     time.Duration
}

func startWatch() (watch, error) {
	m, err := readMachineTime()
	return watch{m, cpuOf(descendants(os.Getpid()))}, err
}

// others returns the share of the processors that went to others, or was stolen, since the watch started.
func (w watch) others() (float64, error) {
	end, err := startWatch()
	return shareOfOthers(w, end), err
}

func shareOfOthers(begin, end watch) float64 {
	others := (end.machine.busy - begin.machine.busy) - (end.own - begin.own) + (end.machine.stolen - begin.machine.stolen)
	total := end.machine.total - begin.machine.total
	if total <= 0 {
		return 0
	}
	return max(0, float64(others)/float64(total))
}

// noise is what was measured of others: before the run, and in each round.
type noise struct {
	Before float64
	Rounds []float64
}

func (n noise) greatest() float64 {
	most := n.Before
	for _, share := range n.Rounds {
		most = max(most, share)
	}
	return most
}

func (n noise) quiet() bool { return n.greatest() <= noisy }

func (n noise) String() string {
	verdict := "The machine was quiet"
	if !n.quiet() {
		verdict = "**The machine was not quiet**, so these numbers are no result"
	}
	return fmt.Sprintf("%s: other processes, and the hypervisor, had %.1f %% of the processors before the run, and at most %.1f %% in a part of it (limit %.0f %%).",
		verdict, 100*n.Before, 100*n.greatest(), 100*noisy)
}
