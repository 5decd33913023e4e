package relock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
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
	{"taken by somebody else", func(b *quorumBench, n int) { b.strangersOn(n) }},
	{"of another type", func(b *quorumBench, n int) {
		require.NoError(b.t, b.servers[n].Set(b.t.Context(), b.key, "mine", time.Minute).Err())
	}},
}

func TestAQuorumWorksAtTheSpeedOfItsMajority(t *testing.T) {
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
						b.onceWithinPatience(func() { b.cycle(b.mutex(WithFencing())) })
					}
					b.onceWithinPatience(func() {
						b.me.locks(b.t, b.mutex())
						require.False(b.t, b.you.tries(b.t, b.mutex()))
						handed := b.you.lock(b.t.Context(), b.mutex())
						awaitWaiters(b.t, b.locks.session, b.key, 1)
						b.me.unlocks(b.t, b.mutex())
						require.NoError(b.t, outcomeOf(b.t, handed))
						b.you.unlocks(b.t, b.mutex())
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
	onceWithin(b.t, b.locks.session.patience, func() time.Duration { return took(f) })
}

func TestASlowNodeIsReleasedBehindItsAcquisition(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		b.relays[2].Latency(100 * time.Millisecond)
		for range 3 {
			b.cycle(b.mutex())
		}
		b.awaitFree()
		eventually(b.t, "all settled", func() bool { return settledOn(b.locks) })
		require.Empty(b.t, b.fields()[2], "an acquisition came after its release")
	})
}

// settledOn reports whether nothing is under way on any node of c.
func settledOn(c *Client) bool {
	return c.session.goroutines.Len() == 1 // it watches the clocks
}

func TestAFrozenServerOfAQuorumCostsNothing(t *testing.T) {
	t.Parallel()
	var servers []*redistest.Server
	var rdbs []redis.UniversalClient
	for range 3 {
		s := redistest.NewServer(t)
		servers, rdbs = append(servers, s), append(rdbs, s.Client(t))
	}
	c := quorumOn(t, rdbs)
	m := c.Mutex(redistest.Key(t))
	requireLocked(t, m)
	requireUnlocked(t, m)
	require.NoError(t, servers[1].Pause())
	onceWithin(t, c.session.patience, func() time.Duration {
		return took(func() {
			for range 5 {
				requireLocked(t, m)
				requireUnlocked(t, m)
			}
		})
	})
	require.NoError(t, servers[1].Resume())
	eventually(t, "the frozen one is clean", func() bool {
		return settledOn(c) && len(onRedis(t, rdbs[1], m.Name())) == 0
	})
}

func TestWithoutAMajorityALockFailsAndSaysWhatEachNodeSaid(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		b.down(0, 2)
		err := b.me.call(func() error { return b.mutex().Lock(b.t.Context()) })
		var q *QuorumError
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

func TestAnUnlockWithoutAMajoritySaysSoAndIsMadeUpForLater(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		m := b.mutex(WithUnlockTimeout(300 * time.Millisecond))
		b.me.locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		b.down(0, 1)
		var q *QuorumError
		require.ErrorAs(b.t, b.me.call(m.Unlock), &q)
		require.Zero(b.t, m.HoldCount())
		b.awaitOn(1, 0, 1)
		b.up(0, 1)
		b.awaitFree()
	})
}

func TestANodeThatMissedTheReleaseIsReleasedWhenItIsBack(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		m := b.mutex(WithTTL(time.Hour))
		b.me.locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		b.down(1)
		b.me.unlocks(b.t, m)
		eventually(b.t, "the release left to the background", func() bool { return owed(b.locks, 1) == 1 })
		b.awaitOn(1, 1)
		b.up(1)
		b.awaitFree()
		eventually(b.t, "nothing owed", func() bool { return owed(b.locks, 1) == 0 })
	})
}

func TestAHoldIsLostWhenItsMajorityHasLostItsData(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		m := b.mutex(WithTTL(2*time.Second), WithRenewInterval(20*time.Millisecond))
		b.me.locks(b.t, m)
		ctx := contextOf(b.me, m)
		b.awaitOn(1, 0, 1, 2)
		require.NoError(b.t, b.servers[1].Del(b.t.Context(), b.key).Err())
		throughout(b.t, 300*time.Millisecond, func() bool {
			return ctx.Err() == nil && len(onRedis(b.t, b.servers[1], b.key)) == 0
		}, "one node is a minority, and nobody is taken back")
		require.NoError(b.t, b.servers[0].Del(b.t.Context(), b.key).Err())
		receives(b.t, ctx.Done())
		require.ErrorIs(b.t, context.Cause(ctx), ErrLost)
		require.ErrorIs(b.t, context.Cause(ctx), lockerr.ErrNotOnRedis)
		require.ErrorIs(b.t, b.me.call(m.Unlock), ErrLost)
		b.awaitFree()
	})
}

