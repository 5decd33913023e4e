package relock

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
)

// Hooks are functions that the library calls for the events of locks: for metrics, traces and logs. Any
// field may be nil.
//
// Hooks run synchronously and delay the caller: be quick, and do not call methods of the same lock.
// While a hook runs, the library holds no internal lock that another call needs. Hooks may be called at
// the same time, on different goroutines. For example, the hook for the end of a hold may be called
// before or during the hook for a renewal that was in flight.
//
// If a hook panics, the library recovers the panic and reports it once to [slog.Default], as an error
// with the names of the hook and the lock, the value of the panic, and the stack. The call that reports
// the event goes on as if the hook had returned. A hook must not call [runtime.Goexit], as T.FailNow
// does: that ends the call in the middle, and a lock may stay locked until Close.
//
// In a hook, [Client.Close] of the same client returns [ErrUnsupported] at once and does not close the
// client, because Close would wait for the call that the hook delays. To close the client, start a
// goroutine that calls Close, and do not wait for that goroutine in the hook.
//
// Each Contended is followed by exactly one Acquired or Failed for the same Lock, with Waited set; a
// Lock that gives up calls Failed after its Contended has returned. Each Acquired is followed by one
// Released or one Lost. If nested Locks have different hooks, a hold calls the hooks of the oldest Lock
// that is not yet unlocked.
//
// Locks with one fixed owner ([WithOwner]) queue behind each other. Only the first of them waits for
// the lock and calls Contended. When it has the lock, each of the others only increases the hold count,
// which calls no hook. If it fails, the next one waits for the lock. There is one special case: a Lock
// of a MultiMutex has waited, and meanwhile another goroutine of its fixed owner acquires the missing
// names. The Lock then calls Failed with Outcome busy, though it returns nil.
type Hooks struct {
	// Acquired is called when a hold begins. A re-entry does not begin a hold. Elapsed is how long the
	// call waited.
	Acquired func(Event)

	// Contended is called once by each Lock that finds the lock taken and starts to wait. A Lock that
	// queues behind another one with its fixed owner does not call it. Elapsed is the time since Lock
	// was called.
	Contended func(Event)

	// Deadlock is called once for each Lock that is found to be in a deadlock, on a goroutine of its own: see
	// [WithDeadlockCheck]. Err is an [ErrDeadlock] that describes it; the Lock need not be the one that ends with it.
	// Elapsed is how long it has waited.
	Deadlock func(Event)

	// Failed is called once by each Lock, TryLock, RLock and TryRLock, and by each AcquireN and
	// TryAcquire of a Semaphore, that neither acquires the lock nor increases the hold count, for any
	// reason. Outcome is the kind of the error, and Err is the error. Elapsed is the time since the call
	// began. Failed is the last thing that the call does.
	// It is not called after Acquired, because the hold then reports its own end. It is not called for
	// an invalid handle or weight or a nil context, because nothing was requested. It is called if the
	// name is in use on Redis for something else.
	Failed func(Event)

	// Released is called when a hold has ended by its last Unlock or by Close. Elapsed is how long the
	// lock was held. If Redis did not confirm the release, Err is its error.
	Released func(Event)

	// Renewed is called after each renewal of the lease. Elapsed is the time since the
	// request that Redis answered was sent.
	Renewed func(Event)

	// RenewFailed is called after each try to renew that Redis did not answer in time or refused, or
	// that too few replicas confirmed. The hold is not lost yet: the watchdog retries until the lease
	// ends, and a late answer counts. Elapsed is the time since the renewal began, and Err is the
	// error of the try.
	RenewFailed func(Event)

	// Lost is called when a hold is lost: it ended before an Unlock or Close ended it. Elapsed is how long
	// the lock was held. Err reports how the loss was noticed, and Cause is its kind.
	Lost func(Event)
}

// Event describes an event of one lock.
type Event struct {
	Name string   // the lock's name; for a MultiMutex all names as given, joined by commas
	Kind LockKind // the method of Client that returned the handle
	Side LockSide // for an RWMutex; otherwise empty

	// OwnerID is the owner that wants or holds the lock: the id of WithOwner, or the number of the
	// goroutine. For a permit, which is its own owner, it is the number and the weight of the permit.
	OwnerID string
	// Owner is the owner's field on Redis; for a permit, its ID. For a writer it ends in :write. It is
	// empty while the owner waits, and in Failed. It contains OwnerID, except for an owner that took over
	// the place in the line of another goroutine, which stopped waiting: then it contains that one's.
	Owner string

	Weight int // of a permit, or of the permit that the owner wants; otherwise 0

	Token   int64         // the fencing token; 0 without WithFencing
	Elapsed time.Duration // see the hook
	Err     error         // see the hook

	Outcome Outcome   // for Acquired and Failed; otherwise empty
	Cause   LossCause // if Err reports a loss, as in Lost; otherwise empty
	Waited  bool      // for Acquired and Failed: this ends the wait that a Contended began

	// For Contended, Acquired and Failed, Context is the context of the Lock, or one derived from it.
	// For the other hooks it is context.Background(), because a hold does not keep the context of its
	// Lock.
	Context context.Context
}

