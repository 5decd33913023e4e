package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// Two nodes do not answer, and every command to them waits for those before it, for much
// longer than a renewal can wait. With two others silent, too, its result depends on them.
func TestQuorum_LossIsReportedInTimeThoughSilentNodesAreFarBehind(t *testing.T) {
	t.Parallel()
	onQuorum(t, 5, func(b *quorumBench) {
		const ttl, rounds = 1500 * time.Millisecond, 10 // in which they get ten seconds behind
		m := b.mutex()
		b.warm()
		b.relays[3].BlackHole(true)
		b.relays[4].BlackHole(true)
		for range rounds { // commands that wait for each other there
			b.me.Locks(b.t, m)
			b.me.Locks(b.t, m)
			b.me.Unlocks(b.t, m)
		}
		ctx := b.me.ContextOf(m)
		began := time.Now()
		b.relays[0].BlackHole(true)
		b.relays[1].BlackHole(true)
		redistest.Receive(b.t, ctx.Done())
		require.ErrorIs(b.t, context.Cause(ctx), relock.ErrLost)
		require.Less(b.t, time.Since(began), ttl+1500*time.Millisecond, "the lease was over before")
		for range rounds {
			require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrLost)
		}
	}, relock.WithTTL(1500*time.Millisecond))
}

// firstSeen returns the time at which a node of b was first sent a run of s, once there was one.
func (b *quorumBench) firstSeen(s *redisexec.Script) func() clock.Instant {
	seen := make(chan clock.Instant, len(b.relays))
	for _, relay := range b.relays {
		relay.Before(locktest.RunsOf(s).And(redistest.With(b.key)), func(redistest.Command) {
			select {
			case seen <- clock.System():
			default: // only the first matters
			}
		})
	}
	return func() clock.Instant { return redistest.Receive(b.t, seen) }
}

// A vote takes time, which is not there any more when the lock is held.
func TestQuorum_VoteTimeIsDeductedFromTheLease(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	deadlineOf := func(b *quorumBench) clock.Instant {
		return relock.HoldsOn(b.locks, b.key)[0].Deadline
	}
	for _, s := range []struct {
		name   string
		script *redisexec.Script
		do     func(b *quorumBench, m *relock.Mutex) (clock.Instant, *locktest.Actor) // the deadline after it, and who holds it then
	}{
		{"acquire", protocol.AcquireScript, func(b *quorumBench, m *relock.Mutex) (clock.Instant, *locktest.Actor) {
			b.me.Locks(b.t, m)
			return deadlineOf(b), b.me
		}},
		{"renew", protocol.RenewScript, func(b *quorumBench, _ *relock.Mutex) (clock.Instant, *locktest.Actor) {
			first := make(chan clock.Instant, 1)
			b.me.Locks(b.t, b.mutex(relock.WithRenewInterval(300*time.Millisecond), relock.WithHooks(relock.Hooks{Renewed: func(relock.Event) {
				select {
				case first <- deadlineOf(b): // before the next renewal
				default:
				}
			}})))
			return redistest.Receive(b.t, first), b.me
		}},
		{"handoff", protocol.RenameScript, func(b *quorumBench, m *relock.Mutex) (clock.Instant, *locktest.Actor) {
			b.me.Locks(b.t, m)
			next := b.you.Lock(b.t.Context(), m)
			relock.AwaitWaiters(b.t, b.locks, b.key, 1)
			b.me.Unlocks(b.t, m)
			require.NoError(b.t, locktest.OutcomeOf(b.t, next))
			return deadlineOf(b), b.you
		}},
	} {
		t.Run(s.name, func(t *testing.T) {
			onQuorum(t, 3, func(b *quorumBench) {
				b.warm()
				seen := b.firstSeen(s.script)
				for _, relay := range b.relays {
					relay.Latency(100 * time.Millisecond)
				}
				end, holder := s.do(b, b.mutex())
				require.LessOrEqual(b.t, end.Mono, seen().After(ttl-clock.Margin(ttl)).Mono)
				for _, relay := range b.relays {
					relay.Latency(0)
				}
				holder.Unlocks(b.t, b.mutex())
				b.awaitFree()
			}, relock.WithTTL(ttl))
		})
	}
}

