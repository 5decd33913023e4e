// Package lockerr has the errors that several packages of the library return or match.
// The package relock re-exports the sentinels, and documents when each is returned.
//
// An error of the library matches context.Canceled or context.DeadlineExceeded only if the
// caller's own context has ended. Otherwise a caller that checks for those first would mistake another error, even a
// loss, for the end of its context. [Ended] describes the end of a context, and recognizes the library's own
// contexts. [Fault] hides the time-outs of Redis, the network and go-redis.
package lockerr

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The sentinels.
var (
	ErrNotHeld       = errors.New("relock: not held")
	ErrLost          = errors.New("relock: lost")
	ErrReleased      = errors.New("relock: released")
	ErrTimeout       = errors.New("relock: wait timed out")
	ErrClosed        = errors.New("relock: client closed")
	ErrReentrant     = errors.New("relock: already held by this owner")
	ErrUpgrade       = errors.New("relock: cannot lock to write: this owner holds the read side; call RUnlock first")
	ErrDeadlock      = errors.New("relock: deadlock")
	ErrNotReplicated = errors.New("relock: not replicated")
	ErrInvalidName   = errors.New("relock: invalid name")
	ErrInvalidOption = errors.New("relock: invalid option")
	ErrUnsupported   = errors.New("relock: not supported")
)

// Ended describes the end of ctx: its cause, and its plain error where that differs, so that
// a caller may match either. For a context of the library's own it returns only the cause, because the
// caller's context is still alive.
func Ended(ctx context.Context) error {
	cause, err := context.Cause(ctx), ctx.Err()
	switch _, own := cause.(ownEnd); { //nolint:errorlint // a wrapped one belongs to another Lock
	case own:
		return cause
	case errors.Is(cause, err):
		return fmt.Errorf("%w", cause) // it may be of another lock, whose name stays in the text
	default:
		return fmt.Errorf("%w: %w", err, cause)
	}
}

// ownEnd is the cause of the end of a context that the library made.
type ownEnd interface {
	error
	ownEnd()
}

// reason is an ownEnd with the text of an error.
type reason struct{ error }

func (r reason) Unwrap() error { return r.error }

func (reason) ownEnd() {}

// Reason returns err as the cause of the end of a context that the library made.
func Reason(err error) error { return reason{err} }

// fault is an error of Redis, the network or go-redis that matches a context error, such as the time-out of a dial. It
// matches everything else that the error matches.
type fault struct{ error }

// Fault returns err as an error that does not match the end of a caller's context.
func Fault(err error) error {
	if IsContextError(err) {
		return &fault{err}
	}
	return err
}

func (f *fault) Is(target error) bool {
	return target != context.Canceled && target != context.DeadlineExceeded && errors.Is(f.error, target)
}

func (f *fault) As(target any) bool { return errors.As(f.error, target) }

// IsContextError reports whether err matches the end of a context.
func IsContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// ErrNoAnswer is the failure of a copy of a command that was not answered in time.
var ErrNoAnswer = errors.New("no answer from Redis")

// NoAnswerWithin is [ErrNoAnswer] with the duration. Its text is made only on demand: every command has such a cause
// prepared, and few need it.
type NoAnswerWithin time.Duration

func (n NoAnswerWithin) Error() string {
	return fmt.Sprintf("%v within %v", ErrNoAnswer, time.Duration(n).Round(time.Millisecond))
}

func (n NoAnswerWithin) Unwrap() error { return ErrNoAnswer }

func (NoAnswerWithin) ownEnd() {}

// ErrNotOnRedis reports that Redis does not have a hold that exists here.
var ErrNotOnRedis = errors.New("no longer on Redis (deleted, or another owner has it)")
