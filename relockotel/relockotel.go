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

// scope is the instrumentation scope of all metrics and spans.
const scope = "github.com/relock-go/relock/relockotel"

// Option is an option of [New].
type Option func(*settings)

type settings struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
	class   func(name string) string
	common  []attribute.KeyValue
}

// WithMeterProvider sets the MeterProvider of the metrics. Default: the global one, even if it is set
// later.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(s *settings) { s.meters = p }
}

// WithTracerProvider sets where the spans go. Default: the global TracerProvider, even if it is set
// later.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(s *settings) { s.tracers = p }
}

// WithNameClass adds the attribute relock.name.class to metrics and spans. Its value is the result of
// class for the name of the lock, which is Event.Name of relock: for a MultiMutex all names joined by
// commas. If class returns "", there is no attribute. Default: no such attribute.
//
// Return one of a few words ("orders" for "orders:42"), because each word is a time series of each
// metric. Always return the same word for a name. class is called for each event, by several goroutines
// at once, and delays the locks as a hook does.
func WithNameClass(class func(name string) string) Option {
	return func(s *settings) { s.class = class }
}

// WithAttributes adds attributes to all metrics and spans, for example to distinguish several Clients
// of one process. If it is used more than once, the attributes add up. Default: none.
func WithAttributes(attrs ...attribute.KeyValue) Option {
	return func(s *settings) { s.common = append(s.common, attrs...) }
}

// Telemetry exports metrics and spans of locks to OpenTelemetry. It stores nothing about locks, needs
// no Close, and can serve any number of Clients. All methods are safe for concurrent use.
type Telemetry struct {
	class       func(name string) string
	common      []attribute.KeyValue
	tracer      trace.Tracer
	instruments instruments
}

// New returns a Telemetry. It does not block.
//
// Errors: relock.ErrInvalidOption for a nil Option, or for an Option with a nil argument; and the
// errors of the MeterProvider if it cannot create an instrument.
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

// Hooks returns the hooks for relock.WithHooks. They send nothing to Redis, do not lock, and block only
// as long as the providers do.
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
