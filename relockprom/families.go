package relockprom

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// families are the metrics, each with all its series.
type families struct {
	acquisitions, contentions, renewals, losses *prometheus.CounterVec
	held, waiting, permits                      *prometheus.GaugeVec
	wait, hold, renew                           *prometheus.HistogramVec
}

func newFamilies(s settings) *families {
	common := []string{"kind", "side"}
	if s.classOf != nil {
		common = append(common, "class")
	}
	with := func(more ...string) []string { return slices.Concat(common, more) }
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, with(more...))
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, with())
	}
	histogram := func(name, help string, buckets []float64, more ...string) *prometheus.HistogramVec {
		opts := prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
		if s.native {
			opts.NativeHistogramBucketFactor = 1.1
			opts.NativeHistogramMaxBucketNumber = 100
			opts.NativeHistogramMinResetDuration = time.Hour
		}
		return prometheus.NewHistogramVec(opts, with(more...))
	}
	return &families{
		acquisitions: counter("relock_acquisitions_total", "Calls of Lock, TryLock, RLock, TryRLock, AcquireN and TryAcquire that have ended.", "result"),
		wait:         histogram("relock_wait_seconds", "How long calls of Lock, TryLock, RLock, TryRLock, AcquireN and TryAcquire took.", s.buckets.Wait, "result"),
		contentions:  counter("relock_contended_total", "Calls that found the lock taken and started to wait."),
		waiting:      gauge("relock_waiting", "Calls that wait for a lock or a permit now."),
		held:         gauge("relock_held", "Locks that are held now, and permits of any weight that are in use."),
		permits:      gauge("relock_permits", "The weight of the permits of semaphores that are in use now."),
		hold:         histogram("relock_hold_seconds", "How long locks were held.", s.buckets.Hold, "end"),
		renewals:     counter("relock_renewals_total", "Renewals of leases, failed attempts too.", "result"),
		renew:        histogram("relock_renew_seconds", "How long renewals of leases took.", s.buckets.Renew, "result"),
		losses:       counter("relock_losses_total", "Locks that were lost: they ended without their holder's doing.", "cause"),
	}
}

func (f *families) all() []prometheus.Collector {
	return []prometheus.Collector{
		f.acquisitions, f.wait, f.contentions, f.waiting, f.held, f.permits, f.hold, f.renewals, f.renew, f.losses,
	}
}
