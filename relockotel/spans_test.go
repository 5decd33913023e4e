package relockotel_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/relockotel"
	"github.com/relock-go/relock/relocktest"
)

func nothing(context.Context) error { return nil }

// lasted returns for how many seconds a span lasted.
func lasted(s sdktrace.ReadOnlySpan) float64 { return s.EndTime().Sub(s.StartTime()).Seconds() }

func requireChild(t *testing.T, child, parent trace.SpanContext, s sdktrace.ReadOnlySpan) {
	t.Helper()
	require.Equal(t, parent.TraceID(), child.TraceID())
	require.Equal(t, parent.SpanID(), s.Parent().SpanID())
}

func TestSpans_PermitHasOnesOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observe(t)
		locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
		time.AfterFunc(3*time.Second, relocktest.HoldPermitsElsewhere(t, locks, "llm", 2))
		ctx, request := o.tracer.Start(t.Context(), "request")
		require.NoError(t, o.Do(ctx, locks.Semaphore("llm", 2), func(context.Context) error {
			time.Sleep(7 * time.Second)
			return nil
		}))
		wait, hold := o.onlyEnded(t, "relock.lock"), o.onlyEnded(t, "relock.hold")
		requireChild(t, wait.SpanContext(), request.SpanContext(), wait)
		requireChild(t, hold.SpanContext(), request.SpanContext(), hold)
		require.InDelta(t, 3, lasted(wait), tolerance)
		require.InDelta(t, 7, lasted(hold), tolerance)
		attrs := attributesOf(hold)
		require.Regexp(t, `^[0-9a-f-]{36}:\d+:1$`, attrs["relock.owner"], "the ID of the permit")
		require.Equal(t, attrs["relock.owner"], attributesOf(wait)["relock.owner"])
		delete(attrs, "relock.owner")
		require.Equal(t, map[string]any{"relock.name": "llm", "relock.kind": "semaphore"}, attrs)
	})
}

func TestSpans_WaitIsTheCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observe(t)
		locks := relocktest.New(t, relock.WithHooks(o.Hooks()), relock.WithFencing())
		release := relocktest.HoldElsewhere(t, locks, "orders:42")
		time.AfterFunc(3*time.Second, release)
		ctx, request := o.tracer.Start(t.Context(), "request")
		began := time.Now()
		m := locks.FairMutex("orders:42", relock.WithOwner("job-17"))
		require.NoError(t, m.Lock(ctx))

		wait := o.onlyEnded(t, "relock.lock")
		requireChild(t, wait.SpanContext(), request.SpanContext(), wait)
		require.WithinDuration(t, began, wait.StartTime(), 100*time.Millisecond)
		require.InDelta(t, 3, lasted(wait), tolerance)
		require.Equal(t, codes.Unset, wait.Status().Code)
		attrs := attributesOf(wait)
		owner, ok := attrs["relock.owner"].(string)
		require.True(t, ok)
		require.Regexp(t, ":job-17$", owner)
		delete(attrs, "relock.owner")
		require.Equal(t, map[string]any{
			"relock.name": "orders:42", "relock.kind": "fair", "relock.outcome": "acquired", "relock.token": m.FencingToken(),
		}, attrs)
		require.NoError(t, m.Unlock())
	})
}

func TestSpans_UnsuccessfulWaitHasAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observe(t, relockotel.WithNameClass(func(string) string { return "orders" }))
		locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
		relocktest.HoldElsewhere(t, locks, "orders:42")
		ctx, request := o.tracer.Start(t.Context(), "request")
		m := locks.Mutex("orders:42", relock.WithOwner("job-17"), relock.WithWaitTimeout(2*time.Second))
		err := o.Do(ctx, m, nothing)
		require.ErrorIs(t, err, relock.ErrTimeout)

		wait := o.onlyEnded(t, "relock.lock")
		requireChild(t, wait.SpanContext(), request.SpanContext(), wait)
		require.InDelta(t, 2, lasted(wait), tolerance)
		require.Equal(t, codes.Error, wait.Status().Code)
		require.Contains(t, wait.Status().Description, "elsewhere", "it says who has the lock")
		require.Equal(t, map[string]any{
			"relock.name": "orders:42", "relock.kind": "mutex", "relock.owner": "job-17", "relock.outcome": "timeout", "relock.name.class": "orders",
		}, attributesOf(wait))
		require.Empty(t, o.ended("relock.hold"), "nothing was held")
		require.Len(t, o.spans.Started(), 2)
	})
}

