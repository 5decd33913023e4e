package relockotel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/relockotel"
	"github.com/relock-go/relock/relocktest"
)

// In a bubble time passes when all goroutines wait, so that a duration is known.
const tolerance = 0.1 // seconds

func TestMetrics_HoldCountsWhileItLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observe(t)
		m := relocktest.New(t, relock.WithHooks(o.Hooks())).Mutex("orders:42")
		require.NoError(t, m.Lock(t.Context()))
		require.NoError(t, m.Lock(t.Context()), "a re-entry is no hold of its own")
		require.Equal(t, 1, o.count(t, "relock.holds", kind("mutex")))
		require.Zero(t, o.count(t, "relock.hold.duration"))
		time.Sleep(7 * time.Second)
		require.NoError(t, m.Unlock())
		require.Equal(t, 1, o.count(t, "relock.holds"))
		require.NoError(t, m.Unlock())

		o.requireAtRest(t)
		held := o.total(t, "relock.hold.duration", kind("mutex"), outcome("released"))
		require.EqualValues(t, 1, held.count)
		require.InDelta(t, 7, held.sum, tolerance)
		require.Equal(t, 1, o.count(t, "relock.wait.duration", kind("mutex"), outcome("acquired")))
		require.Zero(t, o.count(t, "relock.contentions"), "it was free")
		require.Zero(t, o.count(t, "relock.losses"))
	})
}

func TestMetrics_WaitCountsWhileItLasts(t *testing.T) {
	const waiters = 3
	synctest.Test(t, func(t *testing.T) {
		o := observe(t)
		locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
		release := relocktest.HoldElsewhere(t, locks, "orders:42")
		var all sync.WaitGroup
		for range waiters {
			all.Go(func() {
				assert.NoError(t, locks.Mutex("orders:42").Do(t.Context(), func(context.Context) error { return nil }))
			})
		}
		time.Sleep(3 * time.Second)
		require.Equal(t, waiters, o.count(t, "relock.waiters", kind("mutex")))
		require.Equal(t, waiters, o.count(t, "relock.contentions", kind("mutex")))
		require.Zero(t, o.count(t, "relock.wait.duration"))
		release()
		all.Wait()

		o.requireAtRest(t)
		waited := o.total(t, "relock.wait.duration", kind("mutex"), outcome("acquired"))
		require.EqualValues(t, waiters, waited.count)
		require.InDelta(t, waiters*3, waited.sum, waiters*tolerance)
		require.Equal(t, waiters, o.count(t, "relock.contentions"))
	})
}

func TestMetrics_OutcomesAreDistinct(t *testing.T) {
	for want, lock := range map[string]func(ctx context.Context, m *relock.Mutex, c *relock.Client) error{
		"busy": func(ctx context.Context, m *relock.Mutex, _ *relock.Client) error {
			_, err := m.TryLock(ctx)
			return err
		},
		"timeout": func(ctx context.Context, _ *relock.Mutex, c *relock.Client) error {
			err := c.Mutex("orders:42", relock.WithWaitTimeout(time.Second)).Lock(ctx)
			return expect(err, relock.ErrTimeout)
		},
		"cancelled": func(ctx context.Context, m *relock.Mutex, _ *relock.Client) error {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Second, cancel)
			return expect(m.Lock(ctx), context.Canceled)
		},
		"error": func(ctx context.Context, m *relock.Mutex, c *relock.Client) error {
			time.AfterFunc(time.Second, func() { _ = c.Close() })
			return expect(m.Lock(ctx), relock.ErrClosed)
		},
	} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := observe(t)
				locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
				relocktest.HoldElsewhere(t, locks, "orders:42")
				require.NoError(t, lock(t.Context(), locks.Mutex("orders:42"), locks))

				o.requireAtRest(t)
				require.Equal(t, 1, o.count(t, "relock.wait.duration", outcome(want)))
				require.Equal(t, 1, o.count(t, "relock.wait.duration"))
				waits := 1
				if want == "busy" {
					waits = 0
				}
				require.Equal(t, waits, o.count(t, "relock.contentions"))
				require.InDelta(t, waits, o.total(t, "relock.wait.duration").sum, tolerance)
				require.Zero(t, o.count(t, "relock.hold.duration"))
			})
		})
	}
}

