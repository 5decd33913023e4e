package relock

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

func TestMulti_TakesAllOrNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, names := b.Client(t), locktest.NamesFrom(redistest.Key(t), 3)
		c := LocksOn(t, rdb)
		m := c.MultiMutex(names)
		for busy, name := range names {
			locktest.HeldByAnother(t, rdb, name, time.Minute)
			held, err := m.TryLock(t.Context())
			require.NoError(t, err)
			require.False(t, held)
			others := slices.Delete(slices.Clone(names), busy, busy+1)
			locktest.RequireFree(t, rdb, others...)

			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			require.ErrorIs(t, m.Lock(ctx), context.DeadlineExceeded)
			cancel()
			locktest.RequireFree(t, rdb, others...)
			require.Zero(t, m.HoldCount())
			require.NoError(t, rdb.Del(t.Context(), name).Err())
		}
		locktest.RequireLocked(t, m)
		for _, name := range names {
			locktest.RequireOnRedis(t, rdb, name, locktest.FieldOf(c), 1)
			require.Positive(t, locktest.TTLOf(rdb, name))
		}
		locktest.RequireUnlocked(t, m)
		locktest.RequireFree(t, rdb, names...)
		require.Zero(t, NamesOf(c))
	})
}

func TestMulti_OrderOfNamesDoesNotMatter(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, names := b.Client(t), locktest.NamesFrom(redistest.Key(t), 2)
		c := LocksOn(t, rdb)
		one, other := c.MultiMutex(names), c.MultiMutex([]string{names[1], names[0], names[1]})
		locktest.RequireLocked(t, one)
		require.Equal(t, 1, other.HoldCount())
		locktest.RequireLocked(t, other)
		for _, name := range names {
			locktest.RequireOnRedis(t, rdb, name, locktest.FieldOf(c), 2)
		}
		locktest.RequireUnlocked(t, one)
		locktest.RequireUnlocked(t, one)
		require.ErrorIs(t, other.Unlock(), ErrNotHeld)
		locktest.RequireFree(t, rdb, names...)

		single := c.MultiMutex([]string{names[0], names[0]})
		locktest.RequireLocked(t, single)
		require.Equal(t, 1, c.Mutex(names[0]).HoldCount(), "of one name it is a Mutex")
		locktest.RequireUnlocked(t, c.Mutex(names[0]))
	})
}

func TestMulti_ExcludesAMutexOfOneOfItsNames(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, names, other := b.Client(t), locktest.NamesFrom(redistest.Key(t), 2), locktest.NewActor(t)
		mine, theirs := LocksOn(t, rdb), LocksOn(t, rdb)
		for _, c := range []*Client{mine, theirs} { // the same process, and another
			for _, name := range names {
				locktest.RequireLocked(t, mine.MultiMutex(names))
				require.False(t, other.Tries(t, c.Mutex(name)))
				waiting := other.Lock(t.Context(), c.Mutex(name))
				AwaitWaiters(t, c, name, 1)
				locktest.RequireUnlocked(t, mine.MultiMutex(names))
				require.NoError(t, locktest.OutcomeOf(t, waiting))

				held, err := mine.MultiMutex(names).TryLock(t.Context())
				require.NoError(t, err)
				require.False(t, held)
				other.Unlocks(t, c.Mutex(name))
			}
		}
		locktest.RequireFree(t, rdb, names...)
	})
}

func TestMulti_OppositeOrdersDoNotDeadlock(t *testing.T) {
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, names := b.Client(t), locktest.NamesFrom(redistest.Key(t), 3)
		var all sync.WaitGroup
		counter, errs := 0, make(chan error, 1000)
		const each, rounds = 4, 15
		for range 2 {
			c := LocksOn(t, rdb)
			for i := range each {
				mine := slices.Clone(names)
				if i%2 == 0 {
					slices.Reverse(mine)
				}
				all.Go(func() {
					for range rounds {
						errs <- c.MultiMutex(mine).Do(t.Context(), func(context.Context) error {
							counter++ // a data race, if two were in here
							return nil
						})
					}
				})
			}
			all.Go(func() { // and an owner that wants a part
				for range rounds {
					errs <- c.MultiMutex(names[1:]).Do(t.Context(), func(context.Context) error {
						counter++
						return nil
					})
				}
			})
		}
		all.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		require.Equal(t, 2*(each+1)*rounds, counter)
		locktest.RequireFree(t, rdb, names...)
	})
}

