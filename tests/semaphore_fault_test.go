package tests

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// P-S3 for waiters: a process that was killed while its waiter was first in line.
func TestSemaphore_WaiterOfADeadProcessKeepsNoOneWaiting(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		s := locksOn(t, b.Client(t)).Semaphore("s", 2)
		p := acquired(t, s, 2)
		relay, rdb := locktest.RelayedTo(t, b)
		dead := acquiring(t.Context(), locksOn(t, rdb).Semaphore("s", 2), 2)
		awaitWaiting(t, s, 1)
		time.Sleep(10 * time.Second) // it is subscribed, and Redis knows that
		waiting := acquiring(t.Context(), s, 1)
		awaitWaiting(t, s, 2)
		require.NoError(t, relay.Refuse(true))
		relay.Cut()
		time.Sleep(time.Millisecond)
		began := time.Now()
		require.NoError(t, p.Release())
		g := redistest.Receive(t, waiting)
		require.NoError(t, g.err)
		require.Less(t, time.Since(began), 100*time.Millisecond)

		require.NoError(t, relay.Refuse(false))
		time.Sleep(10 * time.Second)
		require.NoError(t, g.permit.Release())
		g = redistest.Receive(t, dead)
		require.NoError(t, g.err, "it comes back in time")
		require.NoError(t, g.permit.Release())
	})
}

// permitScripts are those whose replies the tests lose.
var permitScripts = map[string]*redisexec.Script{
	"acquire": protocol.PermitAcquireScript, "poll": protocol.PermitPollScript, "release": protocol.PermitReleaseScript, "renew": protocol.PermitRenewScript,
}

// Whatever reply is lost, no more than the limit is in use, all are served, and nothing is left.
func TestSemaphore_LostRepliesOverfillNothing(t *testing.T) {
	redistest.Slow(t)
	for name, script := range permitScripts {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // beside each other only: they keep the processors busy
			redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
				relay, rdb := locktest.RelayedTo(t, b)
				s := locksOn(t, rdb, relock.WithTTL(6*time.Second)).Semaphore("s", 3)
				other := locksOn(t, b.Client(t), relock.WithTTL(6*time.Second)).Semaphore("s", 3)
				n := 0
				relay.LoseReply(func(c redistest.Command) bool {
					if !redistest.Script(script.Source())(c) {
						return false
					}
					n++
					return n%3 == 1
				}).Always()
				var u usage
				var all sync.WaitGroup
				var served atomic.Int64
				for i := range 12 {
					of := s
					if i%2 == 1 {
						of = other
					}
					all.Go(func() {
						for range 4 {
							p, err := of.AcquireN(context.Background(), 1+i%3)
							if err != nil {
								continue // of a request without an answer, which is documented
							}
							served.Add(1)
							ctx := p.Context(context.Background())
							u.begin(p.Weight())
							select {
							case <-time.After(2500 * time.Millisecond):
							case <-ctx.Done():
							}
							u.end(p.Weight())
							_ = p.Release()
						}
					})
				}
				all.Wait()
				require.LessOrEqual(t, u.most.Load(), int64(3))
				require.GreaterOrEqual(t, served.Load(), int64(24))
				time.Sleep(10 * time.Second)
				requireNoKeys(t, b.Client(t), "s")
			})
		})
	}
}
