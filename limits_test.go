package relock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestALimitIsSharedByThoseWhoBeginSoonAndEndsInTimeForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l limits
		const d = 800 * time.Millisecond
		began := time.Now()
		first := l.after(d)
		time.Sleep(d/sharedFor - time.Millisecond)
		last := l.after(d)
		require.Same(t, first, last)
		<-last.Done()
		require.Equal(t, d, time.Since(began))
		require.ErrorIs(t, context.Cause(last), errNoAnswer)
		require.ErrorContains(t, context.Cause(last), "within 800ms")

		other := l.after(d)
		require.NotSame(t, first, other)
		time.Sleep(d / sharedFor)
		require.NotSame(t, other, l.after(d), "it is not shared any more")
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
		require.Equal(t, time.Second, endsIn(l.after(5*time.Second), time.Second))
		require.Equal(t, time.Second, endsIn(l.after(time.Second), 5*time.Second))
	})
}

func TestLimitsOfManyLengthsAreNotKept(t *testing.T) {
	var l limits
	for i := range 10 * mostLimits {
		l.after(time.Hour + time.Duration(i))
		require.LessOrEqual(t, len(l.current), mostLimits)
	}
}

func TestAnUnlockLastsNoLongerThanItsTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, rdb *redis.Client) {
		l := lineTo(rdb, nil)
		c := locksOn(t, l.client(t, 0))
		t.Cleanup(l.mend)
		m := c.Mutex("orders")
		requireLocked(t, m)
		l.cut()
		began := time.Now()
		err := m.Unlock()
		require.ErrorIs(t, err, errNoAnswer)
		require.ErrorContains(t, err, "within 5s")
		took := time.Since(began)
		require.LessOrEqual(t, took, 5*time.Second)
		require.Greater(t, took, 4900*time.Millisecond)
	})
}
