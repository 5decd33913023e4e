package relock

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
)

// levelProperties are what every kind of lock promises of a hold: of its levels and its lease.
var levelProperties = []property{
	{"who holds nothing is told", func(b *kindBench) {
		m := b.mutex()
		b.me.locks(b.t, m)
		require.ErrorIs(b.t, b.you.call(m.Unlock), ErrNotHeld)
		require.ErrorIs(b.t, context.Cause(contextOf(b.you, m)), ErrNotHeld)
		require.Zero(b.t, m.HoldCount())
		require.Zero(b.t, m.FencingToken())
		b.me.unlocks(b.t, m)
	}},
	{"a re-entry never shortens the lease, and may lengthen it", func(b *kindBench) {
		for _, ttl := range []time.Duration{20 * time.Second, time.Second, time.Minute} {
			b.me.locks(b.t, b.mutex(WithTTL(ttl), WithoutRenewal()))
		}
		long := func(rdb redis.UniversalClient) bool { return ttlOf(rdb, b.key) > 40*time.Second }
		for range 3 {
			require.Greater(b.t, b.on(long), len(b.rdbs)/2)
			b.me.unlocks(b.t, b.mutex())
		}
	}},
	{"its deadline is that of the lease, and only its owner has one", func(b *kindBench) {
		deadline := func(a *actor) (at time.Time, held bool) {
			_ = a.call(func() error {
				at, held = b.mutex().Deadline()
				return nil
			})
			return at, held
		}
		for _, ttl := range []time.Duration{time.Minute, time.Hour} {
			began := time.Now()
			b.me.locks(b.t, b.mutex(WithTTL(ttl), WithoutRenewal()))
			at, held := deadline(b.me)
			require.True(b.t, held)
			proven := ttl - clock.Margin(ttl)
			const drift = 10 * time.Millisecond // a quorum takes some off for it
			require.WithinRange(b.t, at, began.Add(proven-drift), time.Now().Add(proven))
			at, held = deadline(b.you)
			require.False(b.t, held)
			require.Zero(b.t, at)
		}
		b.me.unlocks(b.t, b.mutex())
		_, held := deadline(b.me)
		require.True(b.t, held)
		b.me.unlocks(b.t, b.mutex())
		_, held = deadline(b.me)
		require.False(b.t, held)
	}},
	{"Unlock does not need the context of Lock", func(b *kindBench) {
		m := b.mutex()
		ctx, cancel := context.WithCancel(b.t.Context())
		for range 2 {
			require.NoError(b.t, outcomeOf(b.t, b.me.lock(ctx, m)))
		}
		cancel()
		hold := contextOf(b.me, m)
		require.NoError(b.t, hold.Err())
		b.me.unlocks(b.t, m)
		require.NoError(b.t, hold.Err())
		require.False(b.t, b.you.tries(b.t, b.another()))
		b.me.unlocks(b.t, m)
		require.ErrorIs(b.t, context.Cause(hold), ErrReleased)
	}},
	{"Do unlocks though its body panics", func(b *kindBench) {
		m := b.mutex()
		err := b.me.call(func() (err error) {
			defer func() { err = fmt.Errorf("%v", recover()) }()
			return m.Do(b.t.Context(), func(context.Context) error { panic("in the body") })
		})
		require.EqualError(b.t, err, "in the body")
		b.you.locks(b.t, m)
		b.you.unlocks(b.t, m)
	}},
	{"Do tells of a loss on the way", func(b *kindBench) {
		m := b.mutex(WithTTL(time.Second), WithRenewInterval(50*time.Millisecond))
		err := b.me.call(func() error {
			return m.Do(b.t.Context(), func(ctx context.Context) error {
				// Again and again: a late copy of the request might make the key anew.
				for end := time.Now().Add(soonEnough); ctx.Err() == nil && time.Now().Before(end); clock.Pause(ctx, lookEvery) {
					for _, rdb := range b.rdbs {
						if err := rdb.Del(b.t.Context(), b.key).Err(); err != nil {
							return err
						}
					}
				}
				return context.Cause(ctx)
			})
		})
		require.ErrorIs(b.t, err, ErrLost)
	}},
	{"two clients with the same owner exclude each other", func(b *kindBench) {
		mine, theirs := b.mutex(WithOwner("job-17")), b.kind.rival(b.kind.client(b.t, b.rdbs), b.key, WithOwner("job-17"))
		b.me.locks(b.t, mine)
		require.False(b.t, b.you.tries(b.t, theirs))
		require.ErrorIs(b.t, theirs.Unlock(), ErrNotHeld)
		require.Equal(b.t, 1, mine.HoldCount())
		b.you.unlocks(b.t, mine)
		require.True(b.t, b.you.tries(b.t, theirs))
		b.me.unlocks(b.t, theirs)
	}},
}

