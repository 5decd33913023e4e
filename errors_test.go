package relock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/stretchr/testify/require"
)

func TestAnErrorSaysWhatWasAskedOfWhichLock(t *testing.T) {
	for _, c := range []struct {
		op, name string
		err      error
		text     string
	}{
		{"lock", "orders:42", ErrTimeout, `relock: lock "orders:42": wait timed out`},
		{"unlock", "a,b", fmt.Errorf("%w by goroutine 7", ErrNotHeld), `relock: unlock "a,b": not held by goroutine 7`},
		{"lock", "x", io.EOF, `relock: lock "x": EOF`},
		{"lock", "new\nline \"quoted\"", ErrClosed, `relock: lock "new\nline \"quoted\"": client closed`},
		{"try lock", "", fmt.Errorf("%w: empty", ErrInvalidName), `relock: try lock "": invalid name: empty`},
	} {
		err := wrap(c.op, c.name, c.err)
		require.EqualError(t, err, c.text)
		require.ErrorIs(t, err, c.err)
	}
}

func TestNoErrorIsNotWrapped(t *testing.T) {
	require.NoError(t, wrap("lock", "x", nil))
}

func TestAnErrorIsWrappedOnlyOnce(t *testing.T) {
	inner := wrap("unlock", "x", ErrLost)
	outer := wrap("lock", "x", inner)
	require.EqualError(t, outer, `relock: lock "x": lock lost`)
	require.ErrorIs(t, outer, ErrLost)
}

func TestSentinelsAreAllDifferent(t *testing.T) {
	sentinels := []error{ErrNotHeld, ErrLost, ErrReleased, ErrTimeout, ErrClosed, ErrReentrant, ErrInvalidName, ErrInvalidOption, ErrUnsupported}
	texts := map[string]bool{}
	for i, a := range sentinels {
		require.Regexp(t, `^relock: [a-z]`, a.Error())
		require.False(t, texts[a.Error()])
		texts[a.Error()] = true
		for j, b := range sentinels {
			require.Equal(t, i == j, errors.Is(wrap("lock", "x", a), b), "%v is %v", a, b)
		}
	}
}

func TestJoiningKeepsASingleErrorAsItIs(t *testing.T) {
	require.NoError(t, join())
	require.NoError(t, join(nil, nil))
	require.Same(t, ErrLost, join(nil, ErrLost, nil))
	both := join(ErrLost, io.EOF)
	require.ErrorIs(t, both, ErrLost)
	require.ErrorIs(t, both, io.EOF)
}

func TestTheEndOfAContextIsToldByItsCause(t *testing.T) {
	parent := t.Context()
	past := time.Now().Add(-time.Second)
	custom := errors.New("shutting down")
	timedOut := waitOver(time.Second)
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
			func() (context.Context, context.CancelFunc) { return cancelledBy(parent, wrap("hold", "x", ErrLost)) },
			[]error{context.Canceled, ErrLost},
			[]error{ErrTimeout},
			`context canceled: relock: hold "x": lock lost`,
		},
		"the bound on the wait": {
			func() (context.Context, context.CancelFunc) {
				return context.WithDeadlineCause(parent, past, timedOut)
			},
			[]error{ErrTimeout},
			[]error{context.DeadlineExceeded, context.Canceled},
			"relock: wait timed out after 1s",
		},
		"the library's bound on a request": {
			func() (context.Context, context.CancelFunc) {
				return context.WithDeadlineCause(parent, past, lockerr.NoAnswerWithin(time.Second))
			},
			[]error{lockerr.NoAnswer},
			[]error{context.DeadlineExceeded, context.Canceled},
			"no answer from Redis within 1s",
		},
		"the library's background": {
			func() (context.Context, context.CancelFunc) { return cancelledBy(parent, lockerr.Reason(ErrClosed)) },
			[]error{ErrClosed},
			[]error{context.DeadlineExceeded, context.Canceled},
			"relock: client closed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := c.end()
			cancel()
			err := lockerr.Ended(ctx)
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

func TestAFaultIsAllThatItWasButTheEndOfAContext(t *testing.T) {
	require.Same(t, io.EOF, lockerr.Fault(io.EOF), "it is not taken for one")
	require.NoError(t, lockerr.Fault(nil))
	timedOut := dialTimedOut(t)
	err := lockerr.Fault(fmt.Errorf("%w: %w", io.EOF, timedOut))
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, io.EOF)
	require.ErrorContains(t, err, "i/o timeout")
	var network *net.OpError
	require.ErrorAs(t, err, &network)
	require.True(t, network.Timeout())
	require.NotErrorIs(t, lockerr.Fault(fmt.Errorf("dial: %w", context.Canceled)), context.Canceled)
}

func TestTheEndOfTheCallersContextIsNotMixedUpWithWhatRedisSaidBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := redisexec.Outcome{Err: dialTimedOut(t)}.Abandoned(ctx).Err
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "i/o timeout")
}
