package relock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/quorum"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// minorities are ways in which few nodes of a quorum fail.
var minorities = []struct {
	name string
	fail func(b *quorumBench, n int)
}{
	{"down", func(b *quorumBench, n int) { b.down(n) }},
	{"a black hole", func(b *quorumBench, n int) { b.relays[n].BlackHole(true) }},
	{"slow", func(b *quorumBench, n int) { b.relays[n].Latency(400 * time.Millisecond) }},
	{"taken by another owner", func(b *quorumBench, n int) { b.othersOn(n) }},
	{"of another type", func(b *quorumBench, n int) {
		require.NoError(b.t, b.servers[n].Set(b.t.Context(), b.key, "mine", time.Minute).Err())
	}},
}

func TestQuorum_WorksAtTheSpeedOfItsMajority(t *testing.T) {
	t.Parallel()
	for _, f := range minorities {
		for _, n := range []int{3, 5} {
			t.Run(fmt.Sprintf("%s of %d", f.name, n), func(t *testing.T) {
				onQuorum(t, n, func(b *quorumBench) {
					b.warm()
					for i := range n / 2 {
						f.fail(b, i)
					}
					for range 3 {
						b.onceWithinPatience(func() { b.cycle(b.mutex(relock.WithFencing())) })
					}
					b.onceWithinPatience(func() {
						b.me.Locks(b.t, b.mutex())
						require.False(b.t, b.you.Tries(b.t, b.mutex()))
						handed := b.you.Lock(b.t.Context(), b.mutex())
						relock.AwaitWaiters(b.t, b.locks, b.key, 1)
						b.me.Unlocks(b.t, b.mutex())
						require.NoError(b.t, locktest.OutcomeOf(b.t, handed))
						b.you.Unlocks(b.t, b.mutex())
					})
				})
			})
		}
	}
}

// onceWithinPatience has f done again until it was done before a node that does not answer would
// no longer be waited for.
func (b *quorumBench) onceWithinPatience(f func()) {
	b.t.Helper()
	onceWithin(b.t, b.locks.Patience(), func() time.Duration { return locktest.Took(f) })
}

func TestQuorum_SlowNodeIsReleasedAfterItsAcquisition(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		b.relays[2].Latency(100 * time.Millisecond)
		for range 3 {
			b.cycle(b.mutex())
		}
		b.awaitFree()
		redistest.Eventually(b.t, "all settled", func() bool { return relock.Settled(b.locks) })
		require.Empty(b.t, b.fields()[2], "an acquisition came after its release")
	})
}

func TestQuorum_FrozenServerCostsNothing(t *testing.T) {
	t.Parallel()
	var servers []*redistest.Server
	var rdbs []redis.UniversalClient
	for range 3 {
		s := redistest.NewServer(t)
		servers, rdbs = append(servers, s), append(rdbs, s.Client(t))
	}
	c := relock.QuorumOn(t, rdbs)
	m := c.Mutex(redistest.Key(t))
	locktest.RequireLocked(t, m)
	locktest.RequireUnlocked(t, m)
	require.NoError(t, servers[1].Pause())
	onceWithin(t, c.Patience(), func() time.Duration {
		return locktest.Took(func() {
			for range 5 {
				locktest.RequireLocked(t, m)
				locktest.RequireUnlocked(t, m)
			}
		})
	})
	require.NoError(t, servers[1].Resume())
	redistest.Eventually(t, "the frozen one is clean", func() bool {
		return relock.Settled(c) && len(locktest.OnRedis(t, rdbs[1], m.Name())) == 0
	})
}

func TestQuorum_LockWithoutAMajorityReportsEachNode(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		b.down(0, 2)
		err := b.me.Call(func() error { return b.mutex().Lock(b.t.Context()) })
		var q *relock.QuorumError
		require.ErrorAs(b.t, err, &q)
		require.Equal(b.t, []int{3, 2, 1}, []int{q.Nodes, q.Needed, q.Agreed})
		require.Len(b.t, q.Errors, 2)
		require.Equal(b.t, b.relays[0].Addr, q.Errors[0].Node)
		require.Equal(b.t, b.relays[2].Addr, q.Errors[1].Node)
		require.ErrorContains(b.t, err, b.relays[2].Addr)
		b.awaitFree()
		b.up(0, 2)
		b.cycle(b.mutex())
	})
}

