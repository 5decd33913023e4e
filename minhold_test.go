package relock

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
)

// What WithMinHold promises: a lock that is unlocked early is no one's here, and can be had by no one
// anywhere, until its min hold is over; and then soon.

// aMinHold is long enough for a test to look around before it is over.
const aMinHold = 600 * time.Millisecond

// soonAfter is more than it takes to get a lock whose time is over, and less than a poll.
const soonAfter = time.Second

// heldBriefly has me take the lock by m, and unlock it at once. It returns between which times that was
// acquired.
func (b *kindBench) heldBriefly(m *Mutex) (earliest, latest time.Time) {
	b.t.Helper()
	earliest = time.Now()
	b.me.locks(b.t, m)
	latest = time.Now()
	b.me.unlocks(b.t, m)
	return earliest, latest
}

// requireKept requires that no one gets the lock.
func (b *kindBench) requireKept() {
	b.t.Helper()
	require.False(b.t, b.you.tries(b.t, b.rival()), "another goroutine has got it")
	require.False(b.t, b.me.tries(b.t, b.rival()), "its last owner has got it")
	require.False(b.t, b.you.tries(b.t, b.another()), "another process has got it")
}

// requireOver waits by m for a lock that was kept since it was acquired, and requires that it is had
// when its min hold is over, and not much later.
func (b *kindBench) requireOver(m *Mutex, earliest, latest time.Time, minHold time.Duration) {
	b.t.Helper()
	b.you.locks(b.t, m)
	now := time.Now()
	require.GreaterOrEqual(b.t, now.Sub(earliest), minHold, "too soon")
	require.Less(b.t, now.Sub(latest), minHold+soonAfter, "too late")
	b.you.unlocks(b.t, m)
}

