package relock

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

func TestWatchdog_KeepsALockForManyLeases(t *testing.T) {
	t.Parallel()
	locktest.OnEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
		key := redistest.Key(t)
		m := LocksOn(t, rdb, WithTTL(ttl)).Mutex(key)
		locktest.RequireLocked(t, m)
		ctx := m.Context(t.Context())
		locktest.Throughout(t, 3*ttl, func() bool { return locktest.TTLOf(rdb, key) > 0 && m.HoldCount() == 1 }, "renewed")
		require.NoError(t, ctx.Err())
		locktest.RequireUnlocked(t, m)
		locktest.RequireFree(t, rdb, key)
	})
}

func TestWatchdog_KeepsALockForHours(t *testing.T) {
	redistest.Slow(t)
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		key, events := redistest.Key(t), &chronicle{}
		m := LocksOn(t, rdb, WithHooks(events.Hooks())).Mutex(key)
		locktest.RequireLocked(t, m)
		time.Sleep(time.Hour + time.Second)
		require.Equal(t, 1, m.HoldCount())
		require.Greater(t, locktest.TTLOf(rdb, key), 19*time.Second)
		require.Len(t, events.Of("renewed"), 360, "one every third of the TTL")
		locktest.RequireUnlocked(t, m)
		time.Sleep(time.Hour)
		require.Len(t, events.Of("renewed"), 360)
		require.Equal(t, []string{"acquired", "renewed", "released"}, events.Names())
		require.Equal(t, time.Hour+time.Second, events.Of("released")[0].Elapsed)
		locktest.RequireFree(t, rdb, key)
	})
}

func TestWatchdog_ObservesTheRenewInterval(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		events := &chronicle{}
		c := LocksOn(t, rdb, WithHooks(events.Hooks()))
		m := c.Mutex(redistest.Key(t), WithRenewInterval(2*time.Second))
		locktest.RequireLocked(t, m)
		time.Sleep(time.Minute + time.Second)
		require.Len(t, events.Of("renewed"), 30)
		locktest.RequireLocked(t, c.Mutex(m.Name(), WithRenewInterval(time.Second)))
		time.Sleep(time.Minute + time.Second/2)
		require.InDelta(t, 90, len(events.Of("renewed")), 1, "the shortest of the levels' intervals")
		locktest.RequireUnlocked(t, m)
		locktest.RequireUnlocked(t, m)
	})
}

func TestWatchdog_FixedLeaseIsLostBeforeTheKeyIsGone(t *testing.T) {
	t.Parallel()
	locktest.OnEveryClock(t, func(t *testing.T, rdb *redis.Client, ttl time.Duration) {
		key, events := redistest.Key(t), &chronicle{}
		// A long lease has a margin that even a busy machine keeps.
		ttl *= 2
		m := LocksOn(t, rdb, WithTTL(ttl), WithHooks(events.Hooks())).Mutex(key, WithoutRenewal())
		began := time.Now()
		locktest.RequireLocked(t, m)
		ctx := m.Context(t.Context())
		redistest.Receive(t, ctx.Done())
		require.GreaterOrEqual(t, time.Since(began), ttl*9/10, "not long before")
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		require.Zero(t, m.HoldCount())
		h := holdsOn(m.session, key)[0]
		require.LessOrEqual(t, h.lease.Deadline().Mono-h.lease.Acquired().Mono, ttl-clock.Margin(ttl), "the deadline is before the end of the lease")
		require.ErrorIs(t, m.Unlock(), ErrLost)
		require.Empty(t, events.Of("renewed"))
		redistest.Eventually(t, "the key to go", func() bool { return locktest.TTLOf(rdb, key) < 0 })
	})
}

// In a bubble nothing takes time, so what is left of the lease at the loss is the margin.
func TestWatchdog_ContextOfALostHoldEndsBeforeTheKeyIsGone(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		key := redistest.Key(t)
		m := LocksOn(t, rdb, WithTTL(10*time.Second)).Mutex(key, WithoutRenewal())
		locktest.RequireLocked(t, m)
		left := make(chan time.Duration, 1)
		context.AfterFunc(m.Context(t.Context()), func() { left <- locktest.TTLOf(rdb, key) })
		locked := time.Now()
		ctx := m.Context(t.Context())
		redistest.Receive(t, ctx.Done())
		require.Equal(t, 9900*time.Millisecond, time.Since(locked))
		// The loss is also sent to Redis, in the background: the key may be gone by now,
		// though not because its lease is over.
		require.Contains(t, []time.Duration{100 * time.Millisecond, -2}, redistest.Receive(t, left))
		require.ErrorIs(t, m.Unlock(), ErrLost)
	})
}

