package relock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// Two nodes do not answer, and every command to them waits for those before it, for much
// longer than a renewal can wait. With two others silent, too, its result depends on them.
func TestALossIsToldInTimeThoughSilentNodesAreFarBehind(t *testing.T) {
	t.Parallel()
	onQuorum(t, 5, func(b *quorumBench) {
		const ttl, rounds = 1500 * time.Millisecond, 10 // in which they get ten seconds behind
		m := b.mutex()
		b.warm()
		b.relays[3].BlackHole(true)
		b.relays[4].BlackHole(true)
		for range rounds { // commands that wait for each other there
			b.me.locks(b.t, m)
			b.me.locks(b.t, m)
			b.me.unlocks(b.t, m)
		}
		ctx := contextOf(b.me, m)
		began := time.Now()
		b.relays[0].BlackHole(true)
		b.relays[1].BlackHole(true)
		receives(b.t, ctx.Done())
		require.ErrorIs(b.t, context.Cause(ctx), ErrLost)
		require.Less(b.t, time.Since(began), ttl+1500*time.Millisecond, "the lease was over before")
		for range rounds {
			require.ErrorIs(b.t, b.me.call(m.Unlock), ErrLost)
		}
	}, WithTTL(1500*time.Millisecond))
}

// firstSeen returns the time at which a node of b was first sent a run of s, once there was one.
func (b *quorumBench) firstSeen(s *redisexec.Script) func() clock.Instant {
	seen := make(chan clock.Instant, len(b.relays))
	for _, relay := range b.relays {
		relay.Before(runsOf(s).And(redistest.With(b.key)), func(redistest.Command) {
			select {
			case seen <- clock.System():
			default: // only the first matters
			}
		})
	}
	return func() clock.Instant { return receives(b.t, seen) }
}

// A vote takes time, which is not there any more when the lock is held.
func TestTheTimeThatAVoteTakesIsTakenOffTheLease(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	deadlineOf := func(b *quorumBench) clock.Instant {
		h := holdsOn(b.locks.session, b.key)[0]
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.lease.Deadline()
	}
	for _, s := range []struct {
		name   string
		script *redisexec.Script
		do     func(b *quorumBench, m *Mutex) (clock.Instant, *actor) // the deadline after it, and who holds it then
	}{
		{"acquire", protocol.AcquireScript, func(b *quorumBench, m *Mutex) (clock.Instant, *actor) {
			b.me.locks(b.t, m)
			return deadlineOf(b), b.me
		}},
		{"renew", protocol.RenewScript, func(b *quorumBench, _ *Mutex) (clock.Instant, *actor) {
			first := make(chan clock.Instant, 1)
			b.me.locks(b.t, b.mutex(WithRenewInterval(300*time.Millisecond), WithHooks(Hooks{Renewed: func(Event) {
				select {
				case first <- deadlineOf(b): // before the next renewal
				default:
				}
			}})))
			return receives(b.t, first), b.me
		}},
		{"handoff", protocol.HandoffScript, func(b *quorumBench, m *Mutex) (clock.Instant, *actor) {
			b.me.locks(b.t, m)
			next := b.you.lock(b.t.Context(), m)
			awaitWaiters(b.t, b.locks.session, b.key, 1)
			b.me.unlocks(b.t, m)
			require.NoError(b.t, outcomeOf(b.t, next))
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
				holder.unlocks(b.t, b.mutex())
				b.awaitFree()
			}, WithTTL(ttl))
		})
	}
}