func TestQuorum_ErrorNamesNodesBehindSentinels(t *testing.T) {
	t.Parallel()
	redistest.Timed(t)
	var rdbs []redis.UniversalClient
	for range 3 {
		rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "mymaster", SentinelAddrs: []string{"127.0.0.1:1"}, DialerRetries: 1, MaxRetries: -1})
		t.Cleanup(func() { _ = rdb.Close() })
		rdbs = append(rdbs, rdb)
	}
	_, err := relock.QuorumOn(t, rdbs, relock.WithTTL(time.Second)).Mutex("orders").State(t.Context())
	var failure *relock.QuorumError
	require.ErrorAs(t, err, &failure)
	names := make([]string, len(failure.Errors))
	for i, node := range failure.Errors {
		names[i] = node.Node
	}
	require.NotEmpty(t, names)
	require.Subset(t, []string{"node 1 of 3", "node 2 of 3", "node 3 of 3"}, names)
	require.ErrorContains(t, err, names[0]+": ")
}

// raising has the next token be the one of node 0, to which node 1 has to be raised: the third
// node is held by another client.
func (b *quorumBench) raising() {
	b.t.Helper()
	b.warm()
	b.aheadOn(0, time.Hour)
	b.othersOn(2)
}

// Between its vote and the raise the node loses the lock: another owner may have it there, with a
// lower token.
func TestQuorum_CounterNotRaisedUnderTheLockDoesNotCount(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.raising()
		gone := b.relays[1].Before(locktest.RunsOf(protocol.RaiseScript).And(redistest.With(b.key)), func(redistest.Command) {
			_ = b.servers[1].Del(context.Background(), b.key).Err()
		})
		m := b.mutex(relock.WithFencing())
		var err error
		// Not by Lock: one that waits after a split vote rides out this failure, too.
		redistest.Eventually(b.t, "a vote that is not split", func() bool {
			held := false
			err = b.me.Call(func() (err error) {
				held, err = m.TryLock(b.t.Context())
				return err
			})
			require.False(b.t, held)
			return err != nil
		})
		gone.Wait(b.t)
		var q *relock.QuorumError
		require.ErrorAs(b.t, err, &q)
		require.ErrorIs(b.t, err, lockerr.ErrNotOnRedis)
		b.awaitOn(1, 2)
		b.othersGone(2)
	})
}

// The context of a fenced Lock ends between the vote and the raise, at each node that is asked.
func TestQuorum_LockThatEndsBeforeItsTokenIsRaisedLeavesNothing(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.raising()
		ctx, cancel := context.WithCancel(b.t.Context())
		rule := b.relays[1].Before(locktest.RunsOf(protocol.RaiseScript).And(redistest.With(b.key)), func(redistest.Command) { cancel() })
		err := b.me.Call(func() error { return b.mutex(relock.WithFencing()).Lock(ctx) })
		rule.Wait(b.t)
		if err == nil {
			b.me.Unlocks(b.t, b.mutex())
		} else {
			require.ErrorIs(b.t, err, context.Canceled)
		}
		b.awaitOn(1, 2)
		b.othersGone(2)
		require.True(b.t, b.rivalTries())
	})
}

// Whichever node is missing, the others are a majority of four.
func TestQuorum_EvenOnesForceAndFence(t *testing.T) {
	t.Parallel()
	onQuorum(t, 4, func(b *quorumBench) {
		b.warm()
		m := b.mutex(relock.WithFencing())
		last := int64(0)
		for n := range 4 {
			b.othersOn(n)
			b.me.Locks(b.t, m)
			token := b.tokenOf(b.me, m)
			require.Greater(b.t, token, last)
			last = token
			b.me.Unlocks(b.t, m)
			b.othersGone(n)
		}
		theirs := b.rival.Mutex(b.key)
		b.you.Locks(b.t, theirs)
		forced, err := m.ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, forced)
		b.me.Locks(b.t, m)
		b.me.Unlocks(b.t, m)
		require.ErrorIs(b.t, b.you.Call(theirs.Unlock), relock.ErrLost)
	})
}
