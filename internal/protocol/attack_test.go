package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// If another program removes the expiry of the key, a permit with a short lease must not end those with longer ones.
func TestAttack_KeyOutlivesAllLeases(t *testing.T) {
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