// LockKind is a kind of lock: the method that returned its handle.
type LockKind string

// The kinds of locks.
const (
	KindMutex LockKind = "mutex" // by Client.Mutex
	KindFair  LockKind = "fair"  // by Client.FairMutex
	KindMulti LockKind = "multi" // by Client.MultiMutex
	KindRW    LockKind = "rw"    // by Client.RWMutex

	KindSemaphore LockKind = "semaphore" // by Client.Semaphore
)

// LockSide is a side of an RWMutex.
type LockSide string

// The sides of an RWMutex.
const (
	SideWrite LockSide = "write"
	SideRead  LockSide = "read"
)

// Outcome is the result of a Lock, TryLock, RLock or TryRLock.
type Outcome string

// The outcomes.
const (
	OutcomeAcquired  Outcome = "acquired"
	OutcomeBusy      Outcome = "busy"      // TryLock or TryRLock returned false without an error
	OutcomeTimedOut  Outcome = "timeout"   // WithWaitTimeout, or the deadline of the context
	OutcomeCancelled Outcome = "cancelled" // the context was cancelled
	OutcomeDeadlock  Outcome = "deadlock"  // ErrDeadlock
	OutcomeError     Outcome = "error"     // any other error
)

// LossCause is the kind of a loss.
type LossCause string

// The causes of a loss.
const (
	LossExpired LossCause = "expired" // the lease ran out
	LossGone    LossCause = "gone"    // the key was deleted, forced open by another process, or is held by another owner
	LossForced  LossCause = "forced"  // by ForceUnlock or ForceRelease of the same client
)

// JoinHooks returns hooks that call all of the given hooks, in this order. If one panics, that is
// reported as for [Hooks], and the others are still called.
func JoinHooks(hooks ...Hooks) Hooks {
	join := func(name string, field func(Hooks) func(Event)) func(Event) {
		var all []func(Event)
		for _, h := range hooks {
			if hook := field(h); hook != nil {
				all = append(all, hook)
			}
		}
		if len(all) == 0 {
			return nil
		}
		return func(e Event) {
			for _, hook := range all {
				callHook(name, hook, e)
			}
		}
	}
	return Hooks{
		Acquired:    join("Acquired", func(h Hooks) func(Event) { return h.Acquired }),
		Contended:   join("Contended", func(h Hooks) func(Event) { return h.Contended }),
		Deadlock:    join("Deadlock", func(h Hooks) func(Event) { return h.Deadlock }),
		Failed:      join("Failed", func(h Hooks) func(Event) { return h.Failed }),
		Released:    join("Released", func(h Hooks) func(Event) { return h.Released }),
		Renewed:     join("Renewed", func(h Hooks) func(Event) { return h.Renewed }),
		RenewFailed: join("RenewFailed", func(h Hooks) func(Event) { return h.RenewFailed }),
		Lost:        join("Lost", func(h Hooks) func(Event) { return h.Lost }),
	}
}

// LogHooks returns hooks that log every event to logger: Lost and Deadlock as errors, RenewFailed as a warning,
// and the rest at debug level. If logger is nil, they use slog.Default().
func LogHooks(logger *slog.Logger) Hooks {
	log := func(level slog.Level, text string) func(Event) {
		return func(e Event) {
			logger := cmp.Or(logger, slog.Default()) // a program may set it later
			if logger.Enabled(e.Context, level) {
				logger.LogAttrs(e.Context, level, text, e.attrs()...)
			}
		}
	}
	return Hooks{
		Acquired:    log(slog.LevelDebug, "lock acquired"),
		Contended:   log(slog.LevelDebug, "lock contended"),
		Deadlock:    log(slog.LevelError, "lock in a deadlock"),
		Failed:      log(slog.LevelDebug, "lock not acquired"),
		Released:    log(slog.LevelDebug, "lock released"),
		Renewed:     log(slog.LevelDebug, "lock renewed"),
		RenewFailed: log(slog.LevelWarn, "lock not renewed"),
		Lost:        log(slog.LevelError, "lock lost"),
	}
}

// attrs returns the attributes of e for a log. Empty ones are omitted.
func (e Event) attrs() []slog.Attr {
	attrs := []slog.Attr{
		slog.String("name", e.Name), slog.String("kind", string(e.Kind)),
		slog.String("owner", cmp.Or(e.Owner, e.OwnerID)), slog.Duration("elapsed", e.Elapsed),
	}
	if e.Side != "" {
		attrs = append(attrs, slog.String("side", string(e.Side)))
	}
	if e.Weight > 1 {
		attrs = append(attrs, slog.Int("weight", e.Weight))
	}
	if e.Token != 0 {
		attrs = append(attrs, slog.Int64("token", e.Token))
	}
	if e.Outcome != "" {
		attrs = append(attrs, slog.String("outcome", string(e.Outcome)))
	}
	if e.Cause != "" {
		attrs = append(attrs, slog.String("cause", string(e.Cause)))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("error", e.Err))
	}
	return attrs
}

