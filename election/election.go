package election

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lockerr"
)

// Option is an option of [Run].
type Option func(*settings)

type settings struct {
	setback func(error)
}

// OnSetback sets a function that Run calls with each error that does not end it: the error of a
// campaign that failed, as when Redis cannot be reached, and of a term that ended with the loss of
// the lock, joined with the error of lead. f is called on the goroutine of Run, and delays it.
// Default: these errors are dropped, except the last one when ctx ends.
func OnSetback(f func(error)) Option {
	return func(s *settings) { s.setback = f }
}

// Run campaigns for m until it leads, calls lead, and resigns when lead returns. lead gets the
// context of the hold, which ends when the lock is lost, and its fencing token, 0 unless m is
// WithFencing. It runs on the goroutine that called Run, and must return soon after its context has
// ended: another process may lead by then.
//
// It blocks until one of these ends it:
//
//   - lead returns while it leads. Run returns the error of lead, or nil, joined with the error of
//     Unlock.
//   - ctx ends. While it leads, that ends the context of lead, and Run returns when lead does.
//     Else Run returns the error of ctx with its cause, and the last setback.
//   - To try again would not help: the Client or its Redis client was closed, or m cannot be
//     locked at all. Run returns why.
//   - lead panics. Run resigns, and the panic goes on.
//
// Everything else is a setback, after which it campaigns again: the loss of the lock, whatever lead
// returned, a Lock that timed out WithWaitTimeout, and every error of Redis. There is a pause
// before that: 8 to 16 ms at first, doubling up to 256 to 512 ms as long as it does not lead.
//
// When Run has returned it does not lead: the lock was given back, or ends with its TTL if Redis
// could not be told.
//
// Errors: those of lead and of ctx; relock.ErrInvalidOption for a nil argument; relock.ErrReentrant
// if the caller holds m, which Run could not give back, and relock.ErrLost if it has lost m and not
// unlocked it; relock.ErrClosed; what [relock.Mutex.Lock] returns for a bad handle; Redis' own from
// Unlock.
//
// Any number of goroutines may call it, also with one m: each is a candidate. Only an owner fixed
// WithOwner is one candidate: give it to one Run at a time. The round trips are those of Lock and
// Unlock: none while another process leads, but for wake-ups and safety polls.
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
	if err := usable(m); err != nil {
		return fmt.Errorf("election: %w", err)
	}
	for tries := 1; ; tries++ {
		t := serve(ctx, m, lead)
		err := t.error()
		switch {
		case t.led && !errors.Is(t.unlocked, relock.ErrLost), !t.led && hopeless(err):
			return err
		case t.led:
			tries = 1
		}
		if ctx.Err() == nil {
			s.setback(err)
			clock.Pause(ctx, clock.Backoff(tries))
		}
		if ctx.Err() != nil {
			return ended(ctx, err)
		}
	}
}

// usable says why m is not one that can be campaigned for.
func usable(m *relock.Mutex) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	switch cause := context.Cause(m.Context(ctx)); {
	case cause == nil:
		return fmt.Errorf("%w: %q: unlock it before Run, which could not resign otherwise", relock.ErrReentrant, m.Name())
	case errors.Is(cause, relock.ErrNotHeld):
		return nil
	default: // a bad handle, or a hold that was lost
		return cause
	}
}

// term is one try to lead, and what came of it.
type term struct {
	led      bool
	err      error // of lead, or of Lock
	unlocked error // of Unlock
}

// serve locks, leads, and unlocks, also when lead panics.
func serve(ctx context.Context, m *relock.Mutex, lead func(ctx context.Context, token int64) error) (t term) {
	if t.err = m.Lock(ctx); t.err != nil {
		return t
	}
	t.led = true
	defer func() { t.unlocked = m.Unlock() }()
	held := m.Context(ctx)
	if held.Err() != nil {
		t.err = lockerr.Ended(held)
		return t
	}
	t.err = lead(held, m.FencingToken())
	return t
}

// error returns all that went wrong.
func (t term) error() error {
	switch {
	case t.unlocked == nil:
		return t.err
	case t.err == nil:
		return t.unlocked
	default:
		return errors.Join(t.err, t.unlocked)
	}
}

// hopeless reports whether Lock will say the same again.
func hopeless(err error) bool {
	return slices.ContainsFunc([]error{
		relock.ErrClosed, redis.ErrClosed, relock.ErrInvalidName, relock.ErrInvalidOption, relock.ErrUnsupported, relock.ErrReentrant,
	}, func(target error) bool { return errors.Is(err, target) })
}

// ended is the error of a Run that ctx has ended after a setback.
func ended(ctx context.Context, setback error) error {
	if errors.Is(setback, ctx.Err()) {
		return setback
	}
	return fmt.Errorf("election: %w; before that: %w", lockerr.Ended(ctx), setback)
}
