package election

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lockerr"
)

// Option is an option of [Run].
type Option func(*settings)

type settings struct {
	setback func(error)
	yields  bool
	least   time.Duration // before it yields
}

// ErrYielded is the cause of the end of lead's context, if the leader gives way: see [WithYield].
var ErrYielded = errors.New("election: another candidate waits, and the leader gives way")

// WithYield makes a leader give way to other candidates: when it has led for the time least, and another
// candidate has waited during its term (relock.Mutex.Wanted), the context of lead ends with the cause
// [ErrYielded]. When lead has returned, Run resigns and campaigns again, behind the candidates that wait,
// whatever lead returned. An error of Unlock goes to [OnSetback], and so does an error of lead, unless it
// is the error of its context. So the candidates take turns, and candidates of a new deployment do not
// wait for the old leader to end. On a quorum a leader gives way only to candidates of its own Client.
// least must not be negative. Default: a leader does not give way.
func WithYield(least time.Duration) Option {
	return func(s *settings) { s.yields, s.least = true, least }
}

// OnSetback sets a function that [Run] calls with each error that does not end it. There are three
// kinds: a campaign failed, for example because Redis cannot be reached; the lock was lost, which is
// reported together with the error of lead; and with [WithYield], lead or Unlock failed when the leader
// gave way. Run calls f on its own goroutine, and waits for it.
// Default: these errors are dropped, except the last one if ctx ends during the pause after it.
func OnSetback(f func(error)) Option {
	return func(s *settings) { s.setback = f }
}

// Run campaigns for m until it leads, calls lead, and resigns when lead returns.
//
// lead runs on the goroutine that called Run. It receives the context of the hold, which ends when the
// lock is lost, and the fencing token of the hold, which is 0 unless m is relock.WithFencing. lead must
// return soon after its context has ended, because another process may lead by then.
//
// Run blocks until one of these events:
//
//   - lead returns while this process leads. Run returns the error of lead, or nil, joined with the
//     error of Unlock.
//   - ctx ends. While this process leads, that also ends the context of lead, and Run returns when
//     lead does. Otherwise Run returns the error of ctx with its cause, and if it paused after a
//     setback, that setback, too.
//   - The Client or its Redis client was closed, or m is invalid, so that another attempt would not
//     help. Run returns the reason.
//   - lead panics. Run resigns, and the panic continues.
//
// Everything else is a setback, and Run campaigns again: a loss of the lock, whatever lead returned; a
// Lock that timed out (relock.WithWaitTimeout); and every error from Redis. Before that it pauses: for
// 8 to 16 ms at first, and twice as long each time, up to 256 to 512 ms, until it leads again.
//
// With [WithYield] the end of a term is no setback: Run campaigns again at once, unless Unlock failed.
//
// When Run returns, this process does not lead: the lock was released, or, if Redis could not be
// reached, it ends with its TTL.
//
// Errors: those of lead and of ctx; relock.ErrInvalidOption for a nil argument; relock.ErrReentrant if
// the caller already holds m, because Run could not resign; relock.ErrLost if the caller has lost m and
// not unlocked it; relock.ErrClosed; the errors of [relock.Mutex.Lock] for an invalid handle; and
// errors from Redis in Unlock, unless the leader gave way.
//
// Any number of goroutines may call Run, also with one m: each is a candidate. With relock.WithOwner,
// all uses of one id are one candidate, so use it in one Run at a time. The round trips are those of
// Lock and Unlock. While another process leads, a waiting process sends one request every
// 1.7 s, and one after a wake-up.
func Run(ctx context.Context, m *relock.Mutex, lead func(ctx context.Context, token int64) error, opts ...Option) error {
	s := settings{setback: func(error) {}}
	for _, opt := range opts {
		if opt == nil {
			return fmt.Errorf("election: %w: an Option is nil", relock.ErrInvalidOption)
		}
		opt(&s)
	}
	if ctx == nil || m == nil || lead == nil || s.setback == nil {
		return fmt.Errorf("election: %w: the context, the Mutex or the function is nil", relock.ErrInvalidOption)
	}
	if s.least < 0 {
		return fmt.Errorf("election: %w: WithYield(%v): must not be negative", relock.ErrInvalidOption, s.least)
	}
	if err := usable(m); err != nil {
		return fmt.Errorf("election: %w", err)
	}
	for tries := 1; ; tries++ {
		t := s.serve(ctx, m, lead)
		err := lockerr.Join(t.err, t.unlocked)
		if t.yielded && t.unlocked == nil {
			if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, ErrYielded) {
				s.setback(err)
			}
			if ctx.Err() != nil {
				return fmt.Errorf("election: %w", lockerr.Ended(ctx))
			}
			tries = 0
			continue
		}
		switch {
		case t.led && !t.yielded && !errors.Is(t.unlocked, relock.ErrLost), !t.led && hopeless(err), t.led && hopeless(t.unlocked):
			return err
		case t.led:
			tries = 1
		}
		if ctx.Err() == nil {
			s.setback(err)
			clock.Pause(ctx, clock.Backoff(tries))
		}
		switch {
		case ctx.Err() == nil:
		case !t.led && errors.Is(err, ctx.Err()):
			return err
		default:
			return fmt.Errorf("election: %w; last setback: %w", lockerr.Ended(ctx), err)
		}
	}
}