// callHook calls the hook with that name. If the hook panics, callHook logs the panic and does not pass it on, because the
// caller may be in the middle of an Unlock, or may be a goroutine of the library, where the application cannot recover.
func callHook(name string, hook func(Event), e Event) {
	defer func() {
		if p := recover(); p != nil {
			slog.Default().LogAttrs(e.Context, slog.LevelError, "relock: a hook panicked",
				slog.String("hook", name), slog.String("name", e.Name), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		}
	}()
	hook(e)
}

// report completes e and calls the hook with that name, if there is one. No mutex is held.
func (s *session) report(name string, hook func(Event), o keys.Owner, e Event) {
	if hook == nil {
		return
	}
	caller := goroutine.ID()
	if _, nested := s.inHook.LoadOrStore(caller, nil); !nested {
		defer s.inHook.Delete(caller)
	}
	e.OwnerID = o.String()
	if e.Kind == KindSemaphore {
		e.Weight = keys.WeightOf(e.OwnerID)
	}
	if errors.Is(e.Err, ErrLost) {
		e.Cause = causeOf(e.Err)
	}
	if e.Context == nil {
		e.Context = context.Background()
	}
	callHook(name, hook, e)
}

// causeOf returns the cause of the loss that err reports.
func causeOf(err error) LossCause {
	switch {
	case errors.Is(err, errLeaseOver):
		return LossExpired
	case errors.Is(err, lockerr.ErrNotOnRedis):
		return LossGone
	case errors.Is(err, errForced):
		return LossForced
	default:
		return ""
	}
}

// hooks returns the hooks of the oldest open Lock. mu is held.
func (h *hold) hooks() *Hooks {
	if len(h.locks.open) > 0 {
		return &h.locks.open[0].settings.hooks
	}
	return &h.locks.wish.hooks
}

// event describes the hold. mu is held.
func (h *hold) event(elapsed time.Duration, err error) Event {
	e := h.kind.event(h.target, elapsed, err)
	e.Owner, e.Token = h.name.Field, h.name.Token
	return e
}

// event describes a lock of kind k on t.
func (k *kind) event(t *keys.Set, elapsed time.Duration, err error) Event {
	e := Event{Name: t.Name, Kind: k.lock, Elapsed: elapsed, Err: err}
	switch k.side {
	case keys.Writing:
		e.Side = SideWrite
	case keys.Reading:
		e.Side = SideRead
	}
	return e
}

// record contains which hooks one Lock or TryLock in progress has called. If it is nil, the Lock has no such hooks. It
// belongs to the goroutine of the call.
type record struct {
	mutex   *Mutex
	ctx     context.Context // of the caller
	owner   keys.Owner
	started clock.Instant
	waited  bool // Contended was called
	over    bool // Acquired was called
}

// newRecord returns the record of a Lock of m with ctx. Most Locks have no such hooks, and so no record.
func newRecord(ctx context.Context, m *Mutex) *record {
	hooks := &m.settings.hooks
	if m.err != nil || ctx == nil || hooks.Contended == nil && hooks.Acquired == nil && hooks.Failed == nil {
		return nil
	}
	return &record{mutex: m, ctx: ctx, owner: m.owner(), started: m.session.now()}
}

// event describes the Lock.
func (r *record) event(err error) Event {
	e := r.mutex.kind.event(r.mutex.target, r.mutex.session.now().Since(r.started), err)
	e.Context = r.ctx
	return e
}

// contended calls Contended, because the lock is taken. Later calls do nothing.
func (r *record) contended() {
	if r == nil || r.waited {
		return
	}
	r.waited = true
	r.mutex.session.report("Contended", r.mutex.settings.hooks.Contended, r.owner, r.event(nil))
}

// acquired completes e, the event for Acquired, for a hold that began at the time at.
func (r *record) acquired(e *Event, at clock.Instant) {
	if r == nil {
		return
	}
	r.over = true
	e.Outcome, e.Elapsed, e.Context, e.Waited = OutcomeAcquired, at.Since(r.started), r.ctx, r.waited
}

// again records that the Lock starts over. If Contended was called, the wait goes on, unless Acquired has ended it.
func (r *record) again() {
	if r != nil && r.over {
		r.waited, r.over = false, false
	}
}

// ended calls Failed if the Lock has failed. If Acquired was called, the hold reports its own end. There is one special
// case: a Lock has waited and starts over, because another goroutine of its fixed owner has acquired the lock. Then ended
// calls Failed though the Lock succeeds, because Contended was called.
func (r *record) ended(locked bool, err error) {
	if r == nil || r.over || locked && !r.waited {
		return
	}
	e := r.event(err)
	e.Outcome, e.Waited = outcomeWith(r.ctx, err), r.waited
	r.mutex.session.report("Failed", r.mutex.settings.hooks.Failed, r.owner, e)
}

// outcomeWith returns the outcome of a Lock with ctx that failed with err.
func outcomeWith(ctx context.Context, err error) Outcome {
	switch {
	case err == nil:
		return OutcomeBusy
	case errors.Is(err, ErrDeadlock):
		return OutcomeDeadlock
	case !byContext(err):
		return OutcomeError
	case errors.Is(ctx.Err(), context.Canceled):
		return OutcomeCancelled
	default:
		return OutcomeTimedOut
	}
}