// expect returns an error if err is not what was to come.
func expect(err, want error) error {
	if !errors.Is(err, want) {
		return fmt.Errorf("got %v, not %w", err, want)
	}
	return nil
}

func TestMetrics_LossHasItsCause(t *testing.T) {
	for what, loss := range map[string]struct {
		cause string
		opts  []relock.MutexOption
		lose  func(t *testing.T, c *relock.Client)
	}{
		"the lease runs out": {"expired", []relock.MutexOption{relock.WithTTL(time.Second), relock.WithoutRenewal()},
			func(*testing.T, *relock.Client) { time.Sleep(2 * time.Second) }},
		"a renewal finds no key": {"gone", nil, func(t *testing.T, c *relock.Client) {
			require.NoError(t, relocktest.Redis(t, c).Del(t.Context(), "orders:42").Err())
			time.Sleep(15 * time.Second)
		}},
		"an Unlock finds no key": {"gone", nil, func(t *testing.T, c *relock.Client) {
			require.NoError(t, relocktest.Redis(t, c).Del(t.Context(), "orders:42").Err())
		}},
		"it is forced open": {"forced", nil, func(t *testing.T, c *relock.Client) { relocktest.Lose(t, c, "orders:42") }},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := observe(t)
				locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
				m := locks.Mutex("orders:42", loss.opts...)
				require.NoError(t, m.Lock(t.Context()))
				loss.lose(t, locks)
				require.ErrorIs(t, m.Unlock(), relock.ErrLost)

				o.requireAtRest(t)
				require.Equal(t, 1, o.count(t, "relock.losses", kind("mutex"), cause(loss.cause)))
				require.Equal(t, 1, o.count(t, "relock.losses"))
				require.Equal(t, 1, o.count(t, "relock.hold.duration", outcome("lost")))
				require.Equal(t, 1, o.count(t, "relock.hold.duration"))
			})
		})
	}
}

func TestMetrics_UnconfirmedReleaseIsDistinct(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observe(t)
		locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
		m := locks.Mutex("orders:42", relock.WithUnlockTimeout(time.Second))
		require.NoError(t, m.Lock(t.Context()))
		relocktest.Outage(t, locks, 5*time.Second)
		err := m.Unlock()
		require.Error(t, err)
		require.NotErrorIs(t, err, relock.ErrLost)
		o.requireAtRest(t)
		require.Equal(t, 1, o.count(t, "relock.hold.duration", outcome("error")))
		require.Equal(t, 1, o.count(t, "relock.hold.duration"))
		require.Zero(t, o.count(t, "relock.losses"), "it is unlocked")
	})
}

// The lock was forced open for its next holder in the same process, before Redis received the Unlock.
func TestMetrics_ReleaseThatFailedForTheNextHoldersLossIsNoLoss(t *testing.T) {
	o := observe(t)
	e := relock.Event{Name: "orders:42", Kind: relock.KindMutex, Outcome: relock.OutcomeAcquired, Context: t.Context()}
	o.Hooks().Acquired(e)
	e.Outcome, e.Cause, e.Err = "", relock.LossForced, errors.New("released locally, but not confirmed by Redis: forced open by ForceUnlock")
	o.Hooks().Released(e)
	o.requireAtRest(t)
	require.Equal(t, 1, o.count(t, "relock.hold.duration", outcome("error")))
	require.Zero(t, o.count(t, "relock.losses"))
}

func TestMetrics_RenewalIsMeasuredAndAFailureIsDistinct(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, renewed, failed := observe(t), 0, 0
		var mu sync.Mutex
		count := func(n *int) func(relock.Event) {
			return func(relock.Event) {
				mu.Lock()
				defer mu.Unlock()
				*n++
			}
		}
		locks := relocktest.New(t, relock.WithHooks(relock.JoinHooks(o.Hooks(),
			relock.Hooks{Renewed: count(&renewed), RenewFailed: count(&failed)})))
		m := locks.Mutex("orders:42")
		require.NoError(t, m.Lock(t.Context()))
		time.Sleep(65 * time.Second)
		relocktest.Outage(t, locks, 15*time.Second)
		time.Sleep(20 * time.Second)
		require.NoError(t, m.Unlock())

		mu.Lock()
		defer mu.Unlock()
		require.GreaterOrEqual(t, renewed, 6)
		require.Positive(t, failed)
		require.Equal(t, renewed, o.count(t, "relock.renew.duration", kind("mutex"), outcome("renewed")))
		require.Equal(t, failed, o.count(t, "relock.renew.duration", kind("mutex"), outcome("error")))
		require.Equal(t, renewed+failed, o.count(t, "relock.renew.duration"))
	})
}

