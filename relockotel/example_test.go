package relockotel_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/relockotel"
)

func shipOrder(ctx context.Context, rdb redis.UniversalClient, ship func(context.Context) error) error {
	telemetry, err := relockotel.New(relockotel.WithNameClass(func(name string) string {
		class, _, _ := strings.Cut(name, ":")
		return class // "orders" of "orders:42"
	}))
	if err != nil {
		return err
	}
	locks, err := relock.New(rdb, relock.WithHooks(telemetry.Hooks()))
	if err != nil {
		return err
	}
	defer locks.Close()

	return telemetry.Do(ctx, locks.Mutex("orders:42"), ship) // as m.Do, with a span
}

// The providers are the ones of the process. Here they keep what they receive.
func Example() {
	metrics, spans := sdkmetric.NewManualReader(), tracetest.NewSpanRecorder()
	otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(metrics)))
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))

	server, err := miniredis.Run() // in a program: a Redis
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()

	ctx := context.Background()
	if err := shipOrder(ctx, rdb, func(context.Context) error { return nil }); err != nil {
		fmt.Println(err)
	}

	for _, span := range spans.Ended() {
		fmt.Println("span", span.Name(), attributesOf(span)["relock.name"])
	}
	var reported metricdata.ResourceMetrics
	if err := metrics.Collect(ctx, &reported); err != nil {
		fmt.Println(err)
	}
	for _, m := range reported.ScopeMetrics[0].Metrics {
		if held, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == "relock.hold.duration" {
			for _, a := range held.DataPoints[0].Attributes.ToSlice() {
				fmt.Println(m.Name, a.Key, a.Value.AsString())
			}
		}
	}
	// Output:
	// span relock.hold orders:42
	// relock.hold.duration relock.kind mutex
	// relock.hold.duration relock.name.class orders
	// relock.hold.duration relock.outcome released
}