// leaseProperties are what every kind of lock promises of the length of a hold.
var leaseProperties = []property{
	{"a lease is renewed for as long as it is held", func(b *kindBench) {
		const ttl = 1500 * time.Millisecond
		m := b.mutex(WithTTL(ttl))
		b.me.locks(b.t, m)
		ctx := contextOf(b.me, m)
		throughout(b.t, ttl*3/2, func() bool { return ctx.Err() == nil && b.leased() }, "held")
		b.me.unlocks(b.t, m)
		require.ErrorIs(b.t, context.Cause(ctx), ErrReleased)
	}},
	{"a hold that may be only so old is renewed no longer", func(b *kindBench) {
		const most = 1600 * time.Millisecond
		m := b.mutex(WithTTL(1200*time.Millisecond), WithMaxHold(most))
		began := time.Now()
		b.me.locks(b.t, m)
		ctx := contextOf(b.me, m)
		receives(b.t, ctx.Done())
		require.ErrorIs(b.t, context.Cause(ctx), ErrLost)
		require.GreaterOrEqual(b.t, time.Since(began), most, "it was not renewed before")
		require.ErrorIs(b.t, b.me.call(m.Unlock), ErrLost)
	}},
}

// exclusiveProperties are promised by the kinds of lock that one owner has at a time.
var exclusiveProperties = []property{
	{"tokens rise from hold to hold, and belong to the hold", func(b *kindBench) {
		last := int64(0)
		for _, c := range []*Client{b.c, b.kind.client(b.t, b.rdbs), b.c} {
			m := b.kind.mutex(c, b.key, WithFencing())
			b.me.locks(b.t, m)
			token := tokenOf(b.me, m)
			require.Greater(b.t, token, last)
			b.me.locks(b.t, m)
			require.Equal(b.t, token, tokenOf(b.me, m), "of a re-entry")
			b.me.unlocks(b.t, m)
			b.me.unlocks(b.t, m)
			require.Zero(b.t, tokenOf(b.me, m))
			last = token
		}
	}},
	{"a token that was waited for is newer than the holder's", func(b *kindBench) {
		m := b.mutex(WithFencing())
		b.me.locks(b.t, m)
		before := tokenOf(b.me, m)
		waiting := b.you.lock(b.t.Context(), m)
		awaitWaiters(b.t, b.c.session, b.key, 1)
		b.me.unlocks(b.t, m)
		require.NoError(b.t, outcomeOf(b.t, waiting))
		require.Greater(b.t, tokenOf(b.you, m), before)
		b.you.unlocks(b.t, m)
	}},
	{"waiters of one process are served in the order in which they came", func(b *kindBench) {
		m := b.mutex()
		b.me.locks(b.t, m)
		var r roll
		var done []<-chan error
		for i := range 10 {
			done = append(done, newActor(b.t).begin(func() error {
				return m.Do(b.t.Context(), func(context.Context) error { r.call(i); return nil })
			}))
			awaitWaiters(b.t, b.c.session, b.key, i+1)
		}
		b.me.unlocks(b.t, m)
		for _, d := range done {
			require.NoError(b.t, outcomeOf(b.t, d))
		}
		require.Equal(b.t, upTo(10), r.names)
	}},
}

// tokenOf returns the token of the actor's hold.
func tokenOf(a *actor, m *Mutex) (token int64) {
	_ = a.call(func() error {
		token = m.FencingToken()
		return nil
	})
	return token
}