func TestWatchdog_MaxHoldBoundsAForgottenHolder(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		key, events := redistest.Key(t), &chronicle{}
		m := LocksOn(t, rdb, WithTTL(10*time.Second), WithHooks(events.Hooks())).Mutex(key, WithMaxHold(time.Minute))
		locktest.RequireLocked(t, m)
		locked := time.Now()
		ctx := m.Context(t.Context())
		time.Sleep(59 * time.Second)
		require.NoError(t, ctx.Err())
		redistest.Receive(t, ctx.Done())
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		require.Greater(t, time.Since(locked), time.Minute)
		require.LessOrEqual(t, time.Since(locked), 70*time.Second)
		last := len(events.Of("renewed"))
		time.Sleep(time.Minute)
		require.Len(t, events.Of("renewed"), last)
		locktest.RequireFree(t, rdb, key)
		require.ErrorIs(t, m.Unlock(), ErrLost)
	})
}

// quiet requires that no renewal is sent for several intervals.
func quiet(t *testing.T, relay *redistest.Relay, interval time.Duration) {
	t.Helper()
	// What was on its way when the hold ended may still arrive.
	before := -1
	redistest.Eventually(t, "the relay to be still", func() bool {
		last := before
		before = relay.Count(locktest.RunsOf(protocol.RenewScript))
		return before == last
	})
	locktest.Throughout(t, 5*interval, func() bool { return relay.Count(locktest.RunsOf(protocol.RenewScript)) <= before+1 }, "renewals")
	require.LessOrEqual(t, relay.Count(locktest.RunsOf(protocol.RenewScript)), before+1)
}

func TestWatchdog_RenewsNoEndedHold(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	const interval = 20 * time.Millisecond
	ends := map[string]func(t *testing.T, rdb *redis.Client, m *Mutex){
		"unlock": func(t *testing.T, _ *redis.Client, m *Mutex) { locktest.RequireUnlocked(t, m) },
		"close":  func(t *testing.T, _ *redis.Client, m *Mutex) { require.NoError(t, m.session.close()) },
		"loss": func(t *testing.T, rdb *redis.Client, m *Mutex) {
			ctx := m.Context(t.Context())
			require.NoError(t, rdb.Del(t.Context(), m.Name()).Err())
			redistest.Receive(t, ctx.Done())
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				relay, rdb := locktest.RelayedTo(t, b)
				m := LocksOn(t, rdb, WithTTL(10*time.Second), WithRenewInterval(interval)).Mutex(redistest.Key(t))
				locktest.RequireLocked(t, m)
				redistest.Eventually(t, "renewals", func() bool { return relay.Executed(locktest.RunsOf(protocol.RenewScript)) > 2 })
				end(t, rdb, m)
				quiet(t, relay, interval)
				_ = m.Unlock()
			})
		})
	}
}

func TestWatchdog_EndsWithItsHold(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		key := redistest.Key(t)
		c := LocksOn(t, rdb, WithTTL(time.Hour))
		running := func() int {
			return c.session.goroutines.Len()
		}
		idle := running()
		locktest.RequireLocked(t, c.Mutex(key))
		require.Equal(t, idle, running(), "there is nothing to do for a long time")
		locktest.RequireUnlocked(t, c.Mutex(key))

		ends := map[string]func(m *Mutex){
			"an unlock": func(m *Mutex) { locktest.RequireUnlocked(t, m) },
			"a loss": func(m *Mutex) {
				_, err := m.ForceUnlock(t.Context())
				require.NoError(t, err)
				require.ErrorIs(t, m.Unlock(), ErrLost)
			},
		}
		for name, end := range ends {
			// The answer to a renewal does not come, so it is there for a while.
			relay.LoseReply(locktest.RunsOf(protocol.RenewScript))
			m := c.Mutex(key, WithRenewInterval(20*time.Millisecond))
			locktest.RequireLocked(t, m)
			redistest.Eventually(t, "the watchdog", func() bool { return running() > idle })
			end(m)
			redistest.Eventually(t, "the end of the watchdog after "+name, func() bool { return running() == idle })
		}
	})
}

