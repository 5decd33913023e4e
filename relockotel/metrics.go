package relockotel

import (
	"context"
	"errors"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/relock-go/relock"
)

type instruments struct {
	waitDuration, holdDuration, renewDuration metric.Float64Histogram
	waiters, holds, permits                   metric.Int64UpDownCounter
	contentions, losses                       metric.Int64Counter
}

// The bounds of the buckets, in seconds. Those of requests are as OpenTelemetry advises for databases.
var (
	requestBounds = []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10}
	waitBounds    = slices.Concat(requestBounds, []float64{30, 60, 300})
	holdBounds    = slices.Concat(waitBounds, []float64{1800, 3600})
)

func newInstruments(meter metric.Meter) (i instruments, err error) {
	var errs [8]error
	i.waitDuration, errs[0] = meter.Float64Histogram("relock.wait.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from the call of Lock, TryLock, AcquireN or TryAcquire until it had the lock or the permit, or gave up."),
		metric.WithExplicitBucketBoundaries(waitBounds...))
	i.waiters, errs[1] = meter.Int64UpDownCounter("relock.waiters", metric.WithUnit("{waiter}"),
		metric.WithDescription("Calls that wait for a lock which another owner has, or for a permit."))
	i.contentions, errs[2] = meter.Int64Counter("relock.contentions", metric.WithUnit("{contention}"),
		metric.WithDescription("Calls that found the lock taken, or no permit free, and had to wait."))
	i.holds, errs[3] = meter.Int64UpDownCounter("relock.holds", metric.WithUnit("{hold}"),
		metric.WithDescription("Locks that are held, and permits of any weight that are in use."))
	i.holdDuration, errs[4] = meter.Float64Histogram("relock.hold.duration", metric.WithUnit("s"),
		metric.WithDescription("Time for which a lock was held."),
		metric.WithExplicitBucketBoundaries(holdBounds...))
	i.losses, errs[5] = meter.Int64Counter("relock.losses", metric.WithUnit("{loss}"),
		metric.WithDescription("Holds that ended without the holder's doing."))
	i.renewDuration, errs[6] = meter.Float64Histogram("relock.renew.duration", metric.WithUnit("s"),
		metric.WithDescription("Time that a renewal of a lease took."),
		metric.WithExplicitBucketBoundaries(requestBounds...))
	i.permits, errs[7] = meter.Int64UpDownCounter("relock.permits", metric.WithUnit("{permit}"),
		metric.WithDescription("The weight of the permits of semaphores that are in use."))
	return i, errors.Join(errs[:]...)
}

// contended counts a wait that begins.
func (t *Telemetry) contended(e relock.Event) {
	ctx, of := lasting(e), t.of(e)
	t.instruments.contentions.Add(ctx, 1, of)
	t.instruments.waiters.Add(ctx, 1, of)
}

// acquired counts a hold that begins.
func (t *Telemetry) acquired(e relock.Event) {
	noteAcquired(e)
	t.tried(e)
	t.instruments.holds.Add(lasting(e), 1, t.of(e))
	if e.Weight > 0 {
		t.instruments.permits.Add(lasting(e), int64(e.Weight), t.of(e))
	}
}

// tried measures a call that has got the lock or has given up, and ends its wait.
func (t *Telemetry) tried(e relock.Event) {
	ctx := lasting(e)
	t.instruments.waitDuration.Record(ctx, e.Elapsed.Seconds(), t.of(e, outcomeKey.String(string(e.Outcome))))
	if e.Waited {
		t.instruments.waiters.Add(ctx, -1, t.of(e))
		t.traceWait(e)
	}
}

// released measures a hold that was unlocked. That may find out that it was lost.
func (t *Telemetry) released(e relock.Event) {
	switch {
	case errors.Is(e.Err, relock.ErrLost):
		t.lost(e)
	case e.Err != nil:
		t.ended(e, outcomeError)
	default:
		t.ended(e, outcomeReleased)
	}
}

// lost counts a loss, and measures the hold.
func (t *Telemetry) lost(e relock.Event) {
	t.instruments.losses.Add(lasting(e), 1, t.of(e, causeKey.String(string(e.Cause))))
	t.ended(e, outcomeLost)
}

// ended measures a hold that has ended.
func (t *Telemetry) ended(e relock.Event, outcome string) {
	ctx := lasting(e)
	t.instruments.holdDuration.Record(ctx, e.Elapsed.Seconds(), t.of(e, outcomeKey.String(outcome)))
	t.instruments.holds.Add(ctx, -1, t.of(e))
	if e.Weight > 0 {
		t.instruments.permits.Add(ctx, -int64(e.Weight), t.of(e))
	}
}

// renewed measures a renewal that has succeeded or failed.
func (t *Telemetry) renewed(e relock.Event) {
	outcome := outcomeRenewed
	if e.Err != nil {
		outcome = outcomeError
	}
	t.instruments.renewDuration.Record(lasting(e), e.Elapsed.Seconds(), t.of(e, outcomeKey.String(outcome)))
}

// of returns what a measurement is of.
func (t *Telemetry) of(e relock.Event, more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(t.attributes(e, more...)...))
}

// lasting is the context of e, with the span that it is in, without an end: the end of a wait has to be
// counted though it is the end of its context, with which a provider may refuse to count.
func lasting(e relock.Event) context.Context { return context.WithoutCancel(e.Context) }
