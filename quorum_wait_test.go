package relock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/quorum"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// onceSubscribed calls f, again until no Unlock in it took so long that it may have returned before all nodes
// answered. loses is an Unlock that finds that the lock is lost, if all nodes answered.
func (b *quorumBench) onceSubscribed(f func(loses func(*relock.Mutex))) {
	b.t.Helper()
	window := quorum.LossWindow(b.t.Context(), redisexec.CallOptions{Patience: b.locks.Patience()})
	onceWithin(b.t, window, func() (longest time.Duration) {
		f(func(m *relock.Mutex) {
			var err error
			one := locktest.Took(func() { err = b.me.Call(m.Unlock) })
			longest = max(longest, one)
			if one < window {
				require.ErrorIs(b.t, err, relock.ErrLost)
			}
		})
		return longest
	})
}

func TestQuorum_HandOverCountsWithAMajority(t *testing.T) {
	t.Parallel()
	for _, missing := range [][]int{nil, {1}, {0, 2}} {
		t.Run(fmt.Sprintf("%d nodes have lost the lock", len(missing)), func(t *testing.T) {
			onQuorum(t, 3, func(b *quorumBench) {
				m := b.mutex(relock.WithTTL(time.Minute))
				b.onceSubscribed(func(loses func(*relock.Mutex)) {
					b.me.Locks(b.t, m)
					b.awaitOn(1, 0, 1, 2)
					next := b.you.Lock(b.t.Context(), m)
					relock.AwaitWaiters(b.t, b.locks, b.key, 1)
					for _, n := range missing {
						require.NoError(b.t, b.servers[n].Del(b.t.Context(), b.key).Err())
					}
					if len(missing) < 2 {
						b.me.Unlocks(b.t, m)
					} else {
						loses(m)
					}
					require.NoError(b.t, locktest.OutcomeOf(b.t, next))
					switch len(missing) {
					case 0:
						b.awaitOn(1, 0, 1, 2)
					case 1:
						b.awaitHeldOn(0, 2)
					case 2:
						require.False(b.t, b.me.Tries(b.t, b.rival.Mutex(b.key)))
					}
					b.you.Unlocks(b.t, m)
					b.awaitFree()
				})
			})
		})
	}
}

// With one node that has it, one that has not, and one that is yet to answer, everything
// depends on the last.
func TestQuorum_SlowNodeThatLostTheLockCountsForUnlock(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		m := b.mutex(relock.WithTTL(time.Minute))
		forget := func() {
			b.relays[2].Latency(20 * time.Millisecond)
			for _, n := range []int{0, 2} {
				require.NoError(b.t, b.servers[n].Del(b.t.Context(), b.key).Err())
			}
		}
		recovers := func() {
			b.relays[2].Latency(0)
			b.awaitFree()
			redistest.Eventually(b.t, "all settled", func() bool { return relock.Settled(b.locks) })
		}

		b.onceSubscribed(func(loses func(*relock.Mutex)) {
			b.me.Locks(b.t, m)
			b.awaitOn(1, 0, 1, 2)
			forget()
			loses(m)
			recovers()
		})

		b.onceSubscribed(func(loses func(*relock.Mutex)) {
			b.me.Locks(b.t, m)
			b.me.Locks(b.t, m)
			b.awaitOn(2, 0, 1, 2)
			forget()
			loses(m)
			loses(m)
			recovers()
		})

		b.onceSubscribed(func(loses func(*relock.Mutex)) {
			b.me.Locks(b.t, m)
			b.awaitOn(1, 0, 1, 2)
			next := b.you.Lock(b.t.Context(), m)
			relock.AwaitWaiters(b.t, b.locks, b.key, 1)
			forget()
			loses(m)
			require.NoError(b.t, locktest.OutcomeOf(b.t, next))
			b.relays[2].Latency(0)
			b.you.Unlocks(b.t, m)
			recovers()
		})
	})
}

func TestQuorum_LossIsAwaitedForHalfOfTheRemainingTime(t *testing.T) {
	e := redisexec.CallOptions{Patience: time.Second}
	require.Equal(t, 500*time.Millisecond, quorum.LossWindow(t.Context(), e))
	long, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.Equal(t, 500*time.Millisecond, quorum.LossWindow(long, e))
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.LessOrEqual(t, quorum.LossWindow(short, e), 50*time.Millisecond)
}