var minHoldProperties = []property{
	{"an early unlock ends the hold here, and no one gets the lock until its time is over", func(b *kindBench) {
		m := b.mutex(WithMinHold(aMinHold))
		earliest := time.Now()
		b.me.locks(b.t, m)
		latest := time.Now()
		ctx := contextOf(b.me, m)
		b.me.unlocks(b.t, m)
		require.ErrorIs(b.t, context.Cause(ctx), ErrReleased)
		require.Zero(b.t, gatesOf(b.c), "something is left here")
		require.ErrorIs(b.t, b.me.call(m.Unlock), ErrNotHeld)
		b.requireKept()
		b.requireOver(b.another(), earliest, latest, aMinHold)
	}},
	{"who waits here and elsewhere gets it soon after its time is over", func(b *kindBench) {
		m := b.mutex(WithMinHold(aMinHold))
		earliest := time.Now()
		b.me.locks(b.t, m)
		latest := time.Now()
		elsewhere := b.another()
		waiting := b.you.begin(func() error { return b.rival().Do(b.t.Context(), nothing) })
		awaitWaiters(b.t, b.c.session, b.key, 1)
		awaitListening(b.t, b.c.session, b.key)
		other := newActor(b.t).begin(func() error { return elsewhere.Do(b.t.Context(), nothing) })
		awaitWaiters(b.t, elsewhere.session, b.key, 1)
		awaitListening(b.t, elsewhere.session, b.key)
		b.me.unlocks(b.t, m)
		for _, done := range []<-chan error{waiting, other} {
			require.NoError(b.t, outcomeOf(b.t, done))
			require.GreaterOrEqual(b.t, time.Since(earliest), aMinHold, "too soon")
			require.Less(b.t, time.Since(latest), aMinHold+soonAfter, "too late")
		}
	}},
	{"an unlock that is not early gives it back at once", func(b *kindBench) {
		m := b.mutex(WithMinHold(20 * time.Millisecond))
		b.me.locks(b.t, m)
		time.Sleep(21 * time.Millisecond) // its min hold
		b.me.unlocks(b.t, m)
		b.requireFreed()
	}},
	{"the inner level asks for it, and the last Unlock keeps it", func(b *kindBench) {
		outer, inner := b.mutex(), b.mutex(WithMinHold(aMinHold))
		b.me.locks(b.t, outer)
		earliest := time.Now()
		b.me.locks(b.t, inner)
		latest := time.Now()
		b.me.unlocks(b.t, inner)
		require.Equal(b.t, 1, b.count(outer))
		b.me.unlocks(b.t, outer)
		b.requireKept()
		b.requireOver(b.another(), earliest, latest, aMinHold)
	}},
	{"Close keeps it, and does not wait", func(b *kindBench) {
		earliest := time.Now()
		b.me.locks(b.t, b.mutex(WithMinHold(aMinHold)))
		latest := time.Now()
		other := b.another()
		require.NoError(b.t, b.c.Close())
		require.False(b.t, b.you.tries(b.t, other))
		b.requireOver(other, earliest, latest, aMinHold)
		require.ErrorIs(b.t, b.me.call(b.mutex().Unlock), ErrClosed)
	}},
	{"ForceUnlock frees what is kept", func(b *kindBench) {
		b.heldBriefly(b.mutex(WithMinHold(time.Hour)))
		fieldsOn(b) // all have it
		forced, err := b.another().ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, forced)
		b.requireFreed()
	}},
	{"a hold that was forced open keeps nothing", func(b *kindBench) {
		m := b.mutex(WithMinHold(time.Hour))
		b.me.locks(b.t, m)
		fieldsOn(b) // all have it
		forced, err := b.mutex().ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, forced)
		require.ErrorIs(b.t, b.me.call(m.Unlock), ErrLost)
		b.requireFreed()
	}},
	{"a hold whose key is gone keeps nothing", func(b *kindBench) {
		m := b.mutex(WithTTL(time.Second), WithMinHold(time.Hour))
		b.me.locks(b.t, m)
		for _, name := range b.names() {
			b.on(func(rdb redis.UniversalClient) bool { return rdb.Del(b.t.Context(), name).Val() == 1 })
		}
		require.ErrorIs(b.t, b.me.call(m.Unlock), ErrLost)
		b.requireFreed()
	}},
	{"it may be longer than the lease, which may be a fixed one", func(b *kindBench) {
		const ttl = 800 * time.Millisecond
		for _, opts := range [][]MutexOption{{WithTTL(ttl), WithMinHold(2 * ttl)}, {WithTTL(ttl), WithMinHold(2 * ttl), WithoutRenewal()}} {
			earliest, latest := b.heldBriefly(b.mutex(opts...))
			b.requireOver(b.another(), earliest, latest, 2*ttl)
		}
	}},
	{"State names who is kept, and so does the end of a wait", func(b *kindBench) {
		m := b.mutex(WithMinHold(aMinHold))
		b.me.locks(b.t, m)
		field := fieldsOn(b)[0].field
		b.me.unlocks(b.t, m)
		s, err := b.rival().State(b.t.Context())
		require.NoError(b.t, err)
		kept, is := keys.KeptFor(s.Owner)
		require.True(b.t, is)
		require.Equal(b.t, field, kept)
		require.Positive(b.t, s.TTL)
		require.LessOrEqual(b.t, s.TTL, aMinHold)
		require.ErrorContains(b.t, b.vainly(b.c), "kept for the min hold of "+field)
	}},
}

func nothing(context.Context) error { return nil }

// names are those of the locks of the bench.
func (b *kindBench) names() []string { return b.mutex().target.Keys }

// count is HoldCount of me.
func (b *kindBench) count(m *Mutex) (n int) {
	_ = b.me.call(func() error {
		n = m.HoldCount()
		return nil
	})
	return n
}

// requireFreed requires that another process gets the lock.
func (b *kindBench) requireFreed() {
	b.t.Helper()
	eventually(b.t, "the lock", func() bool { return b.you.tries(b.t, b.rival()) })
	b.you.unlocks(b.t, b.rival())
}

func TestAMinHoldIsKeptByEveryKind(t *testing.T) {
	t.Parallel()
	testKindsInTime(t, minHoldProperties, allKinds)
}
