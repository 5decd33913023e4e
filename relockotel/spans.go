package relockotel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/relock-go/relock"
)

// traceWait makes the span of a wait that has ended. That is soon enough: a span is exported when it
// ends, and nothing is to be found again then.
func (t *Telemetry) traceWait(e relock.Event) {
	now := time.Now()
	attrs := append(t.details(e), outcomeKey.String(string(e.Outcome)))
	_, span := t.tracer.Start(e.Context, "relock.lock", trace.WithAttributes(attrs...), trace.WithTimestamp(now.Add(-e.Elapsed)))
	if e.Err != nil {
		span.SetStatus(codes.Error, e.Err.Error())
	}
	span.End(trace.WithTimestamp(now))
}

// Lock is the argument of [Telemetry.Do]: a *relock.Mutex, a *relock.RWMutex to write, or a
// *relock.Semaphore, whose Do works with one permit.
type Lock interface {
	Name() string
	Do(ctx context.Context, fn func(ctx context.Context) error) error
}

// Do works like m.Do, and adds a span: fn receives the context of the hold with the span relock.hold,
// which is a child of the span in ctx.
//
// The span begins when the lock is acquired, and ends when it is released. A loss is the event
// relock.lost of the span, at the time when it was noticed, so the trace shows which work was done
// without the lock. If Do returns an error, the span has it as its status. If Lock fails, fn does not
// run, and there is no span. The span has all attributes if m has the hooks of t. Without these hooks,
// or if the owner already holds m, the span has only the name of the lock.
//
// Do blocks, and returns errors, as m.Do does; relock.ErrInvalidOption for a nil m. No additional round
// trips.
func (t *Telemetry) Do(ctx context.Context, m Lock, fn func(ctx context.Context) error) error {
	if isNil(m) {
		return fmt.Errorf("relockotel: do: %w: nil Lock", relock.ErrInvalidOption)
	}
	return t.do(ctx, m.Name(), m.Do, fn)
}

// RDo works like m.RDo, and adds a span, as [Telemetry.Do] does for m.Do.
func (t *Telemetry) RDo(ctx context.Context, m *relock.RWMutex, fn func(ctx context.Context) error) error {
	if isNil(m) {
		return fmt.Errorf("relockotel: read do: %w: nil RWMutex", relock.ErrInvalidOption)
	}
	return t.do(ctx, m.Name(), m.RDo, fn)
}

func isNil(m Lock) bool {
	mutex, isMutex := m.(*relock.Mutex)
	rw, isRW := m.(*relock.RWMutex)
	semaphore, isSemaphore := m.(*relock.Semaphore)
	return m == nil || isMutex && mutex == nil || isRW && rw == nil || isSemaphore && semaphore == nil
}

func (t *Telemetry) do(ctx context.Context, name string, run func(context.Context, func(context.Context) error) error,
	fn func(context.Context) error) error {
	if ctx == nil || fn == nil {
		return run(ctx, fn) // which says what is wrong
	}
	h := &hold{telemetry: t, name: name, outside: ctx, err: errNoReturn}
	defer h.end()
	h.err = run(context.WithValue(ctx, holdKey{}, h), func(ctx context.Context) error {
		ctx = h.begin(ctx)
		defer h.unwatch()
		h.failure = fn(ctx)
		return h.failure
	})
	return h.err
}

var errNoReturn = errors.New("the function did not return: it panicked or called runtime.Goexit")

// hold is one Do that is under way.
type hold struct {
	telemetry *Telemetry
	name      string
	outside   context.Context // that Do was called with
	span      trace.Span      // nil: not held yet

	acquired atomic.Pointer[relock.Event] // the hook may be called on another goroutine

	stopWatching func() bool
	watched      chan struct{} // closed when the end of the context was seen
	noteOnce     sync.Once

	failure error // of fn
	err     error // of Do
}

// holdKey is the key of the Do in the context of a Lock.
type holdKey struct{}

// noteAcquired stores e in its Do, because only a hook receives e. If fn of that Do locks with the same
// context, that event comes later, when the Do has already read the first one.
func noteAcquired(e relock.Event) {
	if h, ok := e.Context.Value(holdKey{}).(*hold); ok {
		h.acquired.Store(&e)
	}
}

// begin starts the span, and returns ctx, the context of the hold, with it.
func (h *hold) begin(ctx context.Context) context.Context {
	var attrs []attribute.KeyValue
	if e := h.acquired.Load(); e != nil {
		attrs = h.telemetry.details(*e)
	} else {
		attrs = append(h.telemetry.named(h.name), nameKey.String(h.name))
	}
	ctx, h.span = h.telemetry.tracer.Start(ctx, "relock.hold", trace.WithAttributes(attrs...))
	h.watched = make(chan struct{})
	h.stopWatching = context.AfterFunc(ctx, func() {
		defer close(h.watched)
		// If this hold is inside a hold of another lock, and that one was lost, the cause is the same.
		if cause := context.Cause(ctx); !errors.Is(context.Cause(h.outside), cause) {
			h.note(cause)
		}
	})
	return ctx
}

// unwatch returns when the end of the context is not noted any more.
func (h *hold) unwatch() {
	if !h.stopWatching() {
		<-h.watched
	}
}

// note adds a loss to the span, once.
func (h *hold) note(err error) {
	if errors.Is(err, relock.ErrLost) {
		h.noteOnce.Do(func() {
			h.span.AddEvent("relock.lost", trace.WithAttributes(attribute.String("exception.message", err.Error())))
		})
	}
}

// end ends the span, if there is one.
func (h *hold) end() {
	if h.span == nil {
		return
	}
	if !errors.Is(h.failure, relock.ErrLost) { // else it may be the error of a lock inside
		h.note(h.err)
	}
	if h.err != nil {
		h.span.SetStatus(codes.Error, h.err.Error())
	}
	h.span.End()
}
