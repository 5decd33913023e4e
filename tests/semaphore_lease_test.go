package tests

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// The tests below are about leases, and run in the time of a bubble.

func TestSemaphore_PermitsAreRenewedTogether(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		relay.Latency(100 * time.Microsecond) // renewals that take no time may be answered one after the other
		s := locksOn(t, rdb, relock.WithTTL(3*time.Second)).Semaphore("s", 40)
		var permits []*relock.Permit
		for range 40 {
			permits = append(permits, acquired(t, s, 1))
		}
		time.Sleep(5 * time.Second)
		relay.ResetLog()
		time.Sleep(30 * time.Second)
		renewals := relay.Count(redistest.Script(protocol.PermitRenewScript.Source()))
		require.Positive(t, renewals)
		require.LessOrEqual(t, renewals, 40*30/8, "one by one they would be 40 in each second")
		requirePermits(t, s, 40, 0)
		for _, p := range permits {
			require.NoError(t, p.Release())
		}
	})
}

// P-S2 and P-S3: of a process that is cut off, the loss is known there before the share is given away, which is within one
// TTL, and the waiters elsewhere poll no faster than others.
func TestSemaphore_ShareOfACutOffProcessComesBackWithinItsTTL(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		dies := locksOn(t, rdb, relock.WithTTL(ttl)).Semaphore("s", 2)
		p := acquired(t, dies, 2)
		ended := make(chan time.Time, 1)
		context.AfterFunc(p.Context(t.Context()), func() { ended <- time.Now() })
		theirs, others := locktest.RelayedTo(t, b)
		s := locksOn(t, others, relock.WithTTL(ttl)).Semaphore("s", 2)
		first, second := acquiring(t.Context(), s, 1), acquiring(t.Context(), s, 1)
		awaitWaiting(t, s, 2)
		theirs.ResetLog()
		cut := time.Now()
		relay.BlackHole(true)
		for _, waiting := range []<-chan granted{first, second} {
			g := redistest.Receive(t, waiting)
			require.NoError(t, g.err)
			require.NoError(t, g.permit.Context(t.Context()).Err())
			defer func() { require.NoError(t, g.permit.Release()) }()
		}
		now := time.Now()
		lost := redistest.Receive(t, ended)
		require.True(t, lost.Before(now), "lost at %v, given away at %v", lost, now)
		require.LessOrEqual(t, now.Sub(cut), ttl+20*time.Millisecond)
		require.LessOrEqual(t, theirs.Count(redistest.Script(protocol.PermitPollScript.Source())), 9)
		relay.BlackHole(false)
		require.ErrorIs(t, p.Release(), relock.ErrLost)
	})
}

func TestSemaphore_WithoutRenewalEndsWithTheLease(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		s := locksOn(t, b.Client(t)).Semaphore("s", 1, relock.WithTTL(time.Second), relock.WithoutRenewal())
		p := acquired(t, s, 1)
		ctx := p.Context(t.Context())
		q := acquired(t, s, 1)
		require.ErrorIs(t, context.Cause(ctx), relock.ErrLost)
		require.NoError(t, q.Context(t.Context()).Err())
		require.ErrorIs(t, p.Release(), relock.ErrLost)
		require.NoError(t, q.Release())
	})
}

// A permit that was granted in line has the short lease of its entry at first.
func TestSemaphore_PermitOfAWaiterGetsItsWholeLease(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts  []relock.MutexOption
		keeps time.Duration
	}{
		"renewed":        {nil, time.Hour},
		"WithoutRenewal": {[]relock.MutexOption{relock.WithoutRenewal()}, 50 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
				s := locksOn(t, b.Client(t), relock.WithTTL(time.Minute)).Semaphore("s", 2, c.opts...)
				p := acquired(t, s, 2)
				waiting := acquiring(t.Context(), s, 2)
				awaitWaiting(t, s, 1)
				require.NoError(t, p.Release())
				g := redistest.Receive(t, waiting)
				require.NoError(t, g.err)
				time.Sleep(10 * time.Second)
				state, err := s.State(t.Context())
				require.NoError(t, err)
				require.Greater(t, state.Permits[0].TTL, 45*time.Second)
				time.Sleep(c.keeps - 10*time.Second)
				require.NoError(t, g.permit.Context(t.Context()).Err())
				require.NoError(t, g.permit.Release())
			})
		})
	}
}
