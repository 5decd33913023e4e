package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// A re-entry that is not answered may take longer than is left of the lease. The watchdog
// cannot renew meanwhile, but it has to report the loss in time.
func TestLost_IsReportedInTimeThoughACommandIsInFlight(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		const ttl = 4 * time.Second // the shortest whose copies are waited for for a second each
		b := newFaultBench(t, backend.Addr, relock.WithTTL(ttl))
		b.m = b.mutex(relock.WithTTL(ttl), relock.WithRenewInterval(ttl*2/3))
		lockOnce(b)
		hold := b.me.holdOf(b.ctx, b.m)
		<-time.After(ttl * 45 / 100) // well before a renewal, and too late for three copies
		rule := b.relay.HoldBackSilently(b.runs(protocol.ReenterScript)).Always()
		reentered := b.me.start(func() error { return b.m.Lock(b.ctx) })
		select {
		case <-hold.Done(): // unlike Err, it does not look at the clocks itself
			require.ErrorIs(t, context.Cause(hold), relock.ErrLost)
		case err := <-reentered:
			require.FailNow(t, "the loss was not reported while the re-entry was under way", "%v", err)
		}
		b.await(b.lost)
		require.Error(t, faultError(t, reentered))
		require.ErrorIs(t, b.me.unlock(b.m), relock.ErrLost)
		rule.Remove()
		b.awaitGone(ttl)
		b.requireLockable()
	})
}

// The hold has not been lost: its release was executed in time, though the reply came late.
func TestUnlock_AnsweredAfterTheDeadlineHasNotLostTheHold(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		b.m = b.mutex(relock.WithRenewInterval(faultTTL * 2 / 3))
		lockOnce(b)
		over := time.After(faultTTL)
		<-time.After(faultTTL * 6 / 10)
		executed := b.relay.LoseReply(b.runs(protocol.ReleaseScript))
		later := b.relay.HoldBackSilently(b.runs(protocol.ReleaseScript)).Always()
		unlocked := b.me.start(b.m.Unlock)
		executed.Wait(t)
		b.requireGone()
		<-over
		later.Remove()
		require.NoError(t, faultError(t, unlocked))
		b.requireLockable()
	})
}

func TestUnlock_LastsNoLongerThanItsTimeout(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		l := cableTo(rdb, nil)
		c := relock.LocksOn(t, l.client(t, ""))
		t.Cleanup(l.mend)
		m := c.Mutex("orders")
		locktest.RequireLocked(t, m)
		l.cut()
		began := time.Now()
		err := m.Unlock()
		require.ErrorIs(t, err, lockerr.ErrNoAnswer)
		require.ErrorContains(t, err, "within 5s")
		took := time.Since(began)
		require.LessOrEqual(t, took, 5*time.Second)
		require.Greater(t, took, 4900*time.Millisecond)
	})
}