func TestQuorum_UnlockWithoutAMajorityReportsItAndIsRepeated(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		m := b.mutex(relock.WithUnlockTimeout(300 * time.Millisecond))
		b.me.Locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		b.down(0, 1)
		var q *relock.QuorumError
		require.ErrorAs(b.t, b.me.Call(m.Unlock), &q)
		require.Zero(b.t, m.HoldCount())
		b.awaitOn(1, 0, 1)
		b.up(0, 1)
		b.awaitFree()
	})
}

func TestQuorum_NodeThatMissedAReleaseIsReleasedWhenBack(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		m := b.mutex(relock.WithTTL(time.Hour))
		b.me.Locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		b.down(1)
		b.me.Unlocks(b.t, m)
		redistest.Eventually(b.t, "the release left to the background", func() bool { return owed(b.locks, 1) == 1 })
		b.awaitOn(1, 1)
		b.up(1)
		b.awaitFree()
		redistest.Eventually(b.t, "nothing owed", func() bool { return owed(b.locks, 1) == 0 })
	})
}

func TestQuorum_HoldIsLostWhenAMajorityLostItsData(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		m := b.mutex(relock.WithTTL(2*time.Second), relock.WithRenewInterval(20*time.Millisecond))
		b.me.Locks(b.t, m)
		ctx := b.me.ContextOf(m)
		b.awaitOn(1, 0, 1, 2)
		require.NoError(b.t, b.servers[1].Del(b.t.Context(), b.key).Err())
		locktest.Throughout(b.t, 300*time.Millisecond, func() bool {
			return ctx.Err() == nil && len(locktest.OnRedis(b.t, b.servers[1], b.key)) == 0
		}, "one node is a minority, and nobody is taken back")
		require.NoError(b.t, b.servers[0].Del(b.t.Context(), b.key).Err())
		redistest.Receive(b.t, ctx.Done())
		require.ErrorIs(b.t, context.Cause(ctx), relock.ErrLost)
		require.ErrorIs(b.t, context.Cause(ctx), lockerr.ErrNotOnRedis)
		require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrLost)
		b.awaitFree()
	})
}

func TestQuorum_HoldThatAMajorityDoesNotRenewIsLostLocallyFirst(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	onQuorum(t, 3, func(b *quorumBench) {
		failed, at := make(chan relock.Event, 100), make(chan time.Time, 100)
		m := b.mutex(relock.WithHooks(relock.Hooks{RenewFailed: func(e relock.Event) { at <- time.Now(); failed <- e }}))
		b.me.Locks(b.t, m)
		ctx := b.me.ContextOf(m)
		b.awaitOn(1, 0, 1, 2)
		b.relays[0].BlackHole(true)
		b.relays[1].BlackHole(true)
		var q *relock.QuorumError
		require.ErrorAs(b.t, redistest.Receive(b.t, failed).Err, &q)
		got := b.rivalTries()
		if time.Since(redistest.Receive(b.t, at)) < ttl/6 { // half of the lease was left, or nearly
			require.False(b.t, got, "it is still held")
		}
		waiting := b.you.Lock(b.t.Context(), b.rival.Mutex(b.key))
		require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
		require.Error(b.t, ctx.Err(), "another owner has it")
		require.ErrorIs(b.t, context.Cause(ctx), relock.ErrLost)
		require.ErrorContains(b.t, context.Cause(ctx), "lease expired")
		require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrLost)
		b.you.Unlocks(b.t, b.rival.Mutex(b.key))
	}, relock.WithTTL(ttl))
}

func TestQuorum_FailedTryLeavesNothingOnReturn(t *testing.T) {
	t.Parallel()
	onQuorum(t, 5, func(b *quorumBench) {
		b.warm()
		b.othersOn(0, 2, 4)
		id := b.locks.ID()
		require.False(b.t, b.me.Tries(b.t, b.mutex()))
		if id == b.locks.ID() { // all have answered in time: nothing is left to the background
			require.Empty(b.t, b.fields()[1])
			require.Empty(b.t, b.fields()[3])
		}
		b.awaitOn(1, 0, 2, 4)
		b.othersGone(0, 2, 4)
		b.cycle(b.mutex())
	})
}

