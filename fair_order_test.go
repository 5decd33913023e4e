package relock_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redistest"
)

// A dead place is dropped by the script that finds the lock free; the clock that decides is Redis'.
func TestFairOrder_DoesNotDependOnClientClocks(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		var handles []locktest.Mutex
		for _, ahead := range []time.Duration{-10 * time.Minute, 0, 10 * time.Minute} {
			c, clocks := relock.LocksWithClock(t, b.Client(t))
			clocks.Set(ahead)
			handles = append(handles, c.FairMutex(key))
		}
		holder := locktest.NewActor(t)
		holder.Locks(t, handles[1])
		var r locktest.Roll
		all := locktest.QueueUp(t, rdb, key, 12, &r, handles...)
		holder.Unlocks(t, handles[1])
		all.Wait()
		require.Equal(t, locktest.UpTo(12), r.Names)
		locktest.RequireFairFree(t, rdb, key)
	})
}

// A clock that is set while a waiter waits can make a message look too late: then it asks,
// and still keeps its place.
func TestFairOrder_SurvivesClocksThatAreSet(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key, holder := b.Client(t), redistest.Key(t), locktest.NewActor(t)
		ahead, aheadClocks := relock.LocksWithClock(t, b.Client(t))
		behind, behindClocks := relock.LocksWithClock(t, b.Client(t))
		holder.Locks(t, behind.FairMutex(key))
		var r locktest.Roll
		all := locktest.QueueUp(t, rdb, key, 12, &r, ahead.FairMutex(key), behind.FairMutex(key))
		aheadClocks.Set(10 * time.Minute)
		behindClocks.Set(-10 * time.Minute)
		holder.Unlocks(t, behind.FairMutex(key))
		all.Wait()
		require.Equal(t, locktest.UpTo(12), r.Names)
		locktest.RequireFairFree(t, rdb, key)
	})
}

func TestFairOrder_DoesNotDependOnTheServersClock(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	b := redistest.Mini(t)
	now := time.Now()
	b.Miniredis.ClockTTL(false) // TIME is what is set here
	rdb, key, holder := b.Client(t), redistest.Key(t), locktest.NewActor(t)
	clients := []*relock.Client{relock.LocksOn(t, b.Client(t)), relock.LocksOn(t, b.Client(t))}
	b.Miniredis.SetTime(now)
	holder.Locks(t, clients[0].FairMutex(key))
	var r locktest.Roll
	var all sync.WaitGroup
	for i := range 8 {
		// Each comes minutes before the one who came before it.
		b.Miniredis.SetTime(now.Add(-time.Duration(i) * 5 * time.Minute))
		m := clients[i%2].FairMutex(key)
		all.Go(func() {
			if err := m.Do(context.Background(), func(context.Context) error { r.Call(i); return nil }); err != nil {
				t.Error(err)
			}
		})
		locktest.AwaitFairQueue(t, rdb, key, i+1)
	}
	holder.Unlocks(t, clients[0].FairMutex(key))
	all.Wait()
	require.Equal(t, locktest.UpTo(8), r.Names)
	locktest.RequireFairFree(t, rdb, key)
}

// Half of the waiters give up, wherever they stand; the others are served in their order.
func TestFairOrder_SurvivesWaitersThatGiveUp(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		const n = 24
		rdb, key, holder := b.Client(t), redistest.Key(t), locktest.NewActor(t)
		clients := []*relock.Client{relock.LocksOn(t, b.Client(t)), relock.LocksOn(t, b.Client(t)), relock.LocksOn(t, b.Client(t))}
		holder.Locks(t, clients[0].FairMutex(key))
		impatient, cancel := context.WithCancel(context.Background())
		defer cancel()
		var r locktest.Roll
		var all sync.WaitGroup
		for i := range n {
			m, ctx := clients[i%3].FairMutex(key), context.Background()
			if i%2 == 1 {
				ctx = impatient
			}
			all.Go(func() {
				err := m.Do(ctx, func(context.Context) error { r.Call(i); return nil })
				if i%2 == 0 && err != nil {
					t.Errorf("waiter %d: %v", i, err)
				}
			})
			locktest.AwaitFairQueue(t, rdb, key, i+1)
		}
		cancel()
		locktest.AwaitFairQueue(t, rdb, key, n/2)
		holder.Unlocks(t, clients[0].FairMutex(key))
		all.Wait()
		var want []int
		for i := 0; i < n; i += 2 {
			want = append(want, i)
		}
		require.Equal(t, want, r.Names)
		locktest.RequireFairFree(t, rdb, key)
	})
}

