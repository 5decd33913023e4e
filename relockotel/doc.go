// Package relockotel exports OpenTelemetry metrics and spans of the locks of a relock.Client: metrics
// of waits, holds, renewals and losses, and spans of waits and of the work under a lock.
//
//	telemetry, err := relockotel.New()
//	if err != nil {
//		return err
//	}
//	locks, err := relock.New(rdb, relock.WithHooks(telemetry.Hooks()))
//	if err != nil {
//		return err
//	}
//	defer locks.Close()
//
//	return telemetry.Do(ctx, locks.Mutex("orders:42"), ship) // ship gets the span relock.hold
//
// If you use the Do of the lock instead of [Telemetry.Do], there are all metrics, and the spans of
// waits.
//
// # Metrics and spans
//
//	relock.wait.duration   histogram: from the call of Lock, TryLock or AcquireN to its result
//	relock.waiters         calls that wait now
//	relock.contentions     calls that found the lock taken and started to wait
//	relock.holds           locks that are held now; a permit of a semaphore counts as one
//	relock.permits         the weight of the permits that are in use now, of a semaphore
//	relock.hold.duration   histogram: how long a lock was held
//	relock.losses          locks that were lost
//	relock.renew.duration  histogram: how long a renewal of a lease took
//	relock.lock            span of a Lock or AcquireN that has to wait
//	relock.hold            span of the work in [Telemetry.Do] and [Telemetry.RDo]
//
// Durations are in seconds. The README lists the attributes.
//
// # Names
//
// The name of a lock is never an attribute of a metric. Names that contain an id have no limit, and
// each would be a separate time series. [WithNameClass] maps names to a few classes. Spans have the
// name, the owner and the token.
//
// # Counts that return to zero
//
// relock.waiters, relock.holds and relock.permits rise and fall with the hooks of one handle. So set the hooks for the
// Client. If a handle has hooks of its own, these replace the hooks of the client: join both with
// relock.JoinHooks. If only some handles for a name have the hooks, the hooks may see the beginning of
// a hold but not its end.
package relockotel
