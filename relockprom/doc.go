// Package relockprom exports Prometheus metrics of the locks of a process: how many are acquired,
// waited for, held, renewed and lost, and how long each of these takes.
//
//	collector, err := relockprom.NewCollector()
//	// ...
//	prometheus.MustRegister(collector)
//	locks, err := relock.New(rdb, relock.WithHooks(collector.Hooks()))
//
// # Metrics
//
// Each metric has the labels kind ("mutex", "fair", "multi", "rw" or "semaphore") and side ("read" or
// "write" for an RWMutex, otherwise empty). A permit of a semaphore counts as a lock. With
// [WithNameClass] it also has the label class.
//
//	relock_acquisitions_total{result}  finished calls of Lock, TryLock, RLock, TryRLock, AcquireN and
//	                                   TryAcquire
//	relock_wait_seconds{result}        histogram: how long each of these took
//	relock_contended_total             calls that found the lock taken and started to wait
//	relock_waiting                     calls that wait now
//	relock_held                        locks that are held now
//	relock_permits                     the weight of the permits that are in use now, of a semaphore
//	relock_hold_seconds{end}           histogram: how long a lock was held, by "released" or "lost"
//	relock_renewals_total{result}      renewals of a lease, by "renewed" or "failed"
//	relock_renew_seconds{result}       histogram: how long a renewal took
//	relock_losses_total{cause}         locks that were lost: "expired", "gone" or "forced"; also if
//	                                   Unlock was the first to notice
//
// The result of an acquisition is "acquired", "busy", "timeout", "cancelled", "deadlock" or "error": see
// [relock.Outcome]. The cause of a loss is a [relock.LossCause]. A re-entry is counted only if it
// fails. [relock.Hooks] documents when each event occurs.
//
// The counters and gauges of a kind, side and class start at 0 with their first event.
//
// Names of locks, owners and tokens are not labels. A metric has one series for each value of its
// labels, in the process and in Prometheus, and the number of names has no limit. Use names in logs
// ([relock.LogHooks]) and traces.
package relockprom