// While a holder takes its time, other processes cost their polls and nothing else.
func TestFairOrder_ManyProcessesBehindASlowHolderOnlyPoll(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	relay, rdb := locktest.RelayedTo(t, redistest.Redis(t))
	const processes, poll = 20, 600 * time.Millisecond
	key, holder := redistest.Key(t), locktest.NewActor(t)
	m := relock.LocksOn(t, rdb).FairMutex(key)
	holder.Locks(t, m)
	var all sync.WaitGroup
	for i := range processes {
		c := relock.LocksOn(t, rdb, relock.WithSafetyPoll(poll))
		all.Go(func() {
			if err := c.FairMutex(key).Do(context.Background(), func(context.Context) error { return nil }); err != nil {
				t.Error(err)
			}
		})
		locktest.AwaitFairQueue(t, rdb, key, i+1)
	}
	locktest.AwaitStillness(t, relay)
	began := time.Now()
	relay.ResetLog()
	redistest.Eventually(t, "three polls each", func() bool { return relay.Count(redistest.Scripts) >= 3*processes })
	interval := relock.LocksOn(t, rdb, relock.WithSafetyPoll(poll)).FairMutex(key).Terms().EntryPoll()
	require.Equal(t, 2*poll/3, interval)
	// Each sleeps for at least half of the interval, and the first sleep may be nearly over.
	require.GreaterOrEqual(t, time.Since(began), interval, "too many")
	for _, e := range relay.Log() {
		if redistest.Scripts(e.Command) {
			require.True(t, locktest.RunsOf(protocol.LinePollScript)(e.Command), "no poll: %v", e.Command)
		}
	}
	holder.Unlocks(t, m)
	all.Wait()
}

// A place that lasts for a shorter time than the others takes none of theirs away.
func TestFairOrder_BriefEntryShortensNoOther(t *testing.T) {
	eachFairWait(t, func(w *fairWait) {
		w.queue()
		ctx, cancel := context.WithCancel(w.t.Context())
		brief := locktest.NewActor(w.t).Lock(ctx, relock.LocksOn(w.t, w.direct, relock.WithTTL(time.Second)).FairMutex(w.key))
		locktest.AwaitFairQueue(w.t, w.direct, w.key, 2)
		require.Greater(w.t, locktest.TTLOf(w.direct, keys.LineOf(w.key).Queue), 2*time.Second)
		cancel()
		require.ErrorIs(w.t, locktest.OutcomeOf(w.t, brief), context.Canceled)
		w.holder.Unlocks(w.t, w.rival)
		require.NoError(w.t, locktest.OutcomeOf(w.t, w.waiting))
		w.me.Unlocks(w.t, w.m)
	}, longPlaces)
}

// A waiter that polls for a process does it as often as the briefest place needs.
func TestFairOrder_BriefEntryIsKeptByWhoeverPolls(t *testing.T) {
	redistest.Slow(t)
	eachFairWait(t, func(w *fairWait) {
		w.queue()
		brief := locktest.NewActor(w.t).Lock(w.t.Context(), w.c.FairMutex(w.key, relock.WithTTL(2*time.Second), relock.WithOwner("brief")))
		locktest.AwaitFairQueue(w.t, w.direct, w.key, 2)
		locktest.Throughout(w.t, 4*time.Second, func() bool { return w.lives(":brief") }, "its place")
		w.holder.Unlocks(w.t, w.rival)
		require.NoError(w.t, locktest.OutcomeOf(w.t, w.waiting))
		w.me.Unlocks(w.t, w.m)
		require.NoError(w.t, locktest.OutcomeOf(w.t, brief))
		require.NoError(w.t, w.c.FairMutex(w.key, relock.WithOwner("brief")).Unlock())
	}, longPlaces)
}

