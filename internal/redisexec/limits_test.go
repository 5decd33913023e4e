package redisexec

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
)

func TestLimits_AreSharedByThoseWhoBeginTogetherAndEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Limits
		const d = 800 * time.Millisecond
		began := time.Now()
		first := l.After(d)
		time.Sleep(d/sharedFor - time.Millisecond)
		last := l.After(d)
		require.Same(t, first, last)
		<-last.Done()
		require.Equal(t, d, time.Since(began))
		require.ErrorIs(t, context.Cause(last), lockerr.ErrNoAnswer)
		require.ErrorContains(t, context.Cause(last), "within 800ms")

		other := l.After(d)
		require.NotSame(t, first, other)
		time.Sleep(d / sharedFor)
		require.NotSame(t, other, l.After(d), "it is not shared any more")
		require.NotSame(t, other, l.After(d/2), "of another length")
	})
}

func TestLimits_WithinAContextEndWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Limits
		endsIn := func(parent context.Context, d time.Duration) time.Duration {
			ctx, cancel := l.within(parent, d)
			defer cancel()
			began := time.Now()
			<-ctx.Done()
			return time.Since(began)
		}
		require.Equal(t, time.Second, endsIn(context.Background(), time.Second), "a fresh one")

		late, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.Equal(t, time.Second, endsIn(late, time.Second))
		soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.Equal(t, 100*time.Millisecond, endsIn(soon, time.Second))

		gaveUp, cancelCause := context.WithCancelCause(t.Context())
		cancelCause(errors.New("gave up"))
		require.Zero(t, endsIn(gaveUp, time.Second))

		// Two limits: the inner one may be a shared one only if that ends before the outer one.
		require.Equal(t, time.Second, endsIn(l.After(5*time.Second), time.Second))
		require.Equal(t, time.Second, endsIn(l.After(time.Second), 5*time.Second))
	})
}

func TestLimits_OfManyLengthsAreNotKept(t *testing.T) {
	var l Limits
	for i := range 10 * mostLimits {
		l.After(time.Hour + time.Duration(i))
		require.LessOrEqual(t, len(l.current), mostLimits)
	}
}
