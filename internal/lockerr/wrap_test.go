package lockerr

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWrap_NilStaysNil(t *testing.T) {
	require.NoError(t, Wrap("lock", "x", nil))
}

func TestWrap_WrapsOnce(t *testing.T) {
	inner := Wrap("unlock", "x", ErrLost)
	outer := Wrap("lock", "x", inner)
	require.EqualError(t, outer, `relock: lock "x": lost`)
	require.ErrorIs(t, outer, ErrLost)
}

func TestJoin_KeepsASingleErrorAsItIs(t *testing.T) {
	require.NoError(t, Join())
	require.NoError(t, Join(nil, nil))
	require.Same(t, ErrLost, Join(nil, ErrLost, nil))
	both := Join(ErrLost, io.EOF)
	require.ErrorIs(t, both, ErrLost)
	require.ErrorIs(t, both, io.EOF)
}

// The causes that this package has of its own.
func TestWrap_EndsOfWaitAndHoldAreReportedByTheirCauses(t *testing.T) {
	parent, past := t.Context(), time.Now().Add(-time.Second)
	timedOut, cancel := context.WithDeadlineCause(parent, past, WaitOver(time.Second))
	cancel()
	err := Ended(timedOut)
	require.EqualError(t, err, "relock: wait timed out after 1s")
	require.ErrorIs(t, err, ErrTimeout)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, context.Canceled)

	lost, end := context.WithCancelCause(parent)
	end(Wrap("hold", "x", ErrLost))
	err = Ended(lost)
	require.EqualError(t, err, `context canceled: relock: hold "x": lost`)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, ErrLost)
	require.NotErrorIs(t, err, ErrTimeout)
}
