package relock

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

func TestRenewalKeepsALockForManyLeases(t *testing.T) {
	t.Parallel()
	onEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
		key := redistest.Key(t)
		m := locksOn(t, rdb, WithTTL(ttl)).Mutex(key)
		requireLocked(t, m)
		ctx := m.Context(t.Context())
		throughout(t, 3*ttl, func() bool { return ttlOf(rdb, key) > 0 && m.HoldCount() == 1 }, "renewed")
		require.NoError(t, ctx.Err())
		requireUnlocked(t, m)
		requireFree(t, rdb, key)
	})
}

func TestALockIsHeldForHours(t *testing.T) {
	inBubble(t, func(t *testing.T, rdb *redis.Client) {
		key, events := redistest.Key(t), &chronicle{}
		m := locksOn(t, rdb, WithHooks(events.hooks())).Mutex(key)
		requireLocked(t, m)
		time.Sleep(time.Hour + time.Second)
		require.Equal(t, 1, m.HoldCount())
		require.Greater(t, ttlOf(rdb, key), 19*time.Second)
		require.Len(t, events.of("renewed"), 360, "one every third of the TTL")
		requireUnlocked(t, m)
		time.Sleep(time.Hour)
		require.Len(t, events.of("renewed"), 360)
		require.Equal(t, []string{"acquired", "renewed", "released"}, events.names())
		require.Equal(t, time.Hour+time.Second, events.of("released")[0].Elapsed)
		requireFree(t, rdb, key)
	})
}

func TestTheRenewIntervalIsObserved(t *testing.T) {
	inBubble(t, func(t *testing.T, rdb *redis.Client) {
		events := &chronicle{}
		c := locksOn(t, rdb, WithHooks(events.hooks()))
		m := c.Mutex(redistest.Key(t), WithRenewInterval(2*time.Second))
		requireLocked(t, m)
		time.Sleep(time.Minute + time.Second)
		require.Len(t, events.of("renewed"), 30)
		requireLocked(t, c.Mutex(m.Name(), WithRenewInterval(time.Second)))
		time.Sleep(time.Minute + time.Second/2)
		require.InDelta(t, 90, len(events.of("renewed")), 1, "the shortest of the levels' intervals")
		requireUnlocked(t, m)
		requireUnlocked(t, m)
	})
}

func TestAFixedLeaseIsLostAtItsEndBeforeTheKeyIsGone(t *testing.T) {
	t.Parallel()
	onEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
		key, events := redistest.Key(t), &chronicle{}
		// A long lease has a margin that even a busy machine keeps.
		ttl *= 2
		m := locksOn(t, rdb, WithTTL(ttl), WithHooks(events.hooks())).Mutex(key, WithoutRenewal())
		began := time.Now()
		requireLocked(t, m)
		ctx := m.Context(t.Context())
		receives(t, ctx.Done())
		require.GreaterOrEqual(t, time.Since(began), ttl*9/10, "not long before")
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		require.Zero(t, m.HoldCount())
		h := holdsOn(m.session, key)[0]
		require.LessOrEqual(t, h.lease.Deadline().Mono-h.lease.Acquired().Mono, ttl-clock.Margin(ttl), "the deadline is before the end of the lease")
		require.ErrorIs(t, m.Unlock(), ErrLost)
		require.Empty(t, events.of("renewed"))
		eventually(t, "the key to go", func() bool { return ttlOf(rdb, key) < 0 })
	})
}

// In a bubble nothing takes time, so what is left of the lease at the loss is the margin.
func TestTheContextOfALostHoldEndsBeforeTheKeyIsGone(t *testing.T) {
	inBubble(t, func(t *testing.T, rdb *redis.Client) {
		key := redistest.Key(t)
		m := locksOn(t, rdb, WithTTL(10*time.Second)).Mutex(key, WithoutRenewal())
		requireLocked(t, m)
		left := make(chan time.Duration, 1)
		context.AfterFunc(m.Context(t.Context()), func() { left <- ttlOf(rdb, key) })
		locked := time.Now()
		ctx := m.Context(t.Context())
		receives(t, ctx.Done())
		require.Equal(t, 9900*time.Millisecond, time.Since(locked))
		// The loss is also told to Redis, in the background: the key may be gone by now,
		// though not because its lease is over.
		require.Contains(t, []time.Duration{100 * time.Millisecond, -2}, receives(t, left))
		require.ErrorIs(t, m.Unlock(), ErrLost)
	})
}

func TestMaxHoldBoundsAForgottenHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, rdb *redis.Client) {
		key, events := redistest.Key(t), &chronicle{}
		m := locksOn(t, rdb, WithTTL(10*time.Second), WithHooks(events.hooks())).Mutex(key, WithMaxHold(time.Minute))
		requireLocked(t, m)
		locked := time.Now()
		ctx := m.Context(t.Context())
		time.Sleep(59 * time.Second)
		require.NoError(t, ctx.Err())
		receives(t, ctx.Done())
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		require.Greater(t, time.Since(locked), time.Minute)
		require.LessOrEqual(t, time.Since(locked), 70*time.Second)
		last := len(events.of("renewed"))
		time.Sleep(time.Minute)
		require.Len(t, events.of("renewed"), last)
		requireFree(t, rdb, key)
		require.ErrorIs(t, m.Unlock(), ErrLost)
	})
}

// quiet requires that no renewal is sent for several intervals.
func quiet(t *testing.T, relay *redistest.Relay, interval time.Duration) {
	t.Helper()
	// What was on its way when the hold ended may still arrive.
	before := -1
	eventually(t, "the relay to be still", func() bool {
		last := before
		before = relay.Count(runsOf(protocol.RenewScript))
		return before == last
	})
	throughout(t, 5*interval, func() bool { return relay.Count(runsOf(protocol.RenewScript)) <= before+1 }, "renewals")
	require.LessOrEqual(t, relay.Count(runsOf(protocol.RenewScript)), before+1)
}

func TestNothingRenewsAHoldThatHasEnded(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	const interval = 20 * time.Millisecond
	ends := map[string]func(t *testing.T, rdb *redis.Client, m *Mutex){
		"unlock": func(t *testing.T, _ *redis.Client, m *Mutex) { requireUnlocked(t, m) },
		"close":  func(t *testing.T, _ *redis.Client, m *Mutex) { require.NoError(t, m.session.close()) },
		"loss": func(t *testing.T, rdb *redis.Client, m *Mutex) {
			ctx := m.Context(t.Context())
			require.NoError(t, rdb.Del(t.Context(), m.Name()).Err())
			receives(t, ctx.Done())
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				relay, rdb := relayedTo(t, b)
				m := locksOn(t, rdb, WithTTL(10*time.Second), WithRenewInterval(interval)).Mutex(redistest.Key(t))
				requireLocked(t, m)
				eventually(t, "renewals", func() bool { return relay.Executed(runsOf(protocol.RenewScript)) > 2 })
				end(t, rdb, m)
				quiet(t, relay, interval)
				_ = m.Unlock()
			})
		})
	}
}

func TestAWatchdogEndsWithItsHold(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		key := redistest.Key(t)
		c := locksOn(t, rdb, WithTTL(time.Hour))
		running := func() int {
			return c.session.goroutines.Len()
		}
		idle := running()
		requireLocked(t, c.Mutex(key))
		require.Equal(t, idle, running(), "there is nothing to do for a long time")
		requireUnlocked(t, c.Mutex(key))

		ends := map[string]func(m *Mutex){
			"an unlock": func(m *Mutex) { requireUnlocked(t, m) },
			"a loss": func(m *Mutex) {
				_, err := m.ForceUnlock(t.Context())
				require.NoError(t, err)
				require.ErrorIs(t, m.Unlock(), ErrLost)
			},
		}
		for name, end := range ends {
			// The answer to a renewal does not come, so it is there for a while.
			relay.LoseReply(runsOf(protocol.RenewScript))
			m := c.Mutex(key, WithRenewInterval(20*time.Millisecond))
			requireLocked(t, m)
			eventually(t, "the watchdog", func() bool { return running() > idle })
			end(m)
			eventually(t, "the end of the watchdog after "+name, func() bool { return running() == idle })
		}
	})
}

