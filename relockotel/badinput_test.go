package relockotel_test

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/relockotel"
	"github.com/relock-go/relock/relocktest"
)

func TestBadInput_NilOptionIsNamed(t *testing.T) {
	for what, opt := range map[string]relockotel.Option{
		"an Option is nil":        nil,
		"WithMeterProvider(nil)":  relockotel.WithMeterProvider(nil),
		"WithTracerProvider(nil)": relockotel.WithTracerProvider(nil),
		"WithNameClass(nil)":      relockotel.WithNameClass(nil),
	} {
		telemetry, err := relockotel.New(opt)
		require.Nil(t, telemetry)
		require.ErrorIs(t, err, relock.ErrInvalidOption)
		require.ErrorContains(t, err, what)
	}
}

// A full provider makes no more instruments of one sort.
type full struct{ metric.MeterProvider }

func (p full) Meter(name string, opts ...metric.MeterOption) metric.Meter {
	return fullMeter{p.MeterProvider.Meter(name, opts...)}
}

type fullMeter struct{ metric.Meter }

var errFull = errors.New("no more instruments")

func (fullMeter) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	if name == "relock.losses" {
		return nil, errFull
	}
	return metricnoop.Int64Counter{}, nil
}

func TestBadInput_FailingInstrumentIsAnError(t *testing.T) {
	telemetry, err := relockotel.New(relockotel.WithMeterProvider(full{metricnoop.NewMeterProvider()}))
	require.Nil(t, telemetry)
	require.ErrorIs(t, err, errFull)
	require.ErrorContains(t, err, "relockotel: ")
}

func TestBadInput_DoNamesMissingArguments(t *testing.T) {
	o := observe(t)
	locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
	m, rw := locks.Mutex("orders:42"), locks.RWMutex("readers")
	var none context.Context
	var mutex *relock.Mutex
	var readers *relock.RWMutex
	var semaphore *relock.Semaphore
	for what, err := range map[string]error{
		"nil Lock":      o.Do(t.Context(), nil, nothing),
		"nil Mutex":     o.Do(t.Context(), mutex, nothing),
		"nil RWMutex":   o.Do(t.Context(), readers, nothing),
		"nil Semaphore": o.Do(t.Context(), semaphore, nothing),
		"nil to read":   o.RDo(t.Context(), readers, nothing),
		"nil context":   o.Do(none, m, nothing),
		"nil to both":   o.RDo(none, rw, nil),
		"nil function":  o.Do(t.Context(), m, nil),
	} {
		require.ErrorIs(t, err, relock.ErrInvalidOption, what)
		require.ErrorContains(t, err, "nil", what)
	}
	require.Empty(t, o.spans.Started())
	o.requireAtRest(t)
}

func TestBadInput_BadNameIsTheErrorOfTheLock(t *testing.T) {
	o := observe(t)
	locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
	err := o.Do(t.Context(), locks.Mutex("a{b"), nothing)
	require.ErrorIs(t, err, relock.ErrInvalidName)
	require.ErrorContains(t, err, `"a{b"`)
	require.Empty(t, o.spans.Started())
	require.Empty(t, o.metrics(t), "nothing was asked for")
}

func TestOutage_IsAnOutcome(t *testing.T) {
	o := observe(t)
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // no server has this port
	defer rdb.Close()
	locks, err := relock.New(rdb, relock.WithHooks(o.Hooks()))
	require.NoError(t, err)
	defer locks.Close()
	err = o.Do(t.Context(), locks.Mutex("orders:42"), nothing)
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.Equal(t, 1, o.count(t, "relock.wait.duration", outcome("error")))
	require.Empty(t, o.spans.Started(), "it has neither waited nor held")
	o.requireAtRest(t)
}