func TestQuorum_NodeWithALostAnswerIsUndone(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		b.othersOn(1, 2)
		lost := b.relays[0].LoseReply(locktest.RunsOf(protocol.AcquireScript).And(redistest.With(b.key))).Always()
		id := b.locks.ID()
		require.False(b.t, b.me.Tries(b.t, b.mutex()))
		lost.Wait(b.t)
		require.NotEqual(b.t, id, b.locks.ID(), "a name in doubt is not used again")
		lost.Remove()
		b.awaitOn(1, 1, 2)
		b.othersGone(1, 2)
		b.cycle(b.mutex())
	})
}

func TestQuorum_AcquisitionDelayedBeyondItsReleaseAdmitsNobody(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		held := b.relays[2].HoldBackSilently(locktest.RunsOf(protocol.AcquireScript).And(redistest.With(b.key)))
		m := b.mutex(relock.WithTTL(time.Second))
		b.me.Locks(b.t, m)
		b.me.Unlocks(b.t, m)
		b.me.Locks(b.t, m)
		ctx := b.me.ContextOf(m)
		_, err := held.Deliver(b.t.Context())
		require.NoError(b.t, err)
		require.False(b.t, b.rivalTries())
		require.NoError(b.t, ctx.Err())
		b.me.Unlocks(b.t, m)
		b.awaitFree() // by its TTL, at the latest
	})
}

// Two of three nodes refuse a try, which is over then. The third one grants it later, when the lock
// is free again: it takes no part in the next hold, and that is all.
func TestQuorum_LateGrantCostsTheNextLockThatNodeOnly(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		m, theirs := b.mutex(relock.WithFencing(), relock.WithTTL(5*time.Second)), b.rival.Mutex(b.key, relock.WithFencing())
		b.you.Locks(b.t, theirs)
		b.awaitOn(1, 0, 1, 2)
		tries := locktest.RunsOf(protocol.AcquireScript).And(redistest.With(b.key))
		late, answered := b.relays[1].Block(tries), make(chan struct{})
		answer := sync.OnceFunc(func() { close(answered) })
		b.t.Cleanup(late.Release)
		b.t.Cleanup(answer)
		b.relays[1].After(tries, func(redistest.Command, string) { <-answered })
		require.False(b.t, b.me.Tries(b.t, m))
		last := b.you.TokenOf(theirs)
		b.you.Unlocks(b.t, theirs)
		b.awaitFree()

		late.Release()
		b.awaitHeldOn(1)
		before := b.relays[1].Count(tries)
		b.me.Locks(b.t, m)
		// The hold does not wait for it to be asked. Asked when the try has been taken back, it would take part.
		redistest.Eventually(b.t, "it is asked, too", func() bool { return b.relays[1].Count(tries) > before })
		ctx := b.me.ContextOf(m)
		require.Greater(b.t, b.me.TokenOf(m), last)
		answer() // and it is taken back
		b.awaitOn(1, 0, 2)
		require.False(b.t, b.rivalTries(), "two holders")
		require.NoError(b.t, ctx.Err())
		b.me.Unlocks(b.t, m)
		b.awaitFree()
	})
}

func TestQuorum_DelayedReleaseLeavesLaterHolds(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		b.othersOn(1)
		b.relays[0].Latency(20 * time.Millisecond) // so that no answer is waited for without need:
		b.relays[2].Latency(20 * time.Millisecond) // only the outcome of the release is unknown
		m := b.mutex()
		held := b.relays[0].HoldBackSilently(locktest.RunsOf(protocol.ReleaseScript).And(redistest.With(b.key)))
		late := b.relays[2].HoldBackSilently(locktest.RunsOf(protocol.ReleaseScript).And(redistest.With(b.key)))
		b.me.Locks(b.t, m) // by nodes 0 and 2
		b.me.Unlocks(b.t, m)
		b.me.Locks(b.t, m)
		for _, h := range []*redistest.Held{held, late} {
			_, err := h.Deliver(b.t.Context())
			require.NoError(b.t, err)
		}
		b.othersGone(1)
		require.False(b.t, b.rivalTries(), "two holders")
		b.me.Unlocks(b.t, m)
		b.awaitFree()
	})
}