// usable returns why m cannot be campaigned for.
func usable(m *relock.Mutex) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	switch cause := context.Cause(m.Context(ctx)); {
	case cause == nil:
		return fmt.Errorf("%w: %q: unlock it before Run, or Run could not resign", relock.ErrReentrant, m.Name())
	case errors.Is(cause, relock.ErrNotHeld):
		return nil
	default: // a bad handle, or a hold that was lost
		return cause
	}
}

// term is one try to lead, and what came of it.
type term struct {
	led      bool
	yielded  bool  // it ended because another candidate waits
	err      error // of lead, or of Lock
	unlocked error // of Unlock
}

// serve locks, leads, and unlocks, also when lead panics.
func (s *settings) serve(ctx context.Context, m *relock.Mutex, lead func(ctx context.Context, token int64) error) (t term) {
	if t.err = m.Lock(ctx); t.err != nil {
		return t
	}
	t.led = true
	defer func() { t.unlocked = m.Unlock() }()
	term, end := s.inTerm(ctx, m)
	defer end()
	if term.Err() != nil {
		t.err = lockerr.Ended(term)
		return t
	}
	t.err = lead(term, m.FencingToken())
	t.yielded = errors.Is(context.Cause(term), ErrYielded)
	return t
}

// inTerm returns the context of a term. It ends with the hold, or earlier if the leader gives way. It is derived in this order
// because the Err of the context of a hold looks at the lease, and the Err of a context derived from that does not. end frees what
// giving way needs.
func (s *settings) inTerm(ctx context.Context, m *relock.Mutex) (term context.Context, end func()) {
	if !s.yields {
		return m.Context(ctx), func() {}
	}
	giving, cancel := context.WithCancelCause(ctx)
	term = m.Context(giving)
	wanted := m.Wanted(term)
	over := make(chan struct{})
	go func() {
		defer close(over)
		clock.Pause(term, s.least)
		select {
		case <-wanted:
			cancel(ErrYielded)
		case <-term.Done():
		}
	}()
	return term, func() {
		cancel(nil)
		<-over
	}
}

// hopeless reports whether another Lock would return the same error.
func hopeless(err error) bool {
	return slices.ContainsFunc([]error{
		relock.ErrClosed, redis.ErrClosed, relock.ErrInvalidName, relock.ErrInvalidOption, relock.ErrUnsupported, relock.ErrReentrant,
	}, func(target error) bool { return errors.Is(err, target) })
}
