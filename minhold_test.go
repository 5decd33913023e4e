package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// What WithMinHold promises: a lock that is unlocked early is no one's here, and can be had by no one
// anywhere, until its min hold is over; and then soon.

// aMinHold is long enough for a test to look around before it is over.
const aMinHold = 1500 * time.Millisecond

// soonAfter is more than it takes to get a lock whose time is over, and less than a poll.
const soonAfter = time.Second

// heldBriefly has me take the lock by m, and unlock it at once. It returns between which times that was
// acquired.
func (b *kindBench) heldBriefly(m *relock.Mutex) (earliest, latest time.Time) {
	b.t.Helper()
	earliest = time.Now()
	b.me.Locks(b.t, m)
	latest = time.Now()
	b.me.Unlocks(b.t, m)
	return earliest, latest
}

// requireKept requires that no one gets the lock, which was acquired no earlier than so, until its min hold is
// over. A machine that is busy may take so long to look.
func (b *kindBench) requireKept(earliest time.Time, minHold time.Duration) {
	b.t.Helper()
	none := func(actor *locktest.Actor, m *relock.Mutex, text string) {
		b.t.Helper()
		if actor.Tries(b.t, m) {
			require.GreaterOrEqual(b.t, time.Since(earliest), minHold, text)
			actor.Unlocks(b.t, m)
		}
	}
	none(b.you, b.rival(), "another goroutine has got it")
	none(b.me, b.rival(), "its last owner has got it")
	none(b.you, b.another(), "another process has got it")
}

// requireOver waits by m for a lock that has a min-hold placeholder since it was acquired, and requires that it is had
// when its min hold is over, and not much later.
func (b *kindBench) requireOver(m *relock.Mutex, earliest, latest time.Time, minHold time.Duration) {
	b.t.Helper()
	b.you.Locks(b.t, m)
	now := time.Now()
	require.GreaterOrEqual(b.t, now.Sub(earliest), minHold, "too soon")
	require.Less(b.t, now.Sub(latest), minHold+soonAfter, "too late")
	b.you.Unlocks(b.t, m)
}

