package relock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
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

// The causes that this package has of its own.
func TestTheEndOfAWaitAndThatOfAHoldAreToldByTheirCauses(t *testing.T) {
	parent, past := t.Context(), time.Now().Add(-time.Second)
	timedOut, cancel := context.WithDeadlineCause(parent, past, waitOver(time.Second))
	cancel()
	err := lockerr.Ended(timedOut)
	require.EqualError(t, err, "relock: wait timed out after 1s")
	require.ErrorIs(t, err, ErrTimeout)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, context.Canceled)

	lost, end := context.WithCancelCause(parent)
	end(wrap("hold", "x", ErrLost))
	err = lockerr.Ended(lost)
	require.EqualError(t, err, `context canceled: relock: hold "x": lock lost`)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, ErrLost)
	require.NotErrorIs(t, err, ErrTimeout)
}
