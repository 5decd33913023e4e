package protocol

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redistest"
)

// If another program removes the expiry of the key, a permit with a short lease must not end those with longer ones.
func TestSemaphore_KeyOutlivesAllLeases(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.take(permit(1, 1), 2)
		require.True(b.t, b.rdb.Persist(b.t.Context(), b.on.Keys[0]).Val())
		short := limited(2)
		short.TTL = time.Second
		g, out := b.permits.Acquire(b.t.Context(), once, b.on, permit(2, 1), short)
		require.NoError(b.t, out.Err)
		require.True(b.t, g.Held)
		require.Greater(b.t, b.ttl(b.on.Keys[0]), 2*time.Second, "permit 1 has a longer lease")
	})
}

// The members and scores of other programs may look like permits whose leases are over.
func TestSemaphore_ForeignSetIsNotEmptied(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		require.NoError(b.t, b.rdb.ZAdd(b.t.Context(), b.on.Keys[0],
			redis.Z{Score: 17, Member: "user:alice:7"}, redis.Z{Score: 21, Member: "user:bob:12"}).Err())
		_, out := b.permits.Acquire(b.t.Context(), once, b.on, permit(1, 1), limited(2))
		require.Error(b.t, out.Err)
		require.EqualValues(b.t, 2, b.rdb.ZCard(b.t.Context(), b.on.Keys[0]).Val())
	})
}

// A permit is forced as a whole, or not at all.
func TestSemaphore_NoPartOfAPermitIsReleased(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.take(permit(1, 2), 2)
		require.False(b.t, b.release(permit(1, 2)+":2").Ours)
		require.Equal(b.t, []string{permit(1, 2)}, b.holders())
		require.False(b.t, b.try(permit(2, 1), 2).Held)
	})
}

// All skipped waiters of a process come before a later one, when the process is back.
func TestSemaphore_AllSkippedWaitersComeBeforeALaterOne(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.take(permit(1, 1), 3)
		b.take(permit(5, 2), 3)
		subscribe := func() *redis.PubSub {
			s := b.rdb.Subscribe(b.t.Context(), keys.GrantsPrefix(b.on.Keys[0])+"q")
			_, err := s.Receive(b.t.Context())
			require.NoError(b.t, err)
			return s
		}
		q := subscribe()
		b.of("q", func() {
			b.enqueue(permit(2, 1), 3)
			b.enqueue(permit(3, 1), 3)
		})
		require.NoError(b.t, q.Close())
		redistest.Eventually(b.t, "unsubscribed", func() bool {
			return len(b.rdb.PubSubChannels(b.t.Context(), keys.GrantsPrefix(b.on.Keys[0])+"*").Val()) == 0
		})
		require.False(b.t, b.try(permit(9, 1), 3).Held) // skips both
		defer subscribe().Close()
		b.of("q", func() { b.enqueue(permit(4, 1), 3) })
		require.True(b.t, b.release(permit(1, 1)).Granted)
		require.Equal(b.t, []string{permit(2, 1), permit(5, 2)}, b.holders())
		b.release(permit(2, 1))
		require.Equal(b.t, []string{permit(3, 1), permit(5, 2)}, b.holders())
	})
}