var minHoldProperties = []property{
	{"an early unlock ends the hold here, and no one gets the lock until its time is over", func(b *kindBench) {
		m := b.mutex(relock.WithMinHold(aMinHold))
		earliest := time.Now()
		b.me.Locks(b.t, m)
		latest := time.Now()
		ctx := b.me.ContextOf(m)
		b.me.Unlocks(b.t, m)
		require.ErrorIs(b.t, context.Cause(ctx), relock.ErrReleased)
		require.Zero(b.t, relock.NamesOf(b.c), "something is left here")
		require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrNotHeld)
		b.requireKept(earliest, aMinHold)
		b.requireOver(b.another(), earliest, latest, aMinHold)
	}},
	{"who waits here and elsewhere gets it soon after its time is over", func(b *kindBench) {
		m := b.mutex(relock.WithMinHold(aMinHold))
		earliest := time.Now()
		b.me.Locks(b.t, m)
		latest := time.Now()
		elsewhere := b.another()
		waiting := b.you.Begin(func() error { return b.rival().Do(b.t.Context(), nothing) })
		relock.AwaitWaiters(b.t, b.c, b.key, 1)
		relock.AwaitListening(b.t, b.c, b.key)
		other := locktest.NewActor(b.t).Begin(func() error { return elsewhere.Do(b.t.Context(), nothing) })
		relock.AwaitWaiters(b.t, elsewhere, b.key, 1)
		relock.AwaitListening(b.t, elsewhere, b.key)
		b.me.Unlocks(b.t, m)
		for _, done := range []<-chan error{waiting, other} {
			require.NoError(b.t, locktest.OutcomeOf(b.t, done))
			require.GreaterOrEqual(b.t, time.Since(earliest), aMinHold, "too soon")
			require.Less(b.t, time.Since(latest), aMinHold+soonAfter, "too late")
		}
	}},
	{"an unlock that is not early releases it at once", func(b *kindBench) {
		m := b.mutex(relock.WithMinHold(20 * time.Millisecond))
		b.me.Locks(b.t, m)
		time.Sleep(21 * time.Millisecond) // its min hold
		b.me.Unlocks(b.t, m)
		b.requireFreed()
	}},
	{"the inner level asks for it, and the last Unlock keeps it", func(b *kindBench) {
		outer, inner := b.mutex(), b.mutex(relock.WithMinHold(aMinHold))
		b.me.Locks(b.t, outer)
		earliest := time.Now()
		b.me.Locks(b.t, inner)
		latest := time.Now()
		b.me.Unlocks(b.t, inner)
		require.Equal(b.t, 1, b.count(outer))
		b.me.Unlocks(b.t, outer)
		b.requireKept(earliest, aMinHold)
		b.requireOver(b.another(), earliest, latest, aMinHold)
	}},
	{"Close keeps it, and does not wait", func(b *kindBench) {
		earliest := time.Now()
		b.me.Locks(b.t, b.mutex(relock.WithMinHold(aMinHold)))
		latest := time.Now()
		other := b.another()
		require.NoError(b.t, b.c.Close())
		require.False(b.t, b.you.Tries(b.t, other))
		b.requireOver(other, earliest, latest, aMinHold)
		require.ErrorIs(b.t, b.me.Call(b.mutex().Unlock), relock.ErrClosed)
	}},
	{"ForceUnlock removes the placeholder", func(b *kindBench) {
		b.heldBriefly(b.mutex(relock.WithMinHold(time.Hour)))
		fieldsOn(b) // all have it
		forced, err := b.another().ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, forced)
		b.requireFreed()
	}},
	{"a hold that was forced open leaves no placeholder", func(b *kindBench) {
		m := b.mutex(relock.WithMinHold(time.Hour))
		b.me.Locks(b.t, m)
		fieldsOn(b) // all have it
		forced, err := b.mutex().ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, forced)
		require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrLost)
		b.requireFreed()
	}},
	{"a hold whose key is gone leaves no placeholder", func(b *kindBench) {
		m := b.mutex(relock.WithTTL(time.Second), relock.WithMinHold(time.Hour))
		b.me.Locks(b.t, m)
		for _, name := range b.names() {
			b.on(func(rdb redis.UniversalClient) bool { return rdb.Del(b.t.Context(), name).Val() == 1 })
		}
		require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrLost)
		b.requireFreed()
	}},
	{"it may be longer than the lease, which may be a fixed one", func(b *kindBench) {
		const ttl = 800 * time.Millisecond
		for _, opts := range [][]relock.MutexOption{{relock.WithTTL(ttl), relock.WithMinHold(2 * ttl)}, {relock.WithTTL(ttl), relock.WithMinHold(2 * ttl), relock.WithoutRenewal()}} {
			earliest, latest := b.heldBriefly(b.mutex(opts...))
			b.requireOver(b.another(), earliest, latest, 2*ttl)
		}
	}},
	{"relock.State names the owner of the placeholder, and so does the end of a wait", func(b *kindBench) {
		m := b.mutex(relock.WithMinHold(aMinHold))
		b.me.Locks(b.t, m)
		field := fieldsOn(b)[0].field
		b.me.Unlocks(b.t, m)
		s, err := b.rival().State(b.t.Context())
		require.NoError(b.t, err)
		kept, is := keys.ReplacedBy(s.Owner)
		require.True(b.t, is)
		require.Equal(b.t, field, kept)
		require.Positive(b.t, s.TTL)
		require.LessOrEqual(b.t, s.TTL, aMinHold)
		require.ErrorContains(b.t, b.waitUntilTaken(b.c), "reserved by the min hold of "+field)
	}},
}

func nothing(context.Context) error { return nil }

// names are the names of the locks of the bench.
func (b *kindBench) names() []string { return b.mutex().Keys().Keys }

// count is HoldCount of me.
func (b *kindBench) count(m *relock.Mutex) (n int) {
	_ = b.me.Call(func() error {
		n = m.HoldCount()
		return nil
	})
	return n
}

// requireFreed requires that another process gets the lock.
func (b *kindBench) requireFreed() {
	b.t.Helper()
	redistest.Eventually(b.t, "the lock", func() bool { return b.you.Tries(b.t, b.rival()) })
	b.you.Unlocks(b.t, b.rival())
}

func TestMinHold_IsReservedByEveryKind(t *testing.T) {
	t.Parallel()
	testKindsInTime(t, minHoldProperties, allKinds)
}