func TestWatchdog_RenewsNothingAfterAFailedLock(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		key, direct := redistest.Key(t), b.Client(t)
		m := LocksOn(t, rdb, WithRenewInterval(20*time.Millisecond)).Mutex(key)
		locktest.HeldByAnother(t, direct, key, time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		require.Error(t, m.Lock(ctx))
		held, err := m.TryLock(t.Context())
		require.NoError(t, err)
		require.False(t, held)
		require.NoError(t, direct.Del(t.Context(), key).Err())

		// Redis grants, but nobody is there any more.
		lost := relay.LoseReply(locktest.RunsOf(protocol.AcquireScript)).Always()
		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		go func() {
			<-lost.Caught()
			cancel()
		}()
		require.ErrorIs(t, m.Lock(ctx), context.Canceled)
		locktest.Throughout(t, 100*time.Millisecond, func() bool { return relay.Count(locktest.RunsOf(protocol.RenewScript)) == 0 }, "renewals")
		redistest.Eventually(t, "the grant to be undone", func() bool { return direct.Exists(t.Context(), key).Val() == 0 })
	})
}

// A renewal that is on its way when the lock is unlocked must not lengthen anything.
func TestWatchdog_UnlockRacingARenewalLeavesNothing(t *testing.T) {
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := LocksOn(t, rdb, WithTTL(5*time.Second), WithRenewInterval(lease.MinRenewInterval))
		m := c.Mutex(key)
		for i := range 50 {
			locktest.RequireLocked(t, m)
			h := holdsOn(c.session, key)[0]
			// Unlock close to the first renewal, a little earlier or later each time.
			h.mu.Lock()
			due := lease.RenewalDue(sentAt(h.lease.Deadline(), 5*time.Second), lease.MinRenewInterval)
			h.mu.Unlock()
			at := due.Mono + time.Duration(i-40)*20*time.Microsecond
			for clock.System().Mono < at {
				time.Sleep(at - clock.System().Mono)
			}
			locktest.RequireUnlocked(t, m)
			require.Equal(t, time.Duration(-2), locktest.TTLOf(rdb, key), "round %d", i)
		}
		locktest.Throughout(t, 50*time.Millisecond, func() bool { return locktest.TTLOf(rdb, key) == -2 }, "nothing comes back")
	})
}

// The same with a renewal that the network delivers long after the release.
func TestWatchdog_DelayedRenewalDoesNotLengthenTheNextHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		key, direct := redistest.Key(t), b.Client(t)
		c := LocksOn(t, rdb, WithTTL(time.Second)) // which decides how long it waits for a connection without answers
		m := c.Mutex(key, WithTTL(time.Minute), WithRenewInterval(20*time.Millisecond))
		late := relay.HoldBackSilently(locktest.RunsOf(protocol.RenewScript))
		locktest.RequireLocked(t, m)
		late.Wait(t)
		locktest.RequireUnlocked(t, m)
		fixed := c.Mutex(key, WithTTL(10*time.Second), WithoutRenewal())
		locktest.RequireLocked(t, fixed)
		reply, err := late.Deliver(t.Context())
		require.NoError(t, err)
		require.Equal(t, ":0\r\n", reply)
		require.LessOrEqual(t, locktest.TTLOf(direct, key), 10*time.Second)
		locktest.RequireUnlocked(t, fixed)
		locktest.RequireFree(t, direct, key)
	})
}

// slowly is an interval of renewals that leaves the time to report what comes before the first.
const slowly = 500 * time.Millisecond

func TestWatchdog_UnansweredHoldIsLostExactlyAtItsDeadline(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		key, events := redistest.Key(t), &chronicle{}
		const ttl = 2 * time.Second
		m := LocksOn(t, rdb, WithTTL(ttl), WithHooks(events.Hooks())).Mutex(key)
		locktest.RequireLocked(t, m)
		ctx := m.Context(t.Context())
		redistest.Eventually(t, "a renewal", func() bool { return len(events.Of("renewed")) > 0 })
		relay.BlackHole(true)
		redistest.Receive(t, ctx.Done())
		h := holdsOn(m.session, key)[0]
		now := clock.System()
		require.LessOrEqual(t, now.Until(h.lease.Deadline()), time.Duration(0), "not before")
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		redistest.Eventually(t, "the hook", func() bool { return len(events.Of("lost")) == 1 })
		require.ErrorIs(t, events.Of("lost")[0].Err, errLeaseOver)
		require.NotEmpty(t, events.Of("renew failed"))
		require.ErrorIs(t, m.Unlock(), ErrLost)
		relay.BlackHole(false)
	})
}

// What it asks for is less than the hold has: it proves nothing about the rest.
func TestWatchdog_ReentryWithAShorterLeasePostponesNoRenewal(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		c, key := LocksOn(t, rdb), redistest.Key(t)
		outer, inner := c.Mutex(key), c.Mutex(key, WithTTL(5*time.Second))
		locktest.RequireLocked(t, outer)
		for range 6 {
			time.Sleep(7 * time.Second)
			locktest.RequireLocked(t, inner)
			locktest.RequireUnlocked(t, inner)
			require.Equal(t, 1, outer.HoldCount())
		}
		locktest.RequireUnlocked(t, outer)
	})
}

