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

// subscribed returns the subscription of process to its grants.
func (b *permitBench) subscribed(process string) *redis.PubSub {
	b.t.Helper()
	s := b.rdb.Subscribe(b.t.Context(), keys.GrantsPrefix(b.on.Keys[0])+process)
	_, err := s.Receive(b.t.Context())
	require.NoError(b.t, err)
	return s
}

// dies makes entries of a process that is killed after that, for a semaphore with the limit 3.
func (b *permitBench) dies(process string, fields ...string) {
	b.t.Helper()
	s := b.subscribed(process)
	b.of(process, func() {
		for _, field := range fields {
			b.enqueue(field, 3)
		}
	})
	require.NoError(b.t, s.Close())
	redistest.Eventually(b.t, "unsubscribed", func() bool {
		return len(b.rdb.PubSubChannels(b.t.Context(), keys.GrantsPrefix(b.on.Keys[0])+"*").Val()) == 0
	})
}

func TestSemaphore_SkippedWaiterThatGivesUpLeavesNothing(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.take(permit(1, 3), 3)
		b.dies("q", permit(2, 1), permit(3, 2))
		b.dies("r", permit(4, 1))
		require.False(b.t, b.try(permit(9, 1), 3).Held)
		require.False(b.t, b.try(permit(9, 3), 3).Held)
		b.release(permit(1, 3)) // skips all
		require.Empty(b.t, b.queue())
		require.Empty(b.t, b.holders())
		for _, field := range []string{permit(3, 2), permit(2, 1)} {
			b.release(field)
		}
		require.Len(b.t, b.rdb.HKeys(b.t.Context(), b.on.Line[3].(string)).Val(), 2, "the entry of r, and the field of its channel")
		b.release(permit(4, 1))
		b.requireNothing()
	})
}

func TestSemaphore_SkippedWaiterThatGivesUpLeavesTheOthersOfItsProcessInTheirPlaces(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.take(permit(1, 3), 3)
		b.dies("q", permit(2, 3), permit(3, 3))
		require.False(b.t, b.try(permit(9, 1), 3).Held) // skips both
		b.release(permit(3, 3))
		defer b.subscribed("q").Close()
		b.of("q", func() { b.enqueue(permit(4, 3), 3) })
		b.release(permit(1, 3))
		require.Equal(b.t, []string{permit(2, 3)}, b.holders())
		require.Equal(b.t, []string{permit(4, 3)}, b.queue())
	})
}

// All skipped waiters of a process come before a later one, when the process is back.
func TestSemaphore_AllSkippedWaitersComeBeforeALaterOne(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.take(permit(1, 1), 3)
		b.take(permit(5, 2), 3)
		b.dies("q", permit(2, 1), permit(3, 1))
		require.False(b.t, b.try(permit(9, 1), 3).Held) // skips both
		defer b.subscribed("q").Close()
		b.of("q", func() { b.enqueue(permit(4, 1), 3) })
		require.True(b.t, b.release(permit(1, 1)).Granted)
		require.Equal(b.t, []string{permit(2, 1), permit(5, 2)}, b.holders())
		b.release(permit(2, 1))
		require.Equal(b.t, []string{permit(3, 1), permit(5, 2)}, b.holders())
	})
}
