package relock_test

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// levelProperties are what every kind of lock promises of a hold: of its levels and its lease.
var levelProperties = []property{
	{"who holds nothing gets an error", func(b *kindBench) {
		m := b.mutex()
		b.me.Locks(b.t, m)
		require.ErrorIs(b.t, b.you.Call(m.Unlock), relock.ErrNotHeld)
		require.ErrorIs(b.t, context.Cause(b.you.ContextOf(m)), relock.ErrNotHeld)
		require.Zero(b.t, m.HoldCount())
		require.Zero(b.t, m.FencingToken())
		b.me.Unlocks(b.t, m)
	}},
	{"a re-entry never shortens the lease, and may lengthen it", func(b *kindBench) {
		for _, ttl := range []time.Duration{20 * time.Second, time.Second, time.Minute} {
			b.me.Locks(b.t, b.mutex(relock.WithTTL(ttl), relock.WithoutRenewal()))
		}
		long := func(rdb redis.UniversalClient) bool { return locktest.TTLOf(rdb, b.key) > 40*time.Second }
		for range 3 {
			require.Greater(b.t, b.on(long), len(b.rdbs)/2)
			b.me.Unlocks(b.t, b.mutex())
		}
	}},
	{"its deadline is the end of the lease, and only its owner has one", func(b *kindBench) {
		deadline := func(a *locktest.Actor) (at time.Time, held bool) {
			_ = a.Call(func() error {
				at, held = b.mutex().Deadline()
				return nil
			})
			return at, held
		}
		for _, ttl := range []time.Duration{time.Minute, time.Hour} {
			began := time.Now()
			b.me.Locks(b.t, b.mutex(relock.WithTTL(ttl), relock.WithoutRenewal()))
			at, held := deadline(b.me)
			require.True(b.t, held)
			proven := ttl - clock.Margin(ttl)
			const drift = 10 * time.Millisecond // a quorum takes some off for it
			require.WithinRange(b.t, at, began.Add(proven-drift), time.Now().Add(proven))
			at, held = deadline(b.you)
			require.False(b.t, held)
			require.Zero(b.t, at)
		}
		b.me.Unlocks(b.t, b.mutex())
		_, held := deadline(b.me)
		require.True(b.t, held)
		b.me.Unlocks(b.t, b.mutex())
		_, held = deadline(b.me)
		require.False(b.t, held)
	}},
	{"Unlock does not need the context of Lock", func(b *kindBench) {
		m := b.mutex()
		ctx, cancel := context.WithCancel(b.t.Context())
		for range 2 {
			require.NoError(b.t, locktest.OutcomeOf(b.t, b.me.Lock(ctx, m)))
		}
		cancel()
		hold := b.me.ContextOf(m)
		require.NoError(b.t, hold.Err())
		b.me.Unlocks(b.t, m)
		require.NoError(b.t, hold.Err())
		require.False(b.t, b.you.Tries(b.t, b.another()))
		b.me.Unlocks(b.t, m)
		require.ErrorIs(b.t, context.Cause(hold), relock.ErrReleased)
	}},
	{"Do unlocks though its body panics", func(b *kindBench) {
		m := b.mutex()
		err := b.me.Call(func() (err error) {
			defer func() { err = fmt.Errorf("%v", recover()) }()
			return m.Do(b.t.Context(), func(context.Context) error { panic("in the body") })
		})
		require.EqualError(b.t, err, "in the body")
		b.you.Locks(b.t, m)
		b.you.Unlocks(b.t, m)
	}},
	{"Do reports a loss on the way", func(b *kindBench) {
		m := b.mutex(relock.WithTTL(time.Second), relock.WithRenewInterval(50*time.Millisecond))
		err := b.me.Call(func() error {
			return m.Do(b.t.Context(), func(ctx context.Context) error {
				// Again and again: a late copy of the request might create the key again.
				for end := time.Now().Add(locktest.SoonEnough); ctx.Err() == nil && time.Now().Before(end); clock.Pause(ctx, locktest.LookEvery) {
					for _, rdb := range b.rdbs {
						if err := rdb.Del(b.t.Context(), b.key).Err(); err != nil {
							return err
						}
					}
				}
				return context.Cause(ctx)
			})
		})
		require.ErrorIs(b.t, err, relock.ErrLost)
	}},
	{"two clients with the same owner exclude each other", func(b *kindBench) {
		mine, theirs := b.mutex(relock.WithOwner("job-17")), b.kind.rival(b.kind.client(b.t, b.rdbs), b.key, relock.WithOwner("job-17"))
		b.me.Locks(b.t, mine)
		require.False(b.t, b.you.Tries(b.t, theirs))
		require.ErrorIs(b.t, theirs.Unlock(), relock.ErrNotHeld)
		require.Equal(b.t, 1, mine.HoldCount())
		b.you.Unlocks(b.t, mine)
		require.True(b.t, b.you.Tries(b.t, theirs))
		b.me.Unlocks(b.t, theirs)
	}},
}