func TestSpans_UncontendedLockHasNoWait(t *testing.T) {
	o := observe(t)
	locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
	m := locks.Mutex("orders:42")
	require.NoError(t, m.Lock(t.Context()))
	relocktest.HoldElsewhere(t, locks, "orders:43")
	held, err := locks.Mutex("orders:43").TryLock(t.Context())
	require.NoError(t, err)
	require.False(t, held)
	require.NoError(t, m.Unlock())
	require.Empty(t, o.spans.Started())
}

func TestSpans_DoHasOneWithItsOwnInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observe(t)
		m := relocktest.New(t, relock.WithHooks(o.Hooks()), relock.WithFencing()).Mutex("orders:42", relock.WithOwner("job-17"))
		ctx, request := o.tracer.Start(t.Context(), "request")
		var token int64
		require.NoError(t, o.Do(ctx, m, func(ctx context.Context) error {
			token = m.FencingToken()
			_, work := o.tracer.Start(ctx, "work")
			time.Sleep(2 * time.Second)
			work.End()
			return nil
		}))

		hold, work := o.onlyEnded(t, "relock.hold"), o.onlyEnded(t, "work")
		requireChild(t, hold.SpanContext(), request.SpanContext(), hold)
		requireChild(t, work.SpanContext(), hold.SpanContext(), work)
		require.InDelta(t, 2, lasted(hold), tolerance)
		require.Equal(t, codes.Unset, hold.Status().Code)
		require.Empty(t, hold.Events())
		attrs := attributesOf(hold)
		require.Regexp(t, "^[0-9a-f-]{36}:job-17$", attrs["relock.owner"])
		delete(attrs, "relock.owner")
		require.Equal(t, map[string]any{"relock.name": "orders:42", "relock.kind": "mutex", "relock.token": token}, attrs)
		require.Zero(t, m.HoldCount())
	})
}

func TestSpans_BothSidesOfAnRWMutexHaveThem(t *testing.T) {
	o := observe(t)
	m := relocktest.New(t, relock.WithHooks(o.Hooks())).RWMutex("orders:42")
	require.NoError(t, o.Do(t.Context(), m, func(context.Context) error {
		assert.Equal(t, 1, m.HoldCount())
		return nil
	}))
	require.NoError(t, o.RDo(t.Context(), m, func(context.Context) error {
		assert.Equal(t, 1, m.RHoldCount())
		return nil
	}))
	holds := o.ended("relock.hold")
	require.Len(t, holds, 2)
	require.Equal(t, "write", attributesOf(holds[0])["relock.side"])
	require.Equal(t, "read", attributesOf(holds[1])["relock.side"])
}

func TestSpans_LossIsAnEventWhenItHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observe(t)
		locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
		began := time.Now()
		err := o.Do(t.Context(), locks.Mutex("orders:42"), func(ctx context.Context) error {
			time.Sleep(time.Second)
			relocktest.Lose(t, locks, "orders:42")
			time.Sleep(2 * time.Second) // it does not look at its context
			return nil
		})
		require.ErrorIs(t, err, relock.ErrLost)

		hold := o.onlyEnded(t, "relock.hold")
		require.InDelta(t, 3, lasted(hold), tolerance)
		require.Equal(t, sdktrace.Status{Code: codes.Error, Description: err.Error()}, hold.Status())
		require.Len(t, hold.Events(), 1)
		lost := hold.Events()[0]
		require.Equal(t, "relock.lost", lost.Name)
		require.InDelta(t, 1, lost.Time.Sub(began).Seconds(), tolerance)
		require.Len(t, lost.Attributes, 1)
		require.EqualValues(t, "exception.message", lost.Attributes[0].Key)
		require.Contains(t, lost.Attributes[0].Value.AsString(), "forced open")
	})
}

// The function and what notes the loss are woken at the same time.
func TestSpans_LossThatEndsTheFunctionIsAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observe(t)
		locks := relocktest.New(t, relock.WithHooks(o.Hooks()), relock.WithTTL(time.Second), relock.WithoutRenewal())
		for range 100 {
			require.ErrorIs(t, o.Do(t.Context(), locks.Mutex("orders:42"), func(ctx context.Context) error {
				<-ctx.Done()
				return context.Cause(ctx)
			}), relock.ErrLost)
		}
		holds := o.ended("relock.hold")
		require.Len(t, holds, 100)
		for _, hold := range holds {
			require.Len(t, hold.Events(), 1)
		}
	})
}

func TestSpans_LossFoundByUnlockIsAnEvent(t *testing.T) {
	o := observe(t)
	locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
	err := o.Do(t.Context(), locks.Mutex("orders:42"), func(ctx context.Context) error {
		return relocktest.Redis(t, locks).Del(ctx, "orders:42").Err()
	})
	require.ErrorIs(t, err, relock.ErrLost)
	hold := o.onlyEnded(t, "relock.hold")
	require.Equal(t, codes.Error, hold.Status().Code)
	require.Len(t, hold.Events(), 1)
	require.Equal(t, "relock.lost", hold.Events()[0].Name)
}