// However close the end of the lease is when a renewal is sent: the context of the hold is
// cancelled before the key expires, and the margin between them is 5 ms with short leases.
func TestWatchdog_RenewalIsNotAwaitedBeyondTheDeadline(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, backend)
		m := LocksOn(t, rdb, WithTTL(time.Minute)).Mutex(redistest.Key(t)) // no other renewal meanwhile
		locktest.RequireLocked(t, m)
		rule := relay.Block(locktest.RunsOf(protocol.RenewScript)).Always()
		h := holdsOn(m.session, m.Name())[0]
		redistest.Eventually(t, "a renewal that ends in time", func() bool {
			h.mu.Lock()
			endsAt(&h.lease, h.session.now().After(2*time.Millisecond))
			h.mu.Unlock()
			began := time.Now()
			h.renew()
			return time.Since(began) < redisexec.MinPatience
		})
		require.ErrorIs(t, m.Unlock(), ErrLost)
		rule.Release()
	})
}

// On a Cluster a command has keys of one slot.
func TestWatchdog_ClusterRenewsOnlyLocksOfOneHashTagTogether(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		prefix   string
		together bool
	}{"one tag": {"{tag}", true}, "no tag": {"", false}} {
		t.Run(name, func(t *testing.T) {
			redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
				relay, _ := locktest.RelayedTo(t, b)
				rdb := redistest.NewOneMaster(t, relay.Addr)
				rdb.ClusterClient.Options().ReadTimeout = fleetPatience // before a connection is made
				kind := func(c *Client, key string, opts ...MutexOption) *Mutex {
					return c.Mutex(of.prefix+key, opts...)
				}
				w := newFleetOn(t, rdb.ClusterClient, relay, b.Client(t), kind, 4)
				if of.together {
					w.together()
					w.requireBundles()
				} else {
					first := w.relay.Block(locktest.RunsOf(protocol.RenewScript))
					var all sync.WaitGroup
					for _, h := range w.holds {
						all.Go(h.renew)
					}
					redistest.Eventually(t, "all to begin", func() bool { return w.begun.Load() == 4 })
					first.Release()
					all.Wait()
					alone, batches := w.sent()
					require.Equal(t, [2]int{4, 0}, [2]int{alone, batches})
				}
				w.requireRenewed(0, 1, 2, 3)
			})
		})
	}
}

// Replicas confirm each by itself.
func TestWatchdog_RenewalConfirmedByReplicasIsSentAlone(t *testing.T) {
	w := newFleet(t, redistest.Mini(t), bundled["plain"], 1)
	h := w.holds[0]
	h.mu.Lock()
	defer h.mu.Unlock()
	require.True(t, h.renewOptions().Bundled)
	confirmed := settings{replicas: redisexec.Replicas{N: 1, Timeout: time.Second}}
	h.locks.open = append(h.locks.open, openLock{settings: &confirmed, target: h.target}.from(w.c.session.now()))
	require.False(t, h.renewOptions().Bundled)
}

// A hold whose lease was over here is lost, though its key is there yet: nothing of it is kept.
func TestWatchdog_ExpiredHoldKeepsNoMinHold(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	c, key := LocksOn(t, rdb), redistest.Key(t)
	m := c.Mutex(key, WithMinHold(time.Hour))
	locktest.RequireLocked(t, m)
	h := holdsOn(c.session, key)[0]
	h.mu.Lock()
	endsAt(&h.lease, c.session.now())
	h.mu.Unlock()
	require.ErrorIs(t, m.Unlock(), ErrLost)
	redistest.Eventually(t, "free", func() bool { return rdb.Exists(t.Context(), key).Val() == 0 })
}

// A waiter whose request was cut short leaves the time of that behind. Without an answer since, a TryLock that does not
// ask would report an outage.
func TestWatchdog_AnsweredRenewalEndsAnOutage(t *testing.T) {
	t.Parallel()
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		c := LocksOn(t, rdb, WithTTL(3*time.Second))
		m := c.Mutex("lock")
		for name, answered := range map[string]func(){
			"a renewal": func() { time.Sleep(2 * time.Second) },
			"a re-entry": func() {
				locktest.RequireLocked(t, m)
				locktest.RequireUnlocked(t, m)
			},
		} {
			locktest.RequireLocked(t, m)
			g := holdOf(m).queueEntries[0].gate
			g.asks(c.session.now())
			answered()
			_, out := g.lastKnown(c.session.now())
			require.Zero(t, out, name)
			locktest.RequireUnlocked(t, m)
		}
	})
}
