package lockerr

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bound is the cause of the end of a context of the library's own, as one package of it has it.
type bound struct{ error }

func (bound) ownEnd() {}

func (b bound) Unwrap() error { return b.error }

func TestErrors_EndOfAContextIsReportedByItsCause(t *testing.T) {
	parent := t.Context()
	past := time.Now().Add(-time.Second)
	custom := errors.New("shutting down")
	timedOut := bound{ErrTimeout}
	for name, c := range map[string]struct {
		end  func() (context.Context, context.CancelFunc)
		is   []error
		not  []error
		text string
	}{
		"cancelled": {
			func() (context.Context, context.CancelFunc) { return context.WithCancel(parent) },
			[]error{context.Canceled},
			[]error{context.DeadlineExceeded, ErrTimeout},
			"context canceled",
		},
		"deadline": {
			func() (context.Context, context.CancelFunc) { return context.WithDeadline(parent, past) },
			[]error{context.DeadlineExceeded},
			[]error{context.Canceled, ErrTimeout},
			"context deadline exceeded",
		},
		"cancelled with a cause": {
			func() (context.Context, context.CancelFunc) { return cancelledBy(parent, custom) },
			[]error{context.Canceled, custom},
			[]error{context.DeadlineExceeded, ErrTimeout},
			"context canceled: shutting down",
		},
		"cancelled with a cause that says so": {
			func() (context.Context, context.CancelFunc) {
				return cancelledBy(parent, fmt.Errorf("shutting down: %w", context.Canceled))
			},
			[]error{context.Canceled},
			[]error{ErrTimeout},
			"shutting down: context canceled",
		},
		"deadline with a cause": {
			func() (context.Context, context.CancelFunc) {
				return context.WithDeadlineCause(parent, past, custom)
			},
			[]error{context.DeadlineExceeded, custom},
			[]error{context.Canceled},
			"context deadline exceeded: shutting down",
		},
		"the end of a hold": {
			func() (context.Context, context.CancelFunc) {
				return cancelledBy(parent, fmt.Errorf("hold: %w", ErrLost))
			},
			[]error{context.Canceled, ErrLost},
			[]error{ErrTimeout},
			"context canceled: hold: relock: lost",
		},
		"the bound on the wait": {
			func() (context.Context, context.CancelFunc) {
				return context.WithDeadlineCause(parent, past, timedOut)
			},
			[]error{ErrTimeout},
			[]error{context.DeadlineExceeded, context.Canceled},
			"relock: wait timed out",
		},
		"the library's bound on a request": {
			func() (context.Context, context.CancelFunc) {
				return context.WithDeadlineCause(parent, past, NoAnswerWithin(time.Second))
			},
			[]error{ErrNoAnswer},
			[]error{context.DeadlineExceeded, context.Canceled},
			"no answer from Redis within 1s",
		},
		"the library's background": {
			func() (context.Context, context.CancelFunc) { return cancelledBy(parent, Reason(ErrClosed)) },
			[]error{ErrClosed},
			[]error{context.DeadlineExceeded, context.Canceled},
			"relock: client closed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := c.end()
			cancel()
			err := Ended(ctx)
			require.EqualError(t, err, c.text)
			for _, target := range c.is {
				require.ErrorIs(t, err, target)
			}
			for _, target := range c.not {
				require.NotErrorIs(t, err, target)
			}
		})
	}
}

func cancelledBy(ctx context.Context, cause error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	cancel(cause)
	return ctx, func() {}
}

func TestErrors_FaultIsNeverTheEndOfAContext(t *testing.T) {
	require.Same(t, io.EOF, Fault(io.EOF), "it is not taken for one")
	require.NoError(t, Fault(nil))
	_, timedOut := (&net.Dialer{Deadline: time.Now().Add(-time.Second)}).Dial("tcp", "127.0.0.1:1")
	require.ErrorIs(t, timedOut, context.DeadlineExceeded, "it is taken for one")
	err := Fault(fmt.Errorf("%w: %w", io.EOF, timedOut))
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, io.EOF)
	require.ErrorContains(t, err, "i/o timeout")
	var network *net.OpError
	require.ErrorAs(t, err, &network)
	require.True(t, network.Timeout())
	require.NotErrorIs(t, Fault(fmt.Errorf("dial: %w", context.Canceled)), context.Canceled)
}
