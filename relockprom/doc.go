// Package relockprom lets Prometheus see the locks of a process: how many are taken, waited for, held,
// renewed and lost, and how long each of these takes.
//
//	collector, err := relockprom.NewCollector()
//	// ...
//	prometheus.MustRegister(collector)
//	locks, err := relock.New(rdb, relock.WithHooks(collector.Hooks()))
//
// # Metrics
//
// Each metric has the labels kind ("mutex", "fair", "multi" or "rw") and side ("read" or "write", of an
// RWMutex; else empty), and class, if [WithNameClass] is used.
//
//	relock_acquisitions_total{result}  calls of Lock, TryLock, RLock and TryRLock that have ended
//	relock_wait_seconds{result}        histogram: how long each of these took
//	relock_contended_total             calls that found the lock taken and started to wait
//	relock_waiting                     calls that wait now
//	relock_held                        locks that are held now
//	relock_hold_seconds{end}           histogram: how long a lock was held, by "released" or "lost"
//	relock_renewals_total{result}      renewals of a lease, by "renewed" or "failed"
//	relock_renew_seconds{result}       histogram: how long a renewal took
//	relock_losses_total{cause}         locks that were lost: "expired", "gone" or "forced"; also if Unlock
//	                                   was the first to find out
//
// The result of an acquisition is "acquired", "busy", "timeout", "cancelled" or "error": see
// [relock.Outcome]. The cause of a loss is a [relock.LossCause]. A Lock that adds a level to what its
// owner holds already is not counted, unless it fails. What is counted when is said at [relock.Hooks].
//
// The counters and gauges of a kind, side and class begin at 0 with the first event of theirs.
//
// The name of a lock is no label, nor are owners and tokens: a metric has one series for each
// value of its labels, in the process and in Prometheus, and the names of locks have no end. Names are for
// logs ([relock.LogHooks]) and traces.
package relockprom
