package relock

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// A call of Wanted may come just after the hold has ended, in another goroutine of its owner.
func TestWanted_GateThatIsNoLongerInUseDoesNotSubscribe(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		m := LocksOn(t, rdb).Mutex("name")
		require.NoError(t, m.Lock(t.Context()))
		g := m.covering(nil)[0].queueEntries[0].gate
		require.NoError(t, m.Unlock())
		g.watchDemand(func() {})()
		time.Sleep(time.Minute) // for the subscription
		channel := keys.WantedOf("name")
		require.Zero(t, rdb.PubSubNumSub(t.Context(), channel).Val()[channel])
	})
}

func TestWanted_InALoopCollectsNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		m := LocksOn(t, rdb).Mutex("name")
		require.NoError(t, m.Lock(t.Context()))
		h := m.covering(nil)[0]
		for range 1000 {
			require.Equal(t, m.Wanted(t.Context()), m.Wanted(t.Context()))
		}
		require.Len(t, h.queueEntries[0].gate.demand.watchers, 1)
		require.Len(t, h.contexts.all, 1)
		require.NoError(t, m.Unlock())
	})
}

// The subscription is confirmed just before the hold begins to linger: its waiters may have come before.
func TestLinger_DoesNotBeginWhenTheSubscriptionHasChanged(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		relay.Latency(time.Millisecond) // so nothing is confirmed before the test sleeps
		m := LocksOn(t, rdb).Mutex("name")
		require.NoError(t, m.Lock(t.Context()))
		h := m.covering(nil)[0]
		g, now := h.queueEntries[0].gate, h.session.now()
		most, ask := g.mayLinger(now)
		require.Equal(t, confirmsWithin, most)
		require.False(t, ask)
		time.Sleep(time.Minute) // for the subscription
		l := &lingering{hold: h, batch: h.joinBatch(), until: now.After(time.Hour)}
		require.False(t, g.beginLingering(l, time.Second, most, ask))
		most, ask = g.mayLinger(now)
		require.Equal(t, maxTTL, most)
		require.True(t, ask)
		require.False(t, g.beginLingering(l, time.Second, most, false), "nobody has asked for the line")
		require.True(t, g.beginLingering(l, time.Second, most, ask))
		require.Same(t, l, g.takeLingering(nil))
		most, ask = g.mayLinger(now)
		require.Equal(t, maxTTL, most)
		require.False(t, ask)
		g.mu.Lock()
		g.demand.announcements.Close()
		g.mu.Unlock()
		require.False(t, g.beginLingering(l, time.Second, most, ask), "no announcement would come")
		require.NoError(t, m.Unlock())
	})
}

func TestGate_AnswerFromBeforeAnAnnouncementDoesNotCount(t *testing.T) {
	now := clock.Instant{}.After(time.Hour)
	g := newRegistry(newSilentHub(), func() clock.Instant { return now }).enter(idOf("a"), "")
	require.False(t, g.wantedElsewhere())
	g.announced()
	require.True(t, g.wantedElsewhere())
	g.seesLine(true, now.After(-time.Second))
	require.True(t, g.wantedElsewhere(), "its command was sent before")
	g.seesLine(true, now.After(time.Second))
	require.False(t, g.wantedElsewhere())
	g.seesLine(false, now)
	require.True(t, g.wantedElsewhere())
}
