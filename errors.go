package relock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// The sentinel errors. What a method returns is wrapped with the name of the lock
// and the circumstances: match with [errors.Is]. It matches context.Canceled or
// context.DeadlineExceeded only if the caller's own context has ended.
var (
	// ErrNotHeld is returned by Unlock and RUnlock when the owner holds nothing, or holds it
	// only by handles with other names, and is the cause of the context of an owner that holds
	// nothing.
	ErrNotHeld = errors.New("relock: not held")

	// ErrLost says that a hold ended without the holder's doing: its lease ran out because Redis
	// did not answer or the process was paused, its key was deleted, evicted or forgotten by a
	// failover, or it was forced open. It is the cause of the hold's context, the answer to each
	// Unlock of the hold's levels, and the answer to a Lock inside the lost hold: unwind first,
	// then lock again.
	ErrLost = errors.New("relock: lock lost")

	// ErrReleased is the cause of a hold's context after its last Unlock.
	ErrReleased = errors.New("relock: lock released")

	// ErrTimeout is returned by Lock and RLock, and by Do and RDo, when WithWaitTimeout passed
	// first.
	ErrTimeout = errors.New("relock: wait timed out")

	// ErrClosed is returned by whatever needs a client that is open, after Close, and is the
	// cause of the contexts of the holds that Close ended.
	ErrClosed = errors.New("relock: client closed")

	// ErrReentrant is returned by Lock and TryLock, and by RLock and TryRLock, of a handle
	// made WithoutReentrancy when the owner holds the lock, or that side of it, already.
	ErrReentrant = errors.New("relock: already held by this owner")

	// ErrUpgrade is returned by Lock and TryLock of an RWMutex when the owner holds the read
	// side: it would wait for itself. RUnlock first, and look again at what was read.
	ErrUpgrade = errors.New("relock: cannot write: this owner holds the read side, which has to be unlocked first")

	// ErrNotReplicated is returned by Lock and TryLock, and by RLock and TryRLock, WithReplicas
	// when too few replicas confirmed the lock in time: it was given back. It is also the error
	// of a renewal that too few confirmed, in Hooks.RenewFailed.
	ErrNotReplicated = errors.New("relock: not replicated")

	// ErrInvalidName is returned for a name that cannot be this lock: empty, with braces that
	// would put its helper keys into other Cluster slots, or in use for something else, which
	// may be a lock of another kind; for names of a MultiMutex without a common {tag} on a
	// Cluster; and for one that is a {tag} and nothing else, as a FairMutex or RWMutex: its
	// helper keys would be those of the name without the braces.
	ErrInvalidName = errors.New("relock: invalid name")

	// ErrInvalidOption is returned for an option or argument out of its range, for options that
	// contradict each other, and for a nil argument.
	ErrInvalidOption = errors.New("relock: invalid option")

	// ErrUnsupported is returned for what cannot be done with this Redis client, or on a quorum.
	ErrUnsupported = errors.New("relock: not supported")
)

// opError is the one shape of the errors of this package: what was asked, of which
// lock, and why it did not go.
type opError struct {
	op   string // "lock", "unlock", …
	name string // of the lock, as the user wrote it
	err  error
}

func (e *opError) Error() string {
	return fmt.Sprintf("relock: %s %q: %s", e.op, e.name, strings.TrimPrefix(e.err.Error(), "relock: "))
}

func (e *opError) Unwrap() error { return e.err }

// wrap says of which lock, and in doing what, err was met. nil stays nil.
func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if inner, ok := err.(*opError); ok { //nolint:errorlint // only the outermost is said of the same lock
		err = inner.err
	}
	return &opError{op: op, name: name, err: err}
}

// An error of this package matches context.Canceled or context.DeadlineExceeded only if the
// caller's own context has ended: a caller that asks for those first would take anything else
// for that, even a loss. Two functions see to it. ended describes the end of a context, and
// knows which are the library's own; faultOf hides what Redis, the network and go-redis say
// of time-outs of theirs.

// ended describes the end of ctx: its cause, and its plain error where that differs,
// so that a caller may match either. A context of the library's own is told by its cause
// alone: the caller's is still alive.
func ended(ctx context.Context) error {
	cause, err := context.Cause(ctx), ctx.Err()
	switch _, own := cause.(ownEnd); { //nolint:errorlint // one that is wrapped is that of another Lock
	case own:
		return cause
	case errors.Is(cause, err):
		return fmt.Errorf("%w", cause) // it may be another lock's: wrap is not to take its name away
	default:
		return fmt.Errorf("%w: %w", err, cause)
	}
}

// ownEnd is the cause of the end of a context that the library has made.
type ownEnd interface {
	error
	ownEnd()
}

// reason is an ownEnd that says no more than an error.
type reason struct{ error }

func (r reason) Unwrap() error { return r.error }

func (reason) ownEnd() {}

// waitOver is the cause of the end of a wait by WithWaitTimeout.
type waitOver time.Duration

func (waitOver) ownEnd() {}

func (w waitOver) Error() string { return fmt.Sprintf("%v after %v", ErrTimeout, time.Duration(w)) }

func (w waitOver) Unwrap() error { return ErrTimeout }

// fault is an error of Redis, the network or go-redis that reads like the end of a context, as
// the time-out of a dial does. Nothing is lost of it but that.
type fault struct{ error }

// faultOf returns err as an error that is not taken for the end of a caller's context.
func faultOf(err error) error {
	if isContextError(err) {
		return &fault{err}
	}
	return err
}

func (f *fault) Is(target error) bool {
	return target != context.Canceled && target != context.DeadlineExceeded && errors.Is(f.error, target)
}

func (f *fault) As(target any) bool { return errors.As(f.error, target) }

// isContextError reports whether err is, or reads like, the end of a context.
func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