// requireCounts requires that c's calling goroutine holds names so many times; 0 is free.
func requireCounts(t *testing.T, rdb redis.UniversalClient, c *Client, names []string, counts ...int) {
	t.Helper()
	for i, count := range counts {
		require.Equal(t, count, c.Mutex(names[i]).HoldCount(), "%s here", names[i])
		if count == 0 {
			locktest.RequireFree(t, rdb, names[i])
			continue
		}
		locktest.RequireOnRedis(t, rdb, names[i], locktest.FieldOf(c), count)
	}
}

func TestMulti_OverlapIsCountedPerName(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, names := b.Client(t), locktest.NamesFrom(redistest.Key(t), 3)
		c := LocksOn(t, rdb)
		a, ab, bc := c.Mutex(names[0]), c.MultiMutex(names[:2]), c.MultiMutex(names[1:])
		counts := func(n ...int) { t.Helper(); requireCounts(t, rdb, c, names, n...) }

		// A part first, then all.
		locktest.RequireLocked(t, a)
		require.Zero(t, ab.HoldCount())
		require.ErrorIs(t, ab.Unlock(), ErrNotHeld, "it is a's level")
		locktest.RequireLocked(t, ab)
		counts(2, 1, 0)
		require.Equal(t, 1, ab.HoldCount())
		locktest.RequireUnlocked(t, a)
		counts(1, 1, 0)
		locktest.RequireUnlocked(t, ab)
		counts(0, 0, 0)

		// All first, then a part.
		locktest.RequireLocked(t, ab)
		locktest.RequireLocked(t, a)
		counts(2, 1, 0)
		locktest.RequireUnlocked(t, ab)
		counts(1, 0, 0)
		require.Zero(t, ab.HoldCount())
		locktest.RequireUnlocked(t, a)
		counts(0, 0, 0)

		// Neither contains the other.
		locktest.RequireLocked(t, ab)
		locktest.RequireLocked(t, bc)
		counts(1, 2, 1)
		locktest.RequireUnlocked(t, ab)
		counts(0, 1, 1)
		locktest.RequireUnlocked(t, bc)
		counts(0, 0, 0)
		require.Zero(t, NamesOf(c))
	})
}

func TestMulti_NameUnlockedEarlyGoesToItsNextWaiter(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, names, other := b.Client(t), locktest.NamesFrom(redistest.Key(t), 2), locktest.NewActor(t)
		c := LocksOn(t, rdb, WithSafetyPoll(time.Hour))
		locktest.RequireLocked(t, c.MultiMutex(names))
		locktest.RequireLocked(t, c.Mutex(names[0]))
		waiting := other.Lock(t.Context(), c.Mutex(names[1]))
		AwaitWaiters(t, c, names[1], 1)
		locktest.RequireUnlocked(t, c.MultiMutex(names))
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		require.Equal(t, 1, c.Mutex(names[0]).HoldCount())
		other.Unlocks(t, c.Mutex(names[1]))
		locktest.RequireUnlocked(t, c.Mutex(names[0]))
		locktest.RequireFree(t, rdb, names...)
	})
}

func TestMulti_FailedOverlapLeavesExistingLevels(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, names := b.Client(t), locktest.NamesFrom(redistest.Key(t), 2)
		c := LocksOn(t, rdb)
		locktest.RequireLocked(t, c.Mutex(names[0]))
		locktest.HeldByAnother(t, rdb, names[1], time.Minute)
		held, err := c.MultiMutex(names).TryLock(t.Context())
		require.NoError(t, err)
		require.False(t, held)
		locktest.RequireOnRedis(t, rdb, names[0], locktest.FieldOf(c), 1)
		// The time may be up while Redis counts the level, so its count is right only after
		// the next command.
		require.ErrorIs(t, c.MultiMutex(names, WithWaitTimeout(20*time.Millisecond)).Lock(t.Context()), ErrTimeout)
		require.Equal(t, 1, c.Mutex(names[0]).HoldCount())
		locktest.RequireUnlocked(t, c.Mutex(names[0]))
		locktest.RequireFree(t, rdb, names[0])
	})
}