func TestAHoldThatAMajorityDoesNotRenewIsLostHereFirst(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	onQuorum(t, 3, func(b *quorumBench) {
		failed, at := make(chan Event, 100), make(chan time.Time, 100)
		m := b.mutex(WithHooks(Hooks{RenewFailed: func(e Event) { at <- time.Now(); failed <- e }}))
		b.me.locks(b.t, m)
		ctx := contextOf(b.me, m)
		b.awaitOn(1, 0, 1, 2)
		b.relays[0].BlackHole(true)
		b.relays[1].BlackHole(true)
		var q *QuorumError
		require.ErrorAs(b.t, receives(b.t, failed).Err, &q)
		got := b.rivalTries()
		if time.Since(receives(b.t, at)) < ttl/6 { // half of the lease was left, or nearly
			require.False(b.t, got, "it is still held")
		}
		waiting := b.you.lock(b.t.Context(), b.rival.Mutex(b.key))
		require.NoError(b.t, outcomeOf(b.t, waiting))
		require.Error(b.t, ctx.Err(), "somebody else has it")
		require.ErrorIs(b.t, context.Cause(ctx), ErrLost)
		require.ErrorIs(b.t, context.Cause(ctx), errLeaseOver)
		require.ErrorIs(b.t, b.me.call(m.Unlock), ErrLost)
		b.you.unlocks(b.t, b.rival.Mutex(b.key))
	}, WithTTL(ttl))
}

func TestATryWithoutAMajorityLeavesNothingWhenItReturns(t *testing.T) {
	t.Parallel()
	onQuorum(t, 5, func(b *quorumBench) {
		b.warm()
		b.strangersOn(0, 2, 4)
		id := b.locks.ID()
		require.False(b.t, b.me.tries(b.t, b.mutex()))
		if id == b.locks.ID() { // all have answered in time: nothing is left to the background
			require.Empty(b.t, b.fields()[1])
			require.Empty(b.t, b.fields()[3])
		}
		b.awaitOn(1, 0, 2, 4)
		b.strangersGone(0, 2, 4)
		b.cycle(b.mutex())
	})
}

func TestANodeWhoseAnswerWasLostIsUndone(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		b.strangersOn(1, 2)
		lost := b.relays[0].LoseReply(runsOf(protocol.AcquireScript).And(redistest.With(b.key))).Always()
		id := b.locks.ID()
		require.False(b.t, b.me.tries(b.t, b.mutex()))
		lost.Wait(b.t)
		require.NotEqual(b.t, id, b.locks.ID(), "a name in doubt is not used again")
		lost.Remove()
		b.awaitOn(1, 1, 2)
		b.strangersGone(1, 2)
		b.cycle(b.mutex())
	})
}

func TestAnAcquisitionThatArrivesAfterItsReleaseLetsNobodyIn(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		held := b.relays[2].HoldBackSilently(runsOf(protocol.AcquireScript).And(redistest.With(b.key)))
		m := b.mutex(WithTTL(time.Second))
		b.me.locks(b.t, m)
		b.me.unlocks(b.t, m)
		b.me.locks(b.t, m)
		ctx := contextOf(b.me, m)
		_, err := held.Deliver(b.t.Context())
		require.NoError(b.t, err)
		require.False(b.t, b.rivalTries())
		require.NoError(b.t, ctx.Err())
		b.me.unlocks(b.t, m)
		b.awaitFree() // by its TTL, at the latest
	})
}

// Two of three nodes refuse a try, which is over then. The third one grants it later, when the lock
// is free again: it takes no part in the next hold, and that is all.
func TestATryThatANodeGrantsTooLateCostsTheNextLockThatNodeAlone(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		m, theirs := b.mutex(WithFencing(), WithTTL(5*time.Second)), b.rival.Mutex(b.key, WithFencing())
		b.you.locks(b.t, theirs)
		b.awaitOn(1, 0, 1, 2)
		tries := runsOf(protocol.AcquireScript).And(redistest.With(b.key))
		late, answered := b.relays[1].Block(tries), make(chan struct{})
		answer := sync.OnceFunc(func() { close(answered) })
		b.t.Cleanup(late.Release)
		b.t.Cleanup(answer)
		b.relays[1].After(tries, func(redistest.Command, string) { <-answered })
		require.False(b.t, b.me.tries(b.t, m))
		last := tokenOf(b.you, theirs)
		b.you.unlocks(b.t, theirs)
		b.awaitFree()

		late.Release()
		b.awaitHeldOn(1)
		b.me.locks(b.t, m)
		ctx := contextOf(b.me, m)
		require.Greater(b.t, tokenOf(b.me, m), last)
		answer() // and it is taken back
		b.awaitOn(1, 0, 2)
		require.False(b.t, b.rivalTries(), "two holders")
		require.NoError(b.t, ctx.Err())
		b.me.unlocks(b.t, m)
		b.awaitFree()
	})
}

