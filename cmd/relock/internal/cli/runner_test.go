package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/cmd/relock/internal/child"
	"github.com/relock-go/relock/cmd/relock/internal/look"
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

// The library extends the short lease of a grant in line a moment later.
func TestRunner_CommandNeedNotWaitForALongerLease(t *testing.T) {
	a := &app{console: &console{out: io.Discard, err: io.Discard}}
	for _, slots := range []int{0, 2} {
		released, deadline := false, time.Now().Add(5*time.Second)
		r := newRunner(a, &runFlags{ttl: 30 * time.Second, killAfter: 10 * time.Second, slots: slots}, nil, "a", nil)
		r.lock = locked(&released, func() time.Time { return deadline })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		require.NoError(t, r.get(ctx))
		require.False(t, released)
	}
}

// The client takes another id while it waits, because an answer was late.
func TestRunner_PlaceInLineIsShownWhateverTheClientIsCalledNow(t *testing.T) {
	a := &app{console: &console{out: io.Discard, err: io.Discard}}
	r := newRunner(a, &runFlags{}, nil, "a", nil)
	r.ids = map[string]bool{"before": true, "now": true}
	l := &look.Lock{Holders: []look.Holder{{Owner: "x:1"}}, Waiters: []look.Waiter{{Owner: "y:1"}, {Owner: "before:1"}}, Waiting: 2}
	require.Equal(t, "held by x:1, place 2 of 2 in line", r.situation(l, 0))
}

func TestRunner_WaitForASlotShowsHowManyAreInUse(t *testing.T) {
	a := &app{console: &console{out: io.Discard, err: io.Discard}}
	r := newRunner(a, &runFlags{slots: 4}, nil, "a", nil)
	l := &look.Lock{Kind: look.Semaphore, InUse: 6, Holders: []look.Holder{{Owner: "x:1:6", Weight: 6}}}
	require.Equal(t, "6 slots in use (--slots 4)", r.situation(l, time.Minute))
}
