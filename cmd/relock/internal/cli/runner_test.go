package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/cmd/relock/internal/child"
)

// locked is a lock that is got at once, and says whether it was released.
func locked(released *bool, deadline func() time.Time) lock {
	return lock{
		lock:     func(context.Context) error { return nil },
		unlock:   func() error { *released = true; return nil },
		context:  func(ctx context.Context) context.Context { return ctx },
		deadline: func() (time.Time, bool) { return deadline(), true },
	}
}

func TestRunner_StopDuringTheGrantPreventsTheStart(t *testing.T) {
	a := &app{console: &console{out: io.Discard, err: io.Discard}}
	for _, seen := range []func(*runner) error{(*runner).acquire, (*runner).lastLook} { // while it waits, and after the grant
		released := false
		r := newRunner(a, &runFlags{ttl: time.Minute}, nil, "a", nil)
		r.signals = &child.Signals{C: make(chan os.Signal, 1)}
		r.signals.C <- os.Interrupt
		r.lock = locked(&released, func() time.Time { return time.Now().Add(time.Minute) })
		var stop *exit
		require.True(t, errors.As(seen(r), &stop), "it would start the command")
		require.Equal(t, 130, stop.code)
		require.True(t, released)
	}
}

func TestRunner_CommandIsNotStartedOnATooShortLease(t *testing.T) {
	a := &app{console: &console{out: io.Discard, err: io.Discard}}
	released, deadline := false, time.Now().Add(5*time.Second)
	r := newRunner(a, &runFlags{ttl: 30 * time.Second, killAfter: 10 * time.Second}, nil, "a", nil)
	r.lock = locked(&released, func() time.Time { return deadline })
	r.again = lock{try: func(context.Context) (bool, error) { return false, nil }}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, r.get(ctx), context.DeadlineExceeded)
	require.True(t, released)
	deadline = time.Now().Add(30 * time.Second)
	r.noteRenewed(relock.Event{})
	require.NoError(t, r.get(t.Context()))
}

func TestRunner_ShortLeaseIsLengthenedByReentry(t *testing.T) {
	a := &app{console: &console{out: io.Discard, err: io.Discard}}
	released, left := false, false
	deadline := time.Now().Add(5 * time.Second)
	r := newRunner(a, &runFlags{ttl: 30 * time.Second, killAfter: 10 * time.Second}, nil, "a", nil)
	r.lock = locked(&released, func() time.Time { return deadline })
	r.again = lock{
		try:    func(context.Context) (bool, error) { deadline = time.Now().Add(30 * time.Second); return true, nil },
		unlock: func() error { left = true; return nil },
	}
	require.NoError(t, r.get(t.Context()), "without any renewal")
	require.True(t, left, "the inner hold is released")
	require.False(t, released, "and the lock is not")
}