func TestMulti_IsRenewedByOneScript(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		names, events := locktest.NamesFrom(redistest.Key(t), 5), &chronicle{}
		m := LocksOn(t, rdb, WithRenewInterval(30*time.Millisecond), WithHooks(events.Hooks())).MultiMutex(names)
		locktest.RequireLocked(t, m)
		redistest.Eventually(t, "renewals", func() bool { return len(events.Of("renewed")) >= 3 })
		locktest.RequireUnlocked(t, m)
		renewals := 0
		for _, e := range relay.Log() {
			if !locktest.RunsOf(protocol.RenewScript)(e.Command) {
				continue
			}
			renewals++
			require.Equal(t, "5", e.Command.Arg(2), "keys")
			for _, name := range names {
				require.True(t, e.Command.Has(name))
			}
		}
		require.LessOrEqual(t, renewals, len(events.Of("renewed"))+1)
		require.Equal(t, 1, relay.Executed(locktest.RunsOf(protocol.AcquireScript)))
		require.Equal(t, 1, relay.Executed(locktest.RunsOf(protocol.ReleaseScript)))
	})
}

func TestMulti_LossOfOneNameIsTheLossOfAll(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, names := b.Client(t), locktest.NamesFrom(redistest.Key(t), 3)
		c := LocksOn(t, rdb, WithRenewInterval(20*time.Millisecond))
		m := c.MultiMutex(names)
		locktest.RequireLocked(t, m)
		ctx := m.Context(t.Context())
		require.NoError(t, rdb.Del(t.Context(), names[1]).Err())
		redistest.Receive(t, ctx.Done())
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		require.Zero(t, m.HoldCount())
		require.Zero(t, c.Mutex(names[0]).HoldCount())
		require.ErrorIs(t, m.Unlock(), ErrLost)
		redistest.Eventually(t, "the others to be released", func() bool {
			return rdb.Exists(t.Context(), names...).Val() == 0
		})
	})
}

func TestMulti_IsHandedToAWaiterForTheSameNames(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		names, next := locktest.NamesFrom(redistest.Key(t), 2), locktest.NewActor(t)
		c := LocksOn(t, rdb)
		m := c.MultiMutex(names)
		locktest.RequireLocked(t, m)
		waiting := next.Lock(t.Context(), m)
		AwaitWaiters(t, c, names[0], 1)
		locktest.RequireUnlocked(t, m)
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		require.Equal(t, 1, relay.Executed(locktest.RunsOf(protocol.RenameScript)))
		for _, name := range names {
			s, err := c.Mutex(name).State(t.Context())
			require.NoError(t, err)
			require.NotEqual(t, locktest.FieldOf(c), s.Owner)
		}
		next.Unlocks(t, m)
		locktest.RequireFree(t, b.Client(t), names...)
	})
}

func TestMulti_IsNotHandedPastAWaiterForOneName(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		for i := range 2 {
			rdb, names := b.Client(t), locktest.NamesFrom(redistest.Key(t), 2)
			c, single, both := LocksOn(t, rdb), locktest.NewActor(t), locktest.NewActor(t)
			m, part := c.MultiMutex(names), c.Mutex(names[i])
			locktest.RequireLocked(t, m)
			first := single.Lock(t.Context(), part)
			AwaitWaiters(t, c, names[i], 1)
			second := both.Lock(t.Context(), m)
			redistest.Eventually(t, "the second waiter", func() bool { return len(holdsOn(c.session, names[i])) == 3 && WaitersOn(c, names[i]) == 2 })
			locktest.RequireUnlocked(t, m)
			require.NoError(t, locktest.OutcomeOf(t, first), "who came first")
			locktest.GoesOn(t, second)
			single.Unlocks(t, part)
			require.NoError(t, locktest.OutcomeOf(t, second))
			both.Unlocks(t, m)
			locktest.RequireFree(t, rdb, names...)
		}
	})
}

// A waiter for several names holds none of them: so it is in no one's way.
func TestMulti_WaitingBlocksNobody(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, names := b.Client(t), locktest.NamesFrom(redistest.Key(t), 2)
		c, both := LocksOn(t, rdb), locktest.NewActor(t)
		locktest.RequireLocked(t, c.Mutex(names[1]))
		waiting := both.Lock(t.Context(), c.MultiMutex(names))
		AwaitWaiters(t, c, names[0], 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		// names[0] is free, and who waits for both cannot have it before we are through.
		err := c.Mutex(names[0]).Lock(ctx)
		if err == nil {
			locktest.RequireUnlocked(t, c.Mutex(names[0]))
		}
		locktest.RequireUnlocked(t, c.Mutex(names[1]))
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		both.Unlocks(t, c.MultiMutex(names))
		require.NoError(t, err)
	})
}

