package main

import (
	"fmt"
	"time"
)

// plan is how long each part of a run takes, so that the whole keeps to its budget.
type plan struct {
	window time.Duration // of the arrivals of one load
	fixed  time.Duration // recovery, memory, and all that does not depend on the window
}

// What a run takes beside its windows.
const (
	startOfRun   = 60 * time.Second       // the peer, the servers
	startOfFleet = 60 * time.Second       // of JVMs, once
	startOfCell  = 400 * time.Millisecond // workers
	startOfLone  = 60 * time.Millisecond  // one of a fleet
	startOfLevel = 300 * time.Millisecond // orders and answers
	waitOfLevel  = 300 * time.Millisecond // for the unserved, on average
	footprintOf  = 10 * time.Second       // memory of a contender
	recoveryOf   = 60 * time.Second       // all events of a contender, once
	slowly       = 3                      // times that, where each process is a JVM
	leastWindow  = 200 * time.Millisecond // below that a p99 means nothing
	mostWindow   = 5 * time.Second
)

// plan returns the windows that fit into the budget.
func (c config) plan() (plan, error) {
	p := plan{fixed: startOfRun}
	perRound, windows := time.Duration(0), 0.0
	for _, s := range c.scenarios {
		each := startOfCell + time.Duration(s.processes)*startOfLone + time.Duration(len(levels)+1)*startOfLevel + time.Duration(len(levels))*waitOfLevel
		perRound += each * time.Duration(len(c.contenders))
		windows += (float64(len(levels)-1+s.long) + limitShare) * float64(len(c.contenders))
	}
	p.fixed += perRound * time.Duration(c.rounds)
	for _, one := range c.contenders {
		each := time.Duration(1)
		if one.peer == peerJava {
			p.fixed += startOfFleet
			each = slowly
		}
		if c.memory {
			p.fixed += footprintOf * each
		}
		p.fixed += recoveryOf * each / recoverAtOnce * time.Duration(c.recovery)
	}
	if windows > 0 {
		p.window = min(mostWindow, time.Duration(float64(c.budget-p.fixed)/(windows*float64(c.rounds)))).Round(10 * time.Millisecond)
		if p.window < leastWindow {
			return p, fmt.Errorf("-budget %v is too short for %d rounds of %d contenders: the windows would last %v, and need at least %v",
				c.budget, c.rounds, len(c.contenders), p.window, leastWindow)
		}
	}
	return p, nil
}

// limitShare is how long the closed loop takes, in windows, with its warm-up.
const limitShare = 1.0