func TestQuorum_SplitVotesAreRetriedSoonWithoutAMessage(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.othersOn(0, 1)
		waiting := b.me.Lock(b.t.Context(), b.mutex())
		relock.AwaitWaiters(b.t, b.locks, b.key, 1)
		locktest.GoesOn(b.t, waiting)
		b.othersGone(0, 1)
		began := time.Now()
		require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
		require.Less(b.t, time.Since(began), 5*time.Second)
		b.me.Unlocks(b.t, b.mutex())
	}, relock.WithSafetyPoll(time.Minute))
}

func TestQuorum_AnyNodeWakesAWaiter(t *testing.T) {
	t.Parallel()
	for n := range 3 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			onQuorum(t, 3, func(b *quorumBench) {
				for i := range 3 {
					locktest.HeldByAnother(b.t, b.servers[i], b.key, 0)
				}
				waiting := b.me.Lock(b.t.Context(), b.mutex())
				relock.AwaitWaiters(b.t, b.locks, b.key, 1)
				relock.AwaitListening(b.t, b.locks, b.key)
				// Each node that confirms it may have the waiter try again: all do before the lock is free.
				for i := range 3 {
					redistest.Eventually(b.t, "a listener", func() bool { return locktest.Listeners(b.t, b.servers[i], b.key) == 1 })
				}
				locktest.GoesOn(b.t, waiting)
				for i := range 3 {
					require.NoError(b.t, b.servers[i].Del(b.t.Context(), b.key).Err())
				}
				locktest.Publishes(b.t, b.servers[n], b.key)
				require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
				b.me.Unlocks(b.t, b.mutex())
			}, relock.WithSafetyPoll(time.Minute))
		})
	}
}

func TestQuorum_WaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		b.relays[0].BlackHole(true)
		b.relays[1].BlackHole(true)
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(b.t.Context())
		rule := b.relays[2].After(locktest.RunsOf(protocol.AcquireScript), func(redistest.Command, string) { cancel(cause) })
		b.withinOnePatience(func() {
			err := b.me.Call(func() error { return b.mutex().Lock(ctx) })
			require.ErrorIs(b.t, err, cause)
			require.ErrorIs(b.t, err, context.Canceled)
		})
		rule.Wait(b.t)
		redistest.Eventually(b.t, "the one that has granted is undone", func() bool { return len(b.fields()[2]) == 0 })
	}, relock.WithTTL(time.Minute))
}

func TestQuorum_RefusedHandOverLeavesALaterHold(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		m := b.mutex(relock.WithRenewInterval(20 * time.Millisecond))
		b.me.Locks(b.t, m)
		b.awaitOn(1, 0, 1, 2)
		for _, relay := range b.relays {
			relay.ReplyWith("-OOM command not allowed\r\n", locktest.RunsOf(protocol.RenameScript).And(redistest.With(b.key))).Always()
		}
		next := b.you.Lock(b.t.Context(), b.mutex(relock.WithFencing()))
		relock.AwaitWaiters(b.t, b.locks, b.key, 1)
		b.me.Unlocks(b.t, m) // by a release
		require.NoError(b.t, locktest.OutcomeOf(b.t, next))
		b.you.Unlocks(b.t, m)
		b.awaitFree()
		redistest.Eventually(b.t, "all settled", func() bool { return relock.Settled(b.locks) })
		b.me.Locks(b.t, m)
		ctx := b.me.ContextOf(m)
		locktest.Throughout(b.t, 200*time.Millisecond, func() bool { return ctx.Err() == nil }, "held")
		b.awaitOn(1, 0, 1, 2)
		b.me.Unlocks(b.t, m)
		b.awaitFree()
	})
}