// Where every name is always in use, an owner that needs two at once has to be let through.
func TestMulti_IsServedAmongManyWaitersForItsNames(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, names := b.Client(t), locktest.NamesFrom(redistest.Key(t), 2)
		c := LocksOn(t, rdb)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		var singles, multis atomic.Int64
		enough := make(chan struct{})
		use := func(m *Mutex, n *atomic.Int64) {
			for {
				select {
				case <-enough:
					return
				default:
				}
				if err := m.Lock(ctx); err != nil {
					t.Error(err)
					return
				}
				n.Add(1)
				if err := m.Unlock(); err != nil {
					t.Error(err)
				}
			}
		}
		for range 8 {
			wg.Go(func() { use(c.Mutex(names[0]), &singles) })
			wg.Go(func() { use(c.Mutex(names[1]), &singles) })
		}
		began := time.Now()
		for range 4 {
			wg.Go(func() { use(c.MultiMutex(names), &multis) })
		}
		redistest.Eventually(t, "twenty of them", func() bool { return multis.Load() >= 20 || ctx.Err() != nil })
		close(enough)
		wg.Wait()
		t.Logf("%d multi, %d single in %v", multis.Load(), singles.Load(), time.Since(began))
		require.GreaterOrEqual(t, multis.Load(), int64(20))
	})
}

func TestMulti_NamesOfDifferentSlotsAreRefusedUnsent(t *testing.T) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	t.Cleanup(func() { _ = rdb.Close() })
	c := LocksOn(t, rdb)
	for _, names := range [][]string{{"a", "b"}, {"{x}:a", "{y}:a"}, {"{x}:a", "x:b"}} {
		require.ErrorIs(t, c.MultiMutex(names).Lock(t.Context()), ErrInvalidName, "%v", names)
		require.ErrorIs(t, c.MultiMutex(names).Unlock(), ErrInvalidName)
	}
	for _, names := range [][]string{{"{x}:a", "{x}:b"}, {"{x}:a", "x"}, {"a", "a"}} {
		require.ErrorIs(t, c.MultiMutex(names).Unlock(), ErrNotHeld, "%v share a slot", names)
	}
}

func TestMulti_KeyWithoutLevelsIsFreedThoughUnlockFoundTheHoldBusy(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		const ttl = time.Minute
		c, rival := LocksOn(t, backend.Client(t), WithTTL(ttl)), LocksOn(t, backend.Client(t))
		key := redistest.Key(t)
		first, second := c.Mutex(key+"a"), rival.Mutex(key+"b", WithWaitTimeout(locktest.SoonEnough))
		both := c.MultiMutex([]string{key + "a", key + "b"}, WithUnlockTimeout(10*time.Millisecond))
		locktest.RequireLocked(t, both)
		locktest.RequireLocked(t, first)
		h := first.find(nil, first.owner(), first.target)[0]
		require.True(t, h.slot.take(t.Context())) // as a renewal does that Redis does not answer
		require.ErrorContains(t, both.Unlock(), "Redis has not confirmed the new count yet")
		require.Zero(t, both.HoldCount())
		require.Equal(t, 1, first.HoldCount())
		h.slot.free()
		require.NoError(t, second.Lock(t.Context()), "it is free long before the TTL")
		locktest.RequireUnlocked(t, second)
		locktest.RequireUnlocked(t, first)
	})
}

func TestMulti_RestOutlivesAnUnansweredPartialUnlock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		direct, names := b.Client(t), locktest.NamesFrom(redistest.Key(t), 2)
		c := LocksOn(t, rdb, WithRenewInterval(lease.MinRenewInterval))
		one, both := c.Mutex(names[0]), c.MultiMutex(names, WithUnlockTimeout(300*time.Millisecond))
		locktest.RequireLocked(t, both)
		locktest.RequireLocked(t, one)
		silence := relay.DropReply(locktest.RunsOf(protocol.ReleaseScript)).Always()
		require.ErrorContains(t, both.Unlock(), "Redis did not confirm the new count")
		silence.Remove()
		renewals := relay.Executed(locktest.RunsOf(protocol.RenewScript))
		redistest.Eventually(t, "renewals", func() bool { return relay.Executed(locktest.RunsOf(protocol.RenewScript)) > renewals+1 })
		require.Equal(t, 1, one.HoldCount())
		redistest.Eventually(t, "the other name free", func() bool { return direct.Exists(t.Context(), names[1]).Val() == 0 })
		locktest.RequireLocked(t, c.Mutex(names[1]))
		locktest.RequireUnlocked(t, c.Mutex(names[1]))
		locktest.RequireUnlocked(t, one)
		locktest.RequireFree(t, direct, names...)
	})
}
