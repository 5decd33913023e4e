// Package lockerr has the errors that more than one package of the library makes or matches.
// The package relock re-exports the sentinels, and documents when each is returned.
//
// An error of the library matches context.Canceled or context.DeadlineExceeded only if the
// caller's own context has ended: a caller that asks for those first would take anything else
// for that, even a loss. Two functions see to it. [Ended] describes the end of a context, and
// knows which contexts are the library's own; [Fault] hides what Redis, the network and go-redis
// say of time-outs of theirs.
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
	ErrLost          = errors.New("relock: lock lost")
	ErrReleased      = errors.New("relock: lock released")
	ErrTimeout       = errors.New("relock: wait timed out")
	ErrClosed        = errors.New("relock: client closed")
	ErrReentrant     = errors.New("relock: already held by this owner")
	ErrUpgrade       = errors.New("relock: cannot lock to write: this owner holds the read side; call RUnlock first")
	ErrNotReplicated = errors.New("relock: not replicated")
	ErrInvalidName   = errors.New("relock: invalid name")
	ErrInvalidOption = errors.New("relock: invalid option")
	ErrUnsupported   = errors.New("relock: not supported")
)

// Ended describes the end of ctx: its cause, and its plain error where that differs, so that
// a caller may match either. A context of the library's own is told by its cause alone: the
// caller's is still alive.
func Ended(ctx context.Context) error {
	cause, err := context.Cause(ctx), ctx.Err()
	switch _, own := cause.(OwnEnd); { //nolint:errorlint // one that is wrapped is that of another Lock
	case own:
		return cause
	case errors.Is(cause, err):
		return fmt.Errorf("%w", cause) // it may be another lock's, whose name is to stay in it
	default:
		return fmt.Errorf("%w: %w", err, cause)
	}
}

// OwnEnd is the cause of the end of a context that the library has made.
type OwnEnd interface {
	error
	OwnEnd()
}

// reason is an OwnEnd that says no more than an error.
type reason struct{ error }

func (r reason) Unwrap() error { return r.error }

func (reason) OwnEnd() {}

// Reason returns err as the cause of the end of a context that the library has made.
func Reason(err error) error { return reason{err} }

// fault is an error of Redis, the network or go-redis that reads like the end of a context, as
// the time-out of a dial does. Nothing is lost of it but that.
type fault struct{ error }

// Fault returns err as an error that is not taken for the end of a caller's context.
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

// IsContextError reports whether err is, or reads like, the end of a context.
func IsContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// ErrNoAnswer is what one copy of a command failed with when its time was up.
var ErrNoAnswer = errors.New("no answer from Redis")

// NoAnswerWithin is [ErrNoAnswer] after so long. Its words are made when it is read: every command
// names the silence that would end it, and few meet one.
type NoAnswerWithin time.Duration

func (n NoAnswerWithin) Error() string {
	return fmt.Sprintf("%v within %v", ErrNoAnswer, time.Duration(n))
}

func (n NoAnswerWithin) Unwrap() error { return ErrNoAnswer }

// OwnEnd makes n an [OwnEnd].
func (NoAnswerWithin) OwnEnd() {}

// ErrNotOnRedis says that Redis does not have a hold that was had here.
var ErrNotOnRedis = errors.New("the key was deleted or is held by another owner")
