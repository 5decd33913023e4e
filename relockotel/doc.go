// Package relockotel tells OpenTelemetry what the locks of a relock.Client do: metrics of waits,
// holds, renewals and losses, and spans of waits and of what is done under a lock.
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
// Without [Telemetry.Do] there are the same metrics, and the spans of waits. The README lists
// all metrics, spans and attributes.
//
// # Names
//
// The name of a lock is never an attribute of a metric: names are without bound where they have an
// id in them, and each would be a time series of its own. [WithNameClass] says what locks are to be
// told apart by. Names, owners and tokens are on the spans.
//
// # Counts that come back to zero
//
// relock.waiters and relock.holds rise and fall with the hooks of one handle. So give the hooks to the
// Client. A handle WithHooks of its own replaces them: join both with relock.JoinHooks. If only
// some handles of a name have the hooks, a hold may be told of when it begins and not when it ends.
package relockotel
