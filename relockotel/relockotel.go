package relockotel

import (
	"fmt"
	"slices"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/relock-go/relock"
)

// scope is the instrumentation scope of all that is told.
const scope = "github.com/relock-go/relock/relockotel"

// Option is an option of [New].
type Option func(*settings)

type settings struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
	class   func(name string) string
	common  []attribute.KeyValue
}

// WithMeterProvider sets where the metrics go. Default: the global one, also if that is set later.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(s *settings) { s.meters = p }
}

// WithTracerProvider sets where the spans go. Default: the global one, also if that is set later.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(s *settings) { s.tracers = p }
}

// WithNameClass adds the attribute relock.name.class, which is what class returns for the name of
// the lock; "" adds none. The name is that of Event.Name: those of a MultiMutex are joined by commas.
//
// Let it return one of a few words ("orders" for "orders:42"), and the same for a name each time:
// each word is a time series of each metric. It is called with each event, by several goroutines at
// once, and delays the locks as a hook does. Default: no such attribute.
func WithNameClass(class func(name string) string) Option {
	return func(s *settings) { s.class = class }
}

// WithAttributes adds attributes to all metrics and spans: those that tell one Client from another
// in the same process. A second use adds more. Default: none.
func WithAttributes(attrs ...attribute.KeyValue) Option {
	return func(s *settings) { s.common = append(s.common, attrs...) }
}

// Telemetry tells OpenTelemetry what locks do. It keeps nothing of them, needs no Close, and may
// serve any number of Clients. All methods are safe for concurrent use.
type Telemetry struct {
	class       func(name string) string
	common      []attribute.KeyValue
	tracer      trace.Tracer
	instruments instruments
}

// New returns a Telemetry. It does not block.
//
// Errors: relock.ErrInvalidOption for a nil Option, or an Option that was given nil; and what the
// MeterProvider says if it does not make an instrument.
func New(opts ...Option) (*Telemetry, error) {
	s := settings{
		meters:  otel.GetMeterProvider(),
		tracers: otel.GetTracerProvider(),
		class:   func(string) string { return "" },
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("relockotel: %w: an Option is nil", relock.ErrInvalidOption)
		}
		opt(&s)
	}
	switch {
	case s.meters == nil:
		return nil, fmt.Errorf("relockotel: %w: WithMeterProvider(nil)", relock.ErrInvalidOption)
	case s.tracers == nil:
		return nil, fmt.Errorf("relockotel: %w: WithTracerProvider(nil)", relock.ErrInvalidOption)
	case s.class == nil:
		return nil, fmt.Errorf("relockotel: %w: WithNameClass(nil)", relock.ErrInvalidOption)
	}
	made, err := newInstruments(s.meters.Meter(scope))
	if err != nil {
		return nil, fmt.Errorf("relockotel: make the instruments: %w", err)
	}
	return &Telemetry{
		class:       s.class,
		common:      slices.Clip(s.common),
		tracer:      s.tracers.Tracer(scope),
		instruments: made,
	}, nil
}

// Hooks returns the hooks that tell of locks, for relock.WithHooks. They call neither Redis nor a
// lock, and block only as long as the providers do.
func (t *Telemetry) Hooks() relock.Hooks {
	return relock.Hooks{
		Contended:   t.contended,
		Acquired:    t.acquired,
		Failed:      t.tried,
		Released:    t.released,
		Lost:        t.lost,
		Renewed:     t.renewed,
		RenewFailed: t.renewed,
	}
}