// leaseProperties are what every kind of lock promises of the length of a hold.
var leaseProperties = []property{
	{"a lease is renewed for as long as it is held", func(b *kindBench) {
		const ttl = 1500 * time.Millisecond
		m := b.mutex(relock.WithTTL(ttl))
		b.me.Locks(b.t, m)
		ctx := b.me.ContextOf(m)
		locktest.Throughout(b.t, ttl*3/2, func() bool { return ctx.Err() == nil && b.leased() }, "held")
		b.me.Unlocks(b.t, m)
		require.ErrorIs(b.t, context.Cause(ctx), relock.ErrReleased)
	}},
	{"a hold that may be only so old is renewed no longer", func(b *kindBench) {
		const most = 1600 * time.Millisecond
		m := b.mutex(relock.WithTTL(1200*time.Millisecond), relock.WithMaxHold(most))
		began := time.Now()
		b.me.Locks(b.t, m)
		ctx := b.me.ContextOf(m)
		redistest.Receive(b.t, ctx.Done())
		require.ErrorIs(b.t, context.Cause(ctx), relock.ErrLost)
		require.GreaterOrEqual(b.t, time.Since(began), most, "it was not renewed before")
		require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrLost)
	}},
}

// exclusiveProperties are promised by the kinds of lock that one owner has at a time.
var exclusiveProperties = []property{
	{"tokens rise from hold to hold, and belong to the hold", func(b *kindBench) {
		last := int64(0)
		for _, c := range []*relock.Client{b.c, b.kind.client(b.t, b.rdbs), b.c} {
			m := b.kind.mutex(c, b.key, relock.WithFencing())
			b.me.Locks(b.t, m)
			token := b.me.TokenOf(m)
			require.Greater(b.t, token, last)
			b.me.Locks(b.t, m)
			require.Equal(b.t, token, b.me.TokenOf(m), "of a re-entry")
			b.me.Unlocks(b.t, m)
			b.me.Unlocks(b.t, m)
			require.Zero(b.t, b.me.TokenOf(m))
			last = token
		}
	}},
	{"a token that was waited for is newer than the holder's", func(b *kindBench) {
		m := b.mutex(relock.WithFencing())
		b.me.Locks(b.t, m)
		before := b.me.TokenOf(m)
		waiting := b.you.Lock(b.t.Context(), m)
		relock.AwaitWaiters(b.t, b.c, b.key, 1)
		b.me.Unlocks(b.t, m)
		require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
		require.Greater(b.t, b.you.TokenOf(m), before)
		b.you.Unlocks(b.t, m)
	}},
	{"waiters of one process are served in the order in which they came", func(b *kindBench) {
		m := b.mutex()
		b.me.Locks(b.t, m)
		var r locktest.Roll
		var done []<-chan error
		for i := range 10 {
			done = append(done, locktest.NewActor(b.t).Begin(func() error {
				return m.Do(b.t.Context(), func(context.Context) error { r.Call(i); return nil })
			}))
			relock.AwaitWaiters(b.t, b.c, b.key, i+1)
		}
		b.me.Unlocks(b.t, m)
		for _, d := range done {
			require.NoError(b.t, locktest.OutcomeOf(b.t, d))
		}
		require.Equal(b.t, locktest.UpTo(10), r.Names)
	}},
}