func TestMetrics_KindsAndSidesAreDistinct(t *testing.T) {
	o := observe(t)
	locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
	fn := func(context.Context) error { return nil }
	require.NoError(t, locks.Mutex("a").Do(t.Context(), fn))
	require.NoError(t, locks.FairMutex("b").Do(t.Context(), fn))
	require.NoError(t, locks.MultiMutex([]string{"c", "d"}).Do(t.Context(), fn))
	require.NoError(t, locks.RWMutex("e").Do(t.Context(), fn))
	require.NoError(t, locks.RWMutex("e").RDo(t.Context(), fn))
	require.NoError(t, locks.Semaphore("f", 2).Do(t.Context(), fn))

	o.requireAtRest(t)
	for _, name := range []string{"relock.wait.duration", "relock.hold.duration"} {
		for _, of := range [][]attribute.KeyValue{
			{kind("mutex")}, {kind("fair")}, {kind("multi")}, {kind("rw"), side("write")}, {kind("rw"), side("read")}, {kind("semaphore")},
		} {
			require.Equal(t, 1, o.count(t, name, of...), "%s %v", name, of)
		}
		require.Equal(t, 6, o.count(t, name))
	}
	for _, p := range o.points(t, "relock.holds") {
		require.Equal(t, hasAll(p.attrs, []attribute.KeyValue{kind("rw")}), p.attrs.HasValue("relock.side"))
	}
}

// useAll has everything happen that there is a metric of, to the lock orders:42.
func useAll(t *testing.T, o *observer) {
	t.Helper()
	locks := relocktest.New(t, relock.WithHooks(o.Hooks()), relock.WithFencing())
	rw := locks.RWMutex("readers:42")
	require.NoError(t, rw.RLock(t.Context()))
	require.NoError(t, rw.RUnlock())
	m := locks.Mutex("orders:42", relock.WithOwner("job-17"))
	require.NoError(t, m.Lock(t.Context()))
	waited := make(chan error)
	go func() { waited <- locks.Mutex("orders:42", relock.WithOwner("job-18")).Lock(t.Context()) }()
	time.Sleep(time.Minute)
	require.NoError(t, m.Unlock())
	require.NoError(t, <-waited)
	relocktest.Lose(t, locks, "orders:42")
	_, err := locks.Semaphore("readers:llm", 9).AcquireN(t.Context(), 4)
	require.NoError(t, err)
	require.NoError(t, locks.Close())
}

func TestMetrics_PermitsAddUpByWeight(t *testing.T) {
	o := observe(t)
	locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
	relocktest.HoldPermitsElsewhere(t, locks, "llm", 2)
	s := locks.Semaphore("llm", 8)
	large, err := s.AcquireN(t.Context(), 5)
	require.NoError(t, err)
	require.NoError(t, s.Do(t.Context(), func(context.Context) error {
		require.Equal(t, 6, o.count(t, "relock.permits", kind("semaphore")))
		require.Equal(t, 2, o.count(t, "relock.holds", kind("semaphore")))
		_, acquired, err := s.TryAcquire(t.Context())
		require.False(t, acquired)
		return err
	}))
	require.Equal(t, 5, o.count(t, "relock.permits"))
	relocktest.Lose(t, locks, "llm")
	require.ErrorIs(t, large.Release(), relock.ErrLost)
	o.requireAtRest(t)
	require.Equal(t, 1, o.count(t, "relock.losses", kind("semaphore"), cause("forced")))
	require.NoError(t, locks.Mutex("orders").Do(t.Context(), nothing))
	for _, p := range o.points(t, "relock.permits") {
		require.True(t, hasAll(p.attrs, []attribute.KeyValue{kind("semaphore")}), "of no other kind")
	}
}

