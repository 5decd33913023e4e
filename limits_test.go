package relock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestALimitIsSharedByThoseWhoBeginSoonAndEndsNotBeforeItIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l limits
		const d = 800 * time.Millisecond
		first := l.after(d)
		time.Sleep(d/8 - time.Millisecond)
		last := l.after(d)
		require.Same(t, first, last)
		began := time.Now()
		<-last.Done()
		require.GreaterOrEqual(t, time.Since(began), d)
		require.ErrorIs(t, context.Cause(last), errNoAnswer)
		require.ErrorContains(t, context.Cause(last), "within 800ms")

		other := l.after(d)
		require.NotSame(t, first, other)
		time.Sleep(d / 8)
		require.NotSame(t, other, l.after(d), "an eighth of the time has passed")
		require.NotSame(t, other, l.after(d/2), "of another length")
	})
}

func TestALimitWithinAContextEndsWithThat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l limits
		endsIn := func(parent context.Context, d time.Duration) time.Duration {
			ctx, cancel := l.within(parent, d)
			defer cancel()
			began := time.Now()
			<-ctx.Done()
			return time.Since(began)
		}
		require.Equal(t, 1125*time.Millisecond, endsIn(context.Background(), time.Second), "a fresh one, with what it may be shared for")

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
		require.Equal(t, 1125*time.Millisecond, endsIn(l.after(5*time.Second), time.Second))
		require.Equal(t, 1125*time.Millisecond, endsIn(l.after(time.Second), 5*time.Second))
	})
}

func TestLimitsOfManyLengthsAreNotKept(t *testing.T) {
	var l limits
	for i := range 10 * mostLimits {
		l.after(time.Hour + time.Duration(i))
		require.LessOrEqual(t, len(l.current), mostLimits)
	}
}
