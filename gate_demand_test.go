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

func TestLinger_BeginsOnlyIfWaitersCanMakeThemselvesKnown(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		relay.Latency(time.Millisecond) // so nothing is confirmed before the test sleeps
		m := LocksOn(t, rdb).Mutex("name")
		require.NoError(t, m.Lock(t.Context()))
		h := m.covering(nil)[0]
		g, now := h.queueEntries[0].gate, h.session.now()
		l := &lingering{hold: h, batch: h.joinBatch(), until: now.After(time.Hour)}
		begins := func() (begun, ask bool) {
			begun, ask = g.beginLingering(l, now)
			if begun {
				require.Same(t, l, g.takeLingering(nil))
			}
			return begun, ask
		}
		begun, ask := begins()
		require.True(t, begun, "for confirmsWithin")
		require.False(t, ask)
		time.Sleep(time.Minute) // for the subscription
		now = h.session.now()
		begun, ask = begins()
		require.True(t, begun)
		require.True(t, ask, "a waiter may have come before")
		begun, ask = begins()
		require.True(t, begun)
		require.False(t, ask)
		g.announced()
		begun, _ = begins()
		require.False(t, begun)
		g.seesLine(lineEmpty, now.After(time.Second))
		g.mu.Lock()
		g.demand.announcements.Close()
		g.mu.Unlock()
		begun, _ = begins()
		require.False(t, begun, "no announcement would come")
		require.NoError(t, m.Unlock())
	})
}

func TestGate_AnswerFromBeforeAnAnnouncementDoesNotCount(t *testing.T) {
	now := clock.Instant{}.After(time.Hour)
	g := newRegistry(newSilentHub(), func() clock.Instant { return now }).enter(idOf("a"), "", new(hold))
	require.False(t, g.wantedElsewhere())
	g.announced()
	require.True(t, g.wantedElsewhere())
	g.seesLine(lineEmpty, now.After(-time.Second))
	require.True(t, g.wantedElsewhere(), "its command was sent before")
	g.seesLine(lineEmpty, now.After(time.Second))
	require.False(t, g.wantedElsewhere())
	g.seesLine(lineTaken, now)
	require.True(t, g.wantedElsewhere())
}

// A batch of local hand-overs goes on beyond its limit only behind an empty line.
func TestGate_GrantDoesNotHideWhatIsKnownOfTheLine(t *testing.T) {
	now := clock.Instant{}.After(time.Hour)
	g := newRegistry(newSilentHub(), func() clock.Instant { return now }).enter(idOf("a"), "", new(hold))
	g.seesLine(lineUnknown, now)
	require.False(t, g.forUs(now), "nothing is known")
	g.seesLine(lineEmpty, now)
	g.seesLine(lineUnknown, now)
	require.True(t, g.forUs(now))
	g.seesLine(lineTaken, now)
	g.seesLine(lineUnknown, now)
	require.False(t, g.forUs(now), "others may have come since")
	require.False(t, g.wantedElsewhere())
}