func TestNothingRenewsAfterAFailedAcquire(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		key, direct := redistest.Key(t), b.Client(t)
		m := locksOn(t, rdb, WithRenewInterval(20*time.Millisecond)).Mutex(key)
		heldByStranger(t, direct, key, time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		require.Error(t, m.Lock(ctx))
		held, err := m.TryLock(t.Context())
		require.NoError(t, err)
		require.False(t, held)
		require.NoError(t, direct.Del(t.Context(), key).Err())

		// Redis grants, but nobody is there any more.
		lost := relay.LoseReply(runsOf(protocol.AcquireScript)).Always()
		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		go func() {
			<-lost.Caught()
			cancel()
		}()
		require.ErrorIs(t, m.Lock(ctx), context.Canceled)
		throughout(t, 100*time.Millisecond, func() bool { return relay.Count(runsOf(protocol.RenewScript)) == 0 }, "renewals")
		eventually(t, "the grant to be undone", func() bool { return direct.Exists(t.Context(), key).Val() == 0 })
	})
}

// A renewal that is on its way when the lock is unlocked must not lengthen anything.
func TestUnlockRacingARenewalLeavesNothing(t *testing.T) {
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb, WithTTL(5*time.Second), WithRenewInterval(lease.MinRenewInterval))
		m := c.Mutex(key)
		for i := range 50 {
			requireLocked(t, m)
			h := holdsOn(c.session, key)[0]
			// Unlock close to the first renewal, a little earlier or later each time.
			h.mu.Lock()
			due := protocol.RenewalDue(h.lease.Renewed(), lease.MinRenewInterval)
			h.mu.Unlock()
			at := due.Mono + time.Duration(i-40)*20*time.Microsecond
			for clock.System().Mono < at {
				time.Sleep(at - clock.System().Mono)
			}
			requireUnlocked(t, m)
			require.Equal(t, time.Duration(-2), ttlOf(rdb, key), "round %d", i)
		}
		throughout(t, 50*time.Millisecond, func() bool { return ttlOf(rdb, key) == -2 }, "nothing comes back")
	})
}

// The same with a renewal that the network delivers long after the release.
func TestALateRenewalDoesNotLengthenTheNextHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		key, direct := redistest.Key(t), b.Client(t)
		c := locksOn(t, rdb, WithTTL(time.Second)) // of which depends how long it waits for a deaf connection
		m := c.Mutex(key, WithTTL(time.Minute), WithRenewInterval(20*time.Millisecond))
		late := relay.HoldBackSilently(runsOf(protocol.RenewScript))
		requireLocked(t, m)
		late.Wait(t)
		requireUnlocked(t, m)
		fixed := c.Mutex(key, WithTTL(10*time.Second), WithoutRenewal())
		requireLocked(t, fixed)
		reply, err := late.Deliver(t.Context())
		require.NoError(t, err)
		require.Equal(t, ":0\r\n", reply)
		require.LessOrEqual(t, ttlOf(direct, key), 10*time.Second)
		requireUnlocked(t, fixed)
		requireFree(t, direct, key)
	})
}

// slowly is an interval of renewals that leaves the time to tell of what comes before the first.
const slowly = 500 * time.Millisecond

func TestHooksTellTheStoryOfALock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		t.Parallel()
		rdb, key := b.Client(t), redistest.Key(t)
		events, other := &chronicle{}, newActor(t)
		c := locksOn(t, rdb, WithHooks(events.hooks()), WithRenewInterval(slowly), WithFencing())
		stranger := locksOn(t, rdb).Mutex(key)
		other.locks(t, stranger)
		me := newActor(t)
		m := c.Mutex(key)
		locked := me.lock(t.Context(), m)
		eventually(t, "contention", func() bool { return len(events.of("contended")) == 1 })
		other.unlocks(t, stranger)
		require.NoError(t, outcomeOf(t, locked))
		eventually(t, "renewals", func() bool { return len(events.of("renewed")) > 1 })
		s, err := m.State(t.Context())
		require.NoError(t, err)
		me.locks(t, m) // a re-entry is no event
		me.unlocks(t, m)
		me.unlocks(t, m)

		require.Equal(t, []string{"contended", "acquired", "renewed", "released"}, events.names())
		contended := events.of("contended")
		require.Len(t, contended, 1)
		require.Equal(t, key, contended[0].Name)
		require.Empty(t, contended[0].Owner)
		for _, hook := range []string{"acquired", "renewed", "released"} {
			e := events.of(hook)[0]
			require.Equal(t, key, e.Name, hook)
			require.Equal(t, s.Owner, e.Owner, hook)
			require.Equal(t, s.FencingToken, e.Token, hook)
			require.Positive(t, e.Elapsed, hook)
			require.NoError(t, e.Err, hook)
		}
		require.Len(t, events.of("acquired"), 1)
		require.Len(t, events.of("released"), 1)
		require.Greater(t, events.of("released")[0].Elapsed, slowly, "how long it was held")
	})
}

