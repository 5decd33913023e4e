package relockprom

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/relock-go/relock"
)

// The values of labels that an Event does not have.
const (
	endReleased = "released"
	endLost     = "lost"

	resultRenewed = "renewed"
	resultFailed  = "failed"

	classOther = "other" // of the names that came when there were maxClasses
)

// maxClasses bounds what a function that returns too many classes can cost.
const maxClasses = 100

// labels are the labels of every metric.
type labels struct{ kind, side, class string }

// group is what is counted under the same labels. It is looked up once for each event, and not by label.
type group struct {
	acquisitions, renewals, losses *prometheus.CounterVec // by the one label that is left
	wait, hold, renew              prometheus.ObserverVec
	contentions                    prometheus.Counter
	held, waiting                  prometheus.Gauge
	permits                        prometheus.Gauge // nil: not of a semaphore
}

// groupOf returns the group in which e is counted.
func (c *Collector) groupOf(e relock.Event) *group {
	l := labels{kind: string(e.Kind), side: string(e.Side)}
	if c.classOf != nil {
		l.class = strings.ToValidUTF8(c.classOf(e.Name), "\uFFFD") // or client_golang panics
	}
	c.mu.RLock()
	g := c.groups[l]
	c.mu.RUnlock()
	if g != nil {
		return g
	}
	return c.newGroup(l)
}

// newGroup returns the group of l, made if it is new. A class that is not in use when there are
// maxClasses never will be, so the events of a name always meet in one group.
func (c *Collector) newGroup(l labels) *group {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.classes[l.class] && len(c.classes) >= maxClasses {
		l.class = classOther
	}
	c.classes[l.class] = true
	g := c.groups[l]
	if g == nil {
		g = c.families.group(l, c.classOf != nil)
		c.groups[l] = g
	}
	return g
}

// group returns the part of f with these labels. Its counters and gauges are there from now on: what
// begins at 1 has no increase that Prometheus could see.
func (f *families) group(l labels, classed bool) *group {
	common := prometheus.Labels{"kind": l.kind, "side": l.side}
	if classed {
		common["class"] = l.class
	}
	g := &group{
		acquisitions: f.acquisitions.MustCurryWith(common),
		renewals:     f.renewals.MustCurryWith(common),
		losses:       f.losses.MustCurryWith(common),
		wait:         f.wait.MustCurryWith(common),
		hold:         f.hold.MustCurryWith(common),
		renew:        f.renew.MustCurryWith(common),
		contentions:  f.contentions.With(common),
		held:         f.held.With(common),
		waiting:      f.waiting.With(common),
	}
	if l.kind == string(relock.KindSemaphore) {
		g.permits = f.permits.With(common)
	}
	for _, outcome := range []relock.Outcome{
		relock.OutcomeAcquired, relock.OutcomeBusy, relock.OutcomeTimedOut, relock.OutcomeCancelled, relock.OutcomeDeadlock, relock.OutcomeError,
	} {
		g.acquisitions.WithLabelValues(string(outcome))
	}
	for _, cause := range []relock.LossCause{relock.LossExpired, relock.LossGone, relock.LossForced} {
		g.losses.WithLabelValues(string(cause))
	}
	for _, result := range []string{resultRenewed, resultFailed} {
		g.renewals.WithLabelValues(result)
	}
	return g
}