func TestQuorum_CloseDoesNotWaitLongForAMinority(t *testing.T) {
	t.Parallel()
	for _, f := range minorities[:2] {
		t.Run(f.name, func(t *testing.T) {
			onQuorum(t, 3, func(b *quorumBench) {
				b.warm()
				f.fail(b, 1)
				b.me.Locks(b.t, b.mutex())
				for i := range 10 { // they wait for each other there
					b.me.Locks(b.t, b.locks.Mutex(fmt.Sprint(b.key, i)))
				}
				began := time.Now()
				require.NoError(b.t, b.locks.Close())
				require.Less(b.t, time.Since(began), closeTimeout-500*time.Millisecond)
				b.relays[1].BlackHole(false)
				require.Empty(b.t, b.fields()[0])
				require.Empty(b.t, b.fields()[2])
			})
		})
	}
}

// Another owner had one of the fast nodes when the lock was taken: without the slow ones
// there was no majority. They are not needed to give it back.
func TestQuorum_UnlockDoesNotWaitForNodesOfItsMajority(t *testing.T) {
	t.Parallel()
	onQuorum(t, 5, func(b *quorumBench) {
		b.warm()
		m := b.mutex(relock.WithFencing())
		depend := func() {
			b.othersOn(0)
			b.locksOn(m, 1, 2, 3, 4)
			b.othersGone(0)
			b.relays[3].BlackHole(true)
			b.relays[4].BlackHole(true)
		}
		recover := func() {
			b.relays[3].BlackHole(false)
			b.relays[4].BlackHole(false)
			b.awaitFree()
			redistest.Eventually(b.t, "all settled", func() bool { return relock.Settled(b.locks) })
		}

		// unlocks has all of it done again until the Unlock was soon enough.
		unlocks := func(before, after func()) {
			onceWithin(b.t, b.locks.Patience(), func() time.Duration {
				depend()
				before()
				late := locktest.Took(func() { b.me.Unlocks(b.t, m) })
				after()
				recover()
				return late
			})
		}

		unlocks(func() {}, func() {
			require.True(b.t, b.rivalTries(), "it is free on most nodes")
		})

		var ctx context.Context
		unlocks(func() {
			b.relays[3].BlackHole(false)
			b.me.Locks(b.t, m)
			b.relays[3].BlackHole(true)
			ctx = b.me.ContextOf(m)
		}, func() {
			require.NoError(b.t, ctx.Err(), "the outer level is there")
			b.me.Unlocks(b.t, m)
		})

		var next <-chan error
		unlocks(func() {
			next = b.you.Lock(b.t.Context(), m)
			relock.AwaitWaiters(b.t, b.locks, b.key, 1)
		}, func() {
			require.NoError(b.t, locktest.OutcomeOf(b.t, next))
			b.you.Unlocks(b.t, m)
		})
	})
}

// pausedContext ends when a caller looks whether it has, and everything under way has settled:
// as if the process had stood still over its end.
type pausedContext struct {
	context.Context
	settle func()
	once   sync.Once
	done   chan struct{}
}

func (c *pausedContext) Done() <-chan struct{} {
	c.once.Do(func() {
		c.settle()
		close(c.done)
	})
	return c.done
}

func (c *pausedContext) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestQuorum_HandOverDuringTheEndOfAnUnlockIsNoLoss(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		m := b.mutex()
		q := m.Protocol().(*quorum.Quorum)
		b.warm()
		for i := range 30 {
			for _, rdb := range b.servers {
				require.NoError(b.t, rdb.HSet(b.t.Context(), b.key, "holder:1", 1).Err())
			}
			ctx := &pausedContext{Context: b.t.Context(), done: make(chan struct{}), settle: func() {
				redistest.Eventually(b.t, "all voted", func() bool { return relock.Settled(b.locks) })
			}}
			g, out := q.Handoff(ctx, redisexec.CallOptions{Patience: time.Second}, m.Keys(), "holder:1", fmt.Sprint("next:", i), m.Terms())
			require.True(b.t, g.Held || out.Err != nil, "round %d", i)
			for _, rdb := range b.servers {
				require.NoError(b.t, rdb.Del(b.t.Context(), b.key).Err())
			}
		}
	})
}