func TestHooksTellOfALossAndWhy(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key, events := b.Client(t), redistest.Key(t), &chronicle{}
		m := locksOn(t, rdb, WithHooks(events.hooks()), WithRenewInterval(20*time.Millisecond)).Mutex(key)
		requireLocked(t, m)
		require.NoError(t, rdb.Del(t.Context(), key).Err())
		eventually(t, "the loss", func() bool { return len(events.of("lost")) == 1 })
		require.ErrorIs(t, m.Unlock(), ErrLost)
		require.ErrorIs(t, events.of("lost")[0].Err, lockerr.ErrNotOnRedis)
		require.Empty(t, events.of("released"), "one end is told once")
		require.NotEmpty(t, events.of("lost")[0].Owner)
	})
}

func TestHooksTellOfRenewalsThatFailed(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		t.Parallel()
		relay, rdb := relayedTo(t, b)
		key, events := redistest.Key(t), &chronicle{}
		m := locksOn(t, rdb, WithHooks(events.hooks()), WithRenewInterval(slowly)).Mutex(key)
		relay.ReplyWith("-LOADING it is early\r\n", runsOf(protocol.RenewScript)).Times(2)
		requireLocked(t, m)
		eventually(t, "a renewal", func() bool { return len(events.of("renewed")) > 0 })
		requireUnlocked(t, m)
		require.Equal(t, []string{"acquired", "renew failed", "renewed", "released"}, events.names())
		require.Len(t, events.of("renew failed"), 2)
		require.ErrorContains(t, events.of("renew failed")[0].Err, "LOADING")
	})
}

func TestAnUnansweredHoldIsLostAtItsDeadlineAndNotBefore(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		t.Parallel()
		relay, rdb := relayedTo(t, b)
		key, events := redistest.Key(t), &chronicle{}
		const ttl = 2 * time.Second
		m := locksOn(t, rdb, WithTTL(ttl), WithHooks(events.hooks())).Mutex(key)
		requireLocked(t, m)
		ctx := m.Context(t.Context())
		eventually(t, "a renewal", func() bool { return len(events.of("renewed")) > 0 })
		relay.BlackHole(true)
		receives(t, ctx.Done())
		h := holdsOn(m.session, key)[0]
		now := clock.System()
		require.LessOrEqual(t, now.Until(h.lease.Deadline()), time.Duration(0), "not before")
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		eventually(t, "the hook", func() bool { return len(events.of("lost")) == 1 })
		require.ErrorIs(t, events.of("lost")[0].Err, errLeaseOver)
		require.NotEmpty(t, events.of("renew failed"))
		require.ErrorIs(t, m.Unlock(), ErrLost)
		relay.BlackHole(false)
	})
}

// What it asks for is less than the hold has: it proves nothing about the rest.
func TestAReentryWithAShorterLeasePutsNoRenewalOff(t *testing.T) {
	inBubble(t, func(t *testing.T, rdb *redis.Client) {
		c, key := locksOn(t, rdb), redistest.Key(t)
		outer, inner := c.Mutex(key), c.Mutex(key, WithTTL(5*time.Second))
		requireLocked(t, outer)
		for range 6 {
			time.Sleep(7 * time.Second)
			requireLocked(t, inner)
			requireUnlocked(t, inner)
			require.Equal(t, 1, outer.HoldCount())
		}
		requireUnlocked(t, outer)
	})
}