func TestQuorum_LevelThatCouldNotBeReleasedDoesNotEndTheHold(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		both := b.locks.MultiMutex([]string{b.key, b.key + "-too"}, relock.WithRenewInterval(20*time.Millisecond))
		one := b.mutex(relock.WithRenewInterval(20 * time.Millisecond))
		b.me.Locks(b.t, both)
		b.me.Locks(b.t, one)
		b.awaitOn(2, 0, 1, 2)
		var rules []*redistest.Rule
		for _, relay := range b.relays {
			rules = append(rules, relay.ReplyWith("-OOM command not allowed\r\n", locktest.RunsOf(protocol.ReleaseScript).And(redistest.With(b.key))))
		}
		ctx := b.me.ContextOf(one)
		require.ErrorContains(b.t, b.me.Call(both.Unlock), "OOM")
		for _, rule := range rules {
			rule.Wait(b.t)
		}
		locktest.Throughout(b.t, 200*time.Millisecond, func() bool { return ctx.Err() == nil }, "held")
		require.False(b.t, b.rivalTries())
		b.me.Unlocks(b.t, one)
		b.awaitFree()
		for _, rdb := range b.servers {
			redistest.Eventually(b.t, "the other key is free", func() bool { return len(locktest.OnRedis(b.t, rdb, b.key+"-too")) == 0 })
		}
	})
}

func TestQuorum_TryLockReturnsAfterRepeatedSplitVotes(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		b.relays[1].BlackHole(true)
		b.othersOn(0)
		tries := locktest.RunsOf(protocol.AcquireScript).And(redistest.With(b.key))
		b.relays[2].ResetLog()
		require.False(b.t, b.me.Tries(b.t, b.mutex()))
		require.Equal(b.t, 1+relock.TrySplits, b.relays[2].Count(tries))

		// The other client unlocks when the first try is taken back.
		gone := b.relays[2].Before(locktest.RunsOf(protocol.ReleaseScript).And(redistest.With(b.key)), func(redistest.Command) { b.othersGone(0) })
		require.True(b.t, b.me.Tries(b.t, b.mutex()))
		gone.Wait(b.t)
		b.me.Unlocks(b.t, b.mutex())
	})
}

// The last node grants when the others have refused already, every time.
func TestQuorum_WaiterIsNotWokenByItsOwnTriesOnASlowNode(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		for _, rdb := range b.servers[:2] {
			require.NoError(b.t, rdb.HSet(b.t.Context(), b.key, "another:1", 1).Err())
		}
		b.relays[2].Latency(30 * time.Millisecond)
		ctx, giveUp := context.WithCancel(b.t.Context())
		waiting := b.me.Lock(ctx, b.mutex(relock.WithSafetyPoll(time.Hour)))
		relock.AwaitListening(b.t, b.locks, b.key)
		redistest.Eventually(b.t, "what it got there released", func() bool { return b.relays[2].Executed(locktest.RunsOf(protocol.ReleaseScript)) > 1 })
		tries, since := -3, time.Now()
		redistest.Eventually(b.t, "a second with two tries at most", func() bool {
			if n := b.relays[0].Count(locktest.RunsOf(protocol.AcquireScript)); n > tries+2 {
				tries, since = n, time.Now()
			}
			return time.Since(since) > time.Second
		})
		giveUp()
		require.ErrorIs(b.t, locktest.OutcomeOf(b.t, waiting), context.Canceled)
	})
}

// Between two tries of a TryLock another owner of its process takes one of the names.
func TestQuorum_TryLockOvertakenAfterSplitVotesIsNoError(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.warm()
		b.othersOn(0, 1)
		both, one := b.locks.MultiMutex([]string{b.key, b.key + "2"}), b.locks.Mutex(b.key+"2")
		begun := func() bool {
			return slices.ContainsFunc(relock.HoldsOn(b.locks, one.Name()), func(h relock.HoldView) bool {
				return h.Keys.ID == one.Keys().ID // in whatever phase: that it waits may be over before anyone looks
			})
		}
		overtaken := make(chan (<-chan error), 1)
		b.relays[2].After(locktest.RunsOf(protocol.AcquireScript).And(redistest.With(b.key)), func(redistest.Command, string) {
			result := b.you.Lock(b.t.Context(), one)
			for end := time.Now().Add(locktest.SoonEnough); !begun() && time.Now().Before(end); time.Sleep(locktest.LookEvery) {
			}
			overtaken <- result
		})
		require.False(b.t, b.me.Tries(b.t, both))
		require.NoError(b.t, locktest.OutcomeOf(b.t, redistest.Receive(b.t, overtaken)))
		b.you.Unlocks(b.t, one)
		b.othersGone(0, 1)
		b.awaitFree()
	})
}