// partyOf returns the waiters of c for key, and their turn to poll; nil if there are none.
func partyOf(c *relock.Client, key string) (*line.Line, *queue.Bell) {
	for _, h := range relock.HoldsOn(c, key) {
		if l := h.Line(); l != nil {
			return l, h.Turn()
		}
	}
	return nil, nil
}

// Who is served before the answer to its request has come has no say in when others poll.
func TestFairOrder_BriefEntryIsKeptThoughANewcomerIsServedAtOnce(t *testing.T) {
	redistest.Slow(t)
	eachFairWait(t, func(w *fairWait) {
		events := subscribed(w.t, w.c, w.key)
		ctx := context.WithoutCancel(w.t.Context())
		ownerOf := locktest.NewActor(w.t)
		brief := w.c.FairMutex(w.key, relock.WithTTL(2*time.Second), relock.WithOwner("brief"))
		var waiting <-chan error
		placed := w.relay.After(locktest.RunsOf(protocol.LineAcquireScript), func(redistest.Command, string) {
			waiting = ownerOf.Lock(ctx, brief)
			redistest.Eventually(w.t, "the brief one has the turn", func() bool {
				p, turn := partyOf(w.c, w.key)
				return p != nil && turn.Taken() && len(p.Waiting()) == 1
			})
			w.holder.Unlocks(w.t, w.rival)
			// Messages arrive in order: the one about the grant is before these, and so the newcomer has it.
			for range 2 {
				require.NoError(w.t, w.direct.Publish(ctx, grantsOf(w.c, w.key), "x").Err())
			}
			for range 3 {
				redistest.Receive(w.t, events)
			}
		})
		w.waiting = w.me.Lock(ctx, w.m)
		placed.Wait(w.t)
		require.NoError(w.t, locktest.OutcomeOf(w.t, w.waiting))
		locktest.Throughout(w.t, 4*time.Second, func() bool { return w.lives(":brief") }, "its place")
		w.me.Unlocks(w.t, w.m)
		require.NoError(w.t, locktest.OutcomeOf(w.t, waiting))
		require.NoError(w.t, brief.Unlock())
	}, longPlaces)
}

// lives reports whether the place of the owner with that suffix counts.
func (w *fairWait) lives(owner string) bool {
	w.t.Helper()
	now := w.direct.Time(w.t.Context()).Val()
	for field, entry := range w.direct.HGetAll(w.t.Context(), keys.LineOf(w.key).Entries).Val() {
		if strings.HasSuffix(field, owner) {
			end, _, _ := strings.Cut(entry, " ")
			ms, err := strconv.ParseInt(end, 10, 64)
			require.NoError(w.t, err)
			return ms > now.UnixMilli()
		}
	}
	return false
}

func TestFair_FiveHundredWaitersAreServedInOrder(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		n := 500
		if !b.Real {
			n = 60 // it takes long to run a script
		}
		rdb, key := b.Client(t), redistest.Key(t)
		var clients []*relock.Client
		var handles []locktest.Mutex
		for range 3 {
			c := relock.LocksOn(t, b.Client(t))
			clients, handles = append(clients, c), append(handles, c.FairMutex(key))
		}
		locktest.RequireLocked(t, handles[0])
		var r locktest.Roll
		all := locktest.QueueUp(t, rdb, key, n, &r, handles...)
		locktest.RequireUnlocked(t, handles[0])
		all.Wait()
		require.Equal(t, locktest.UpTo(n), r.Names)
		locktest.RequireFairFree(t, rdb, key)
		for _, c := range clients {
			redistest.Eventually(t, "nothing kept", func() bool { return relock.NamesOf(c) == 0 })
		}
	})
}
