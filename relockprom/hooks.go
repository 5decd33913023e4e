package relockprom

import (
	"errors"

	"github.com/relock-go/relock"
)

// Hooks returns the hooks that count, for relock.WithHooks of a client. They do not block.
//
// Hooks of a handle replace the hooks of its client. If a handle has hooks of its own, join them with
// these (relock.JoinHooks). The gauges relock_held, relock_permits and relock_waiting are correct only if
// all handles for a name have these hooks, or none has them.
func (c *Collector) Hooks() relock.Hooks {
	return relock.Hooks{
		Contended:   func(e relock.Event) { c.groupOf(e).contended() },
		Acquired:    func(e relock.Event) { c.groupOf(e).acquired(e) },
		Failed:      func(e relock.Event) { c.groupOf(e).answered(e) },
		Released:    func(e relock.Event) { c.groupOf(e).released(e) },
		Lost:        func(e relock.Event) { c.groupOf(e).lost(e) },
		Renewed:     func(e relock.Event) { c.groupOf(e).renewed(e, resultRenewed) },
		RenewFailed: func(e relock.Event) { c.groupOf(e).renewed(e, resultFailed) },
	}
}

// contended: each wait that begins here ends in answered.
func (g *group) contended() {
	g.contentions.Inc()
	g.waiting.Inc()
}

// acquired: each hold that begins here ends in released or lost.
func (g *group) acquired(e relock.Event) {
	g.answered(e)
	g.held.Inc()
	if g.permits != nil {
		g.permits.Add(float64(e.Weight))
	}
}

// answered ends a Lock or TryLock, and its wait, if it has waited.
func (g *group) answered(e relock.Event) {
	result := string(e.Outcome)
	g.acquisitions.WithLabelValues(result).Inc()
	g.wait.WithLabelValues(result).Observe(e.Elapsed.Seconds())
	if e.Waited {
		g.waiting.Dec()
	}
}

// released ends a hold, unless it turned out to have been lost before.
func (g *group) released(e relock.Event) {
	if errors.Is(e.Err, relock.ErrLost) {
		g.lost(e)
		return
	}
	g.ended(e, endReleased)
}

func (g *group) lost(e relock.Event) {
	g.losses.WithLabelValues(string(e.Cause)).Inc()
	g.ended(e, endLost)
}

func (g *group) ended(e relock.Event, end string) {
	g.hold.WithLabelValues(end).Observe(e.Elapsed.Seconds())
	g.held.Dec()
	if g.permits != nil {
		g.permits.Sub(float64(e.Weight))
	}
}

func (g *group) renewed(e relock.Event, result string) {
	g.renewals.WithLabelValues(result).Inc()
	g.renew.WithLabelValues(result).Observe(e.Elapsed.Seconds())
}