func TestSpans_LossOfAnOuterLockIsNoEventOfTheInner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observe(t)
		locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
		err := o.Do(t.Context(), locks.Mutex("outer"), func(ctx context.Context) error {
			return o.Do(ctx, locks.Mutex("inner"), func(ctx context.Context) error {
				relocktest.Lose(t, locks, "outer")
				<-ctx.Done()
				return context.Cause(ctx)
			})
		})
		require.ErrorIs(t, err, relock.ErrLost)
		for _, hold := range o.ended("relock.hold") {
			if attributesOf(hold)["relock.name"] == "outer" {
				require.Len(t, hold.Events(), 1)
			} else {
				require.Empty(t, hold.Events(), "it was not lost")
			}
			require.Equal(t, codes.Error, hold.Status().Code)
		}
		require.Equal(t, 1, o.count(t, "relock.losses"))
	})
}

func TestSpans_LossOfAnInnerLockIsNoEventOfTheOuter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observe(t)
		locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
		err := o.Do(t.Context(), locks.Mutex("outer"), func(ctx context.Context) error {
			return o.Do(ctx, locks.Mutex("inner"), func(ctx context.Context) error {
				relocktest.Lose(t, locks, "inner")
				return nil
			})
		})
		require.ErrorIs(t, err, relock.ErrLost)
		for _, hold := range o.ended("relock.hold") {
			require.Equal(t, attributesOf(hold)["relock.name"] == "inner", len(hold.Events()) == 1)
		}
	})
}

func TestSpans_FailureOfTheFunctionIsTheStatus(t *testing.T) {
	o := observe(t)
	m := relocktest.New(t, relock.WithHooks(o.Hooks())).Mutex("orders:42")
	sold := errors.New("sold out")
	require.Equal(t, sold, o.Do(t.Context(), m, func(context.Context) error { return sold }))
	hold := o.onlyEnded(t, "relock.hold")
	require.Equal(t, sdktrace.Status{Code: codes.Error, Description: "sold out"}, hold.Status())
	require.Empty(t, hold.Events())
}

func TestSpans_FunctionThatDoesNotReturnEndsItsSpan(t *testing.T) {
	for what, end := range map[string]func(){
		"panic":  func() { panic("sold out") },
		"Goexit": runtime.Goexit,
	} {
		t.Run(what, func(t *testing.T) {
			o := observe(t)
			m := relocktest.New(t, relock.WithHooks(o.Hooks())).Mutex("orders:42", relock.WithOwner("job-17"))
			unwound := make(chan any)
			go func() {
				defer func() { unwound <- recover() }()
				_ = o.Do(t.Context(), m, func(context.Context) error {
					end()
					return nil
				})
			}()
			require.Equal(t, what == "panic", <-unwound != nil)
			hold := o.onlyEnded(t, "relock.hold")
			require.Equal(t, codes.Error, hold.Status().Code)
			require.Contains(t, hold.Status().Description, "did not return")
			require.Zero(t, m.HoldCount())
			o.requireAtRest(t)
		})
	}
}

func TestSpans_InnerLockHasItsOwnAttributes(t *testing.T) {
	o := observe(t)
	locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
	require.NoError(t, o.Do(t.Context(), locks.Mutex("outer"), func(ctx context.Context) error {
		return errors.Join(
			o.Do(ctx, locks.FairMutex("inner"), nothing),
			locks.MultiMutex([]string{"another", "one"}).Do(ctx, nothing),
		)
	}))
	holds := o.ended("relock.hold")
	require.Len(t, holds, 2)
	inner, outer := attributesOf(holds[0]), attributesOf(holds[1])
	require.Equal(t, []any{"inner", "fair"}, []any{inner["relock.name"], inner["relock.kind"]})
	require.Equal(t, []any{"outer", "mutex"}, []any{outer["relock.name"], outer["relock.kind"]})
	requireChild(t, holds[0].SpanContext(), holds[1].SpanContext(), holds[0])
}

// A re-entry begins no hold, so no hook reports it.
func TestSpans_LevelHasOneWithItsName(t *testing.T) {
	o := observe(t)
	locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
	require.NoError(t, locks.Mutex("orders:42").Do(t.Context(), func(ctx context.Context) error {
		return o.Do(ctx, locks.Mutex("orders:42"), func(ctx context.Context) error {
			return locks.Mutex("orders:43").Do(ctx, nothing)
		})
	}))
	require.Equal(t, map[string]any{"relock.name": "orders:42"}, attributesOf(o.onlyEnded(t, "relock.hold")))
}
