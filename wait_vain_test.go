package relock

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// mostAsked bounds the requests in d: those while the hold is young, those while the gaps grow, and
// those with the shortest gap that there is then.
func mostAsked(d time.Duration) int {
	const gaps, longestGap = 5, 64 * time.Millisecond
	return 40 + gaps + int(2*d/longestGap)
}

// A read-write lock has two messages, which are the same to a waiter.
func TestMessagesWithoutAMeaningCostSomeTensOfRequestsASecond(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		b := newKindBench(t, backend, k)
		b.relay()
		holder, m := k.rival(b.others, b.key), b.mutex()
		b.me.locks(t, holder)
		waiting := b.you.lock(t.Context(), m)
		awaitWaiters(t, b.c.session, b.key, 1)
		asks := redistest.Scripts.And(redistest.With(b.key))
		eventually(t, "it listens, and is woken", func() bool {
			for _, rdb := range b.rdbs {
				require.NoError(t, rdb.Publish(t.Context(), m.target.Channels[0], "0").Err())
			}
			return answered(b.relays[0], asks) > 3
		})
		before, began := answered(b.relays[0], asks), time.Now()
		stop := floods(b, m.target.Channels[0])
		throughout(t, 500*time.Millisecond, func() bool { return true }, "")
		asked, took := answered(b.relays[0], asks)-before, time.Since(began)
		t.Logf("%d requests in %v", asked, took)
		require.Less(t, asked, mostAsked(took))

		b.me.unlocks(t, holder)
		freed := time.Now()
		require.NoError(t, outcomeOf(t, waiting))
		require.Less(t, time.Since(freed), 2*time.Second, "a message with a meaning is heeded, too")
		stop()
		b.you.unlocks(t, m)
		b.free()
	})
}

// floods publishes on channel, on every server, until stop is called.
func floods(b *kindBench, channel string) (stop func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	var flooding sync.WaitGroup
	for _, rdb := range b.rdbs {
		flooding.Go(func() {
			for ctx.Err() == nil {
				_ = rdb.Publish(ctx, channel, "0").Err()
			}
		})
	}
	return func() {
		cancel()
		flooding.Wait()
	}
}