func TestAReleaseThatArrivesLateHitsNoLaterHold(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		b.strangersOn(1)
		b.relays[0].Latency(20 * time.Millisecond) // so that nobody is waited for in vain:
		b.relays[2].Latency(20 * time.Millisecond) // doubt is that about the release alone
		m := b.mutex()
		held := b.relays[0].HoldBackSilently(runsOf(protocol.ReleaseScript).And(redistest.With(b.key)))
		late := b.relays[2].HoldBackSilently(runsOf(protocol.ReleaseScript).And(redistest.With(b.key)))
		b.me.locks(b.t, m) // by nodes 0 and 2
		b.me.unlocks(b.t, m)
		b.me.locks(b.t, m)
		for _, h := range []*redistest.Held{held, late} {
			_, err := h.Deliver(b.t.Context())
			require.NoError(b.t, err)
		}
		b.strangersGone(1)
		require.False(b.t, b.rivalTries(), "two holders")
		b.me.unlocks(b.t, m)
		b.awaitFree()
	})
}

func TestCloseOfAQuorumDoesNotWaitForAMinorityForLong(t *testing.T) {
	t.Parallel()
	for _, f := range minorities[:2] {
		t.Run(f.name, func(t *testing.T) {
			onQuorum(t, 3, func(b *quorumBench) {
				b.warm()
				f.fail(b, 1)
				b.me.locks(b.t, b.mutex())
				for i := range 10 { // they wait for each other there
					b.me.locks(b.t, b.locks.Mutex(fmt.Sprint(b.key, i)))
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

// Somebody else had one of the fast nodes when the lock was taken: without the slow ones
// there was no majority. They are not needed to give it back.
func TestAnUnlockDoesNotWaitForNodesThatItsHoldDependsOn(t *testing.T) {
	t.Parallel()
	onQuorum(t, 5, func(b *quorumBench) {
		b.warm()
		m := b.mutex(WithFencing())
		depend := func() {
			b.strangersOn(0)
			b.me.locks(b.t, m)
			b.awaitHeldOn(1, 2, 3, 4)
			b.strangersGone(0)
			b.relays[3].BlackHole(true)
			b.relays[4].BlackHole(true)
		}
		recover := func() {
			b.relays[3].BlackHole(false)
			b.relays[4].BlackHole(false)
			b.awaitFree()
			eventually(b.t, "all settled", func() bool { return settledOn(b.locks) })
		}

		// unlocks has all of it done again until the Unlock was soon enough.
		unlocks := func(before, after func()) {
			onceWithin(b.t, b.locks.session.patience, func() time.Duration {
				depend()
				before()
				late := took(func() { b.me.unlocks(b.t, m) })
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
			b.me.locks(b.t, m)
			b.relays[3].BlackHole(true)
			ctx = contextOf(b.me, m)
		}, func() {
			require.NoError(b.t, ctx.Err(), "the outer level is there")
			b.me.unlocks(b.t, m)
		})

		var next <-chan error
		unlocks(func() {
			next = b.you.lock(b.t.Context(), m)
			awaitWaiters(b.t, b.locks.session, b.key, 1)
		}, func() {
			require.NoError(b.t, outcomeOf(b.t, next))
			b.you.unlocks(b.t, m)
		})
	})
}

// pausedContext ends when somebody looks whether it has, and everything under way has settled:
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

func TestAHandOffThatIsCarriedOutAsTheUnlockEndsIsNotTakenForALoss(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		m, q := b.mutex(), b.locks.plain.protocol.(*quorum.Quorum)
		b.warm()
		for i := range 30 {
			for _, rdb := range b.servers {
				require.NoError(b.t, rdb.HSet(b.t.Context(), b.key, "holder:1", 1).Err())
			}
			ctx := &pausedContext{Context: b.t.Context(), done: make(chan struct{}), settle: func() {
				eventually(b.t, "all voted", func() bool { return settledOn(b.locks) })
			}}
			g, out := q.Handoff(ctx, redisexec.CallOptions{Patience: time.Second}, m.target, "holder:1", fmt.Sprint("next:", i), &m.settings.Terms)
			require.True(b.t, g.Held || out.Err != nil, "round %d", i)
			for _, rdb := range b.servers {
				require.NoError(b.t, rdb.Del(b.t.Context(), b.key).Err())
			}
		}
	})
}
