package relockotel_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/relock-go/relock/relockotel"
)

// observer is a Telemetry, and what it has recorded.
type observer struct {
	*relockotel.Telemetry
	reader *sdkmetric.ManualReader
	spans  *tracetest.SpanRecorder
	tracer trace.Tracer // of the code that uses locks
}

func observe(tb testing.TB, opts ...relockotel.Option) *observer {
	tb.Helper()
	reader := sdkmetric.NewManualReader()
	return observeBy(tb, reader, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), opts...)
}

// observeBy is observe with metrics that come to reader by way of meters.
func observeBy(tb testing.TB, reader *sdkmetric.ManualReader, meters metric.MeterProvider, opts ...relockotel.Option) *observer {
	tb.Helper()
	spans := tracetest.NewSpanRecorder()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	telemetry, err := relockotel.New(append([]relockotel.Option{
		relockotel.WithMeterProvider(meters), relockotel.WithTracerProvider(tracers),
	}, opts...)...)
	require.NoError(tb, err)
	return &observer{Telemetry: telemetry, reader: reader, spans: spans, tracer: tracers.Tracer("test")}
}

// metrics returns all metrics, by name.
func (o *observer) metrics(tb testing.TB) map[string]metricdata.Metrics {
	tb.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(tb, o.reader.Collect(context.Background(), &all))
	metrics := make(map[string]metricdata.Metrics)
	for _, scope := range all.ScopeMetrics {
		require.Equal(tb, "github.com/relock-go/relock/relockotel", scope.Scope.Name)
		for _, m := range scope.Metrics {
			metrics[m.Name] = m
		}
	}
	return metrics
}

// point is a value of a metric: of a histogram its count and sum.
type point struct {
	attrs attribute.Set
	count int64
	sum   float64
}

// points returns the values of a metric; none if nothing was measured.
func (o *observer) points(tb testing.TB, name string) []point {
	tb.Helper()
	return pointsOf(tb, o.metrics(tb)[name])
}

func pointsOf(tb testing.TB, m metricdata.Metrics) []point {
	tb.Helper()
	var points []point
	switch data := m.Data.(type) {
	case nil:
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			points = append(points, point{attrs: p.Attributes, count: p.Value})
		}
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			points = append(points, point{attrs: p.Attributes, count: int64(p.Count), sum: p.Sum})
		}
	default:
		tb.Fatalf("%s is a %T", m.Name, data)
	}
	return points
}

// total returns the sum of those values of a metric that have these attributes, and more.
func (o *observer) total(tb testing.TB, name string, attrs ...attribute.KeyValue) point {
	tb.Helper()
	var sum point
	for _, p := range o.points(tb, name) {
		if hasAll(p.attrs, attrs) {
			sum.count += p.count
			sum.sum += p.sum
		}
	}
	return sum
}

// count is the count of total.
func (o *observer) count(tb testing.TB, name string, attrs ...attribute.KeyValue) int {
	tb.Helper()
	return int(o.total(tb, name, attrs...).count)
}

func hasAll(set attribute.Set, attrs []attribute.KeyValue) bool {
	for _, want := range attrs {
		if v, ok := set.Value(want.Key); !ok || v != want.Value {
			return false
		}
	}
	return true
}

// requireAtRest requires that there are no waiters, holds and permits, whatever the attributes.
func (o *observer) requireAtRest(tb testing.TB) {
	tb.Helper()
	for _, name := range []string{"relock.waiters", "relock.holds", "relock.permits"} {
		for _, p := range o.points(tb, name) {
			require.Zero(tb, p.count, "%s %v", name, p.attrs.ToSlice())
		}
	}
}

// ended returns the spans with this name that have ended.
func (o *observer) ended(name string) []sdktrace.ReadOnlySpan {
	var spans []sdktrace.ReadOnlySpan
	for _, s := range o.spans.Ended() {
		if s.Name() == name {
			spans = append(spans, s)
		}
	}
	return spans
}

// onlyEnded returns the one span with this name.
func (o *observer) onlyEnded(tb testing.TB, name string) sdktrace.ReadOnlySpan {
	tb.Helper()
	spans := o.ended(name)
	require.Len(tb, spans, 1, "spans with the name %s", name)
	return spans[0]
}

// attributesOf returns the attributes of a span, by key.
func attributesOf(s sdktrace.ReadOnlySpan) map[string]any {
	attrs := make(map[string]any)
	for _, a := range s.Attributes() {
		attrs[string(a.Key)] = a.Value.AsInterface()
	}
	return attrs
}

func kind(k string) attribute.KeyValue    { return attribute.String("relock.kind", k) }
func side(s string) attribute.KeyValue    { return attribute.String("relock.side", s) }
func outcome(o string) attribute.KeyValue { return attribute.String("relock.outcome", o) }
func cause(c string) attribute.KeyValue   { return attribute.String("relock.loss.cause", c) }

// exemplars returns the traces that the exemplars of a histogram are from.
func (o *observer) exemplars(tb testing.TB, name string) []string {
	tb.Helper()
	var traces []string
	data, ok := o.metrics(tb)[name].Data.(metricdata.Histogram[float64])
	require.True(tb, ok, name)
	for _, p := range data.DataPoints {
		for _, e := range p.Exemplars {
			traces = append(traces, trace.TraceID(e.TraceID).String())
		}
	}
	return traces
}