func TestMetrics_NameOfALockIsNoAttribute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observe(t)
		useAll(t, o)
		metrics := o.metrics(t)
		require.Len(t, metrics, 8)
		for name, m := range metrics {
			points := pointsOf(t, m)
			require.NotEmpty(t, points, name)
			for _, p := range points {
				for _, a := range p.attrs.ToSlice() {
					require.Contains(t, []attribute.Key{"relock.kind", "relock.side", "relock.outcome", "relock.loss.cause"}, a.Key)
					require.Regexp(t, `^[a-z]+$`, a.Value.AsString(), "no id is in it")
				}
			}
		}
	})
}

func TestMetrics_ClassIsAnAttributeOfEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observe(t, relockotel.WithNameClass(func(name string) string {
			class, _, _ := strings.Cut(name, ":")
			return class
		}))
		useAll(t, o)
		class := func(c string) attribute.KeyValue { return attribute.String("relock.name.class", c) }
		for name, m := range o.metrics(t) {
			for _, p := range pointsOf(t, m) {
				require.True(t, hasAll(p.attrs, []attribute.KeyValue{class("orders")}) || hasAll(p.attrs, []attribute.KeyValue{class("readers")}), name)
			}
		}
		require.Equal(t, 2, o.count(t, "relock.wait.duration", class("orders")))
		require.Equal(t, 1, o.count(t, "relock.wait.duration", class("readers"), side("read")))
		require.Equal(t, 1, o.count(t, "relock.hold.duration", class("readers"), kind("semaphore")))
		o.requireAtRest(t)
	})
}

func TestMetrics_EmptyClassIsNoAttribute(t *testing.T) {
	o := observe(t, relockotel.WithNameClass(func(string) string { return "" }))
	m := relocktest.New(t, relock.WithHooks(o.Hooks())).Mutex("orders:42")
	require.NoError(t, m.Lock(t.Context()))
	for _, p := range o.points(t, "relock.holds") {
		require.False(t, p.attrs.HasValue("relock.name.class"))
	}
	require.NoError(t, m.Unlock())
}

func TestMetrics_ClientAttributesAreOnAllMetricsAndSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := attribute.String("deployment", "eu"), attribute.Int("shard", 3)
		o := observe(t, relockotel.WithAttributes(first), relockotel.WithAttributes(second))
		useAll(t, o)
		for name, m := range o.metrics(t) {
			for _, p := range pointsOf(t, m) {
				require.True(t, hasAll(p.attrs, []attribute.KeyValue{first, second}), name)
			}
		}
		attrs := attributesOf(o.onlyEnded(t, "relock.lock"))
		require.Equal(t, "eu", attrs["deployment"])
		require.EqualValues(t, 3, attrs["shard"])
	})
}

// impatient refuses to count with a context that has ended, as a provider may.
type impatient struct{ metric.MeterProvider }

func (p impatient) Meter(name string, opts ...metric.MeterOption) metric.Meter {
	return impatientMeter{p.MeterProvider.Meter(name, opts...)}
}

type impatientMeter struct{ metric.Meter }

func (m impatientMeter) Int64UpDownCounter(name string, opts ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	c, err := m.Meter.Int64UpDownCounter(name, opts...)
	return impatientCounter{c}, err
}

type impatientCounter struct{ metric.Int64UpDownCounter }

func (c impatientCounter) Add(ctx context.Context, n int64, opts ...metric.AddOption) {
	if ctx.Err() == nil {
		c.Int64UpDownCounter.Add(ctx, n, opts...)
	}
}

func TestMetrics_EndOfAWaitCountsThoughItsContextHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		o := observeBy(t, reader, impatient{sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
		locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
		relocktest.HoldElsewhere(t, locks, "orders:42")
		ctx, cancel := context.WithCancel(t.Context())
		waited := make(chan error)
		go func() { waited <- locks.Mutex("orders:42").Lock(ctx) }()
		time.Sleep(time.Second)
		require.Equal(t, 1, o.count(t, "relock.waiters"))
		cancel()
		require.ErrorIs(t, <-waited, context.Canceled)
		o.requireAtRest(t)
	})
}

func TestMetrics_WaitHasTheSpanOfTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observe(t)
		locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
		ctx, span := o.tracer.Start(t.Context(), "request")
		require.NoError(t, locks.Mutex("orders:42").Do(ctx, func(context.Context) error { return nil }))
		span.End()
		ids := o.exemplars(t, "relock.wait.duration")
		require.Equal(t, []string{span.SpanContext().TraceID().String()}, ids)
	})
}
