package lockerr

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The form of the errors that users get: the call, the name of the lock, and the reason.

// opError is an error of one call.
type opError struct {
	op   string // "lock", "unlock", …
	name string // of the lock, as the user wrote it
	err  error
}

func (e *opError) Error() string {
	return fmt.Sprintf("relock: %s %q: %s", e.op, e.name, strings.TrimPrefix(e.err.Error(), "relock: "))
}

func (e *opError) Unwrap() error { return e.err }

// Wrap adds the call and the name of the lock to err. nil stays nil.
func Wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if inner, ok := err.(*opError); ok { //nolint:errorlint // only the outermost is of the same lock
		err = inner.err
	}
	return &opError{op: op, name: name, err: err}
}

// Join is errors.Join that leaves a single error as it is.
func Join(errs ...error) error {
	err := errors.Join(errs...)
	if many, ok := err.(interface{ Unwrap() []error }); ok && len(many.Unwrap()) == 1 {
		return many.Unwrap()[0]
	}
	return err
}

// WaitOver is the cause of the end of a wait that reached its time-out.
type WaitOver time.Duration

func (WaitOver) ownEnd() {}

func (w WaitOver) Error() string { return fmt.Sprintf("%v after %v", ErrTimeout, time.Duration(w)) }

func (w WaitOver) Unwrap() error { return ErrTimeout }
