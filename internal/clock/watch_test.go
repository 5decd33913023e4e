package clock

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A watchTrial has Watch look at clocks that the test moves apart.
type watchTrial struct {
	apart atomic.Int64 // by which the wall clock is ahead
	moved int
}

// watch runs test while the clocks are watched.
func watch(t *testing.T, test func(w *watchTrial)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := new(watchTrial)
		began := time.Now()
		now := func() Instant {
			i := Instant{}.After(time.Since(began))
			i.Wall += time.Duration(w.apart.Load())
			return i
		}
		closing, last := make(chan struct{}), now()
		defer close(closing) // which ends it, or the bubble is a deadlock
		go Watch(closing, now, last, func() { w.moved++ })
		test(w)
	})
}

// moves moves the clocks apart by so much more, and waits until that was seen if it is to be.
func (w *watchTrial) moves(d time.Duration) {
	w.apart.Add(int64(d))
	time.Sleep(checkInterval)
	synctest.Wait()
}

func TestWatch_ClocksInStepAreNoNews(t *testing.T) {
	watch(t, func(w *watchTrial) {
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Zero(t, w.moved)
	})
}

// As when the machine was suspended, or its wall clock was set.
func TestWatch_ReportsEachMoveOnce(t *testing.T) {
	watch(t, func(w *watchTrial) {
		for n, d := range []time.Duration{time.Minute, time.Minute, -time.Hour, tolerance, -tolerance} {
			w.moves(d)
			require.Equal(t, n+1, w.moved, "%v", d)
			time.Sleep(time.Hour)
			synctest.Wait()
			require.Equal(t, n+1, w.moved, "it has not moved since")
		}
	})
}

func TestWatch_ReportsSmallMovesTogether(t *testing.T) {
	watch(t, func(w *watchTrial) {
		w.moves(tolerance - 1)
		require.Zero(t, w.moved)
		w.moves(1)
		require.Equal(t, 1, w.moved, "both together")
	})
}

func TestWatch_ReportsAMoveBeforeItBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closing, moved := make(chan struct{}), make(chan struct{}, 1)
		last := At(time.Now())
		last.Wall -= time.Minute
		go Watch(closing, System, last, func() { moved <- struct{}{} })
		<-moved
		close(closing)
	})
}
