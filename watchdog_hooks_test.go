package relock

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

func TestHooks_ReportTheLifeOfALock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		events, other := &chronicle{}, locktest.NewActor(t)
		c := LocksOn(t, rdb, WithHooks(events.Hooks()), WithRenewInterval(slowly), WithFencing())
		another := LocksOn(t, rdb).Mutex(key)
		other.Locks(t, another)
		me := locktest.NewActor(t)
		m := c.Mutex(key)
		locked := me.Lock(t.Context(), m)
		redistest.Eventually(t, "contention", func() bool { return len(events.Of("contended")) == 1 })
		other.Unlocks(t, another)
		require.NoError(t, locktest.OutcomeOf(t, locked))
		redistest.Eventually(t, "renewals", func() bool { return len(events.Of("renewed")) > 1 })
		s, err := m.State(t.Context())
		require.NoError(t, err)
		me.Locks(t, m) // a re-entry is no event
		me.Unlocks(t, m)
		me.Unlocks(t, m)

		require.Equal(t, []string{"contended", "acquired", "renewed", "released"}, events.Names())
		contended := events.Of("contended")
		require.Len(t, contended, 1)
		require.Equal(t, key, contended[0].Name)
		require.Empty(t, contended[0].Owner)
		for _, hook := range []string{"acquired", "renewed", "released"} {
			e := events.Of(hook)[0]
			require.Equal(t, key, e.Name, hook)
			require.Equal(t, s.Owner, e.Owner, hook)
			require.Equal(t, events.Of("acquired")[0].Token, e.Token, hook)
			require.LessOrEqual(t, e.Token, s.FencingToken, hook) // a poll that crossed the grant has minted one more
			require.Positive(t, e.Token, hook)
			require.Positive(t, e.Elapsed, hook)
			require.NoError(t, e.Err, hook)
		}
		require.Len(t, events.Of("acquired"), 1)
		require.Len(t, events.Of("released"), 1)
		require.Greater(t, events.Of("released")[0].Elapsed, slowly, "how long it was held")
	})
}

func TestHooks_ReportALossAndItsReason(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key, events := b.Client(t), redistest.Key(t), &chronicle{}
		m := LocksOn(t, rdb, WithHooks(events.Hooks()), WithRenewInterval(20*time.Millisecond)).Mutex(key)
		locktest.RequireLocked(t, m)
		require.NoError(t, rdb.Del(t.Context(), key).Err())
		redistest.Eventually(t, "the loss", func() bool { return len(events.Of("lost")) == 1 })
		require.ErrorIs(t, m.Unlock(), ErrLost)
		require.ErrorIs(t, events.Of("lost")[0].Err, lockerr.ErrNotOnRedis)
		require.Empty(t, events.Of("released"), "one end is reported once")
		require.NotEmpty(t, events.Of("lost")[0].Owner)
	})
}

func TestHooks_ReportFailedRenewals(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		key, events := redistest.Key(t), &chronicle{}
		m := LocksOn(t, rdb, WithHooks(events.Hooks()), WithRenewInterval(slowly)).Mutex(key)
		relay.ReplyWith("-LOADING it is early\r\n", locktest.RunsOf(protocol.RenewScript)).Times(2)
		locktest.RequireLocked(t, m)
		redistest.Eventually(t, "a renewal", func() bool { return len(events.Of("renewed")) > 0 })
		locktest.RequireUnlocked(t, m)
		require.Equal(t, []string{"acquired", "renew failed", "renewed", "released"}, events.Names())
		require.Len(t, events.Of("renew failed"), 2)
		require.ErrorContains(t, events.Of("renew failed")[0].Err, "LOADING")
	})
}

// Goexit is not allowed in a hook, but happens: T.FailNow calls it.
func TestHooks_GoexitOnTheWatchdogEndsOnlyTheRenewals(t *testing.T) {
	c := LocksOn(t, redistest.Mini(t).Client(t), WithHooks(Hooks{Renewed: func(Event) { runtime.Goexit() }}))
	m := c.Mutex(redistest.Key(t), WithTTL(minTTL), WithOwner("job"))
	locktest.RequireLocked(t, m)
	select {
	case <-m.Context(t.Context()).Done():
	case <-time.After(locktest.SoonEnough):
		require.Fail(t, "the end of the lease went unnoticed")
	}
	require.ErrorIs(t, m.Unlock(), ErrLost)
}
