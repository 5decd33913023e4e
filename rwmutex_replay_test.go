package relock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fieldIn is the name by which an actor acquires to read.
func (b *rwBench) fieldIn(a *actor) (field string) {
	b.t.Helper()
	require.NoError(b.t, a.call(func() error {
		field = fieldOf(b.c)
		return nil
	}))
	return field
}

// A request to read that is sent again may find what its first copy made, dead, and kept on
// Redis by others who read.
func TestAReaderThatFindsItsOwnFieldDeadBeginsAnew(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, field := b.mutex(), b.fieldIn(b.me)
		b.strangerReads("alive:1", time.Hour)
		require.NoError(b.t, b.rdb.HSet(b.t.Context(), b.key, field, 1).Err())
		claim := m.read.target.RW.Claim
		require.NoError(b.t, b.rdb.Set(b.t.Context(), claim, "1 waiting:7:write", time.Hour).Err())
		require.False(b.t, b.me.tries(b.t, toRead(m)), "it is a new reader, whom a claim keeps out")
		require.NoError(b.t, b.rdb.Del(b.t.Context(), claim).Err())

		b.me.locks(b.t, toRead(m))
		require.Positive(b.t, ttlOf(b.rdb, b.timeout(field, 1)), "for Redis it does not read")
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.timeout("alive:1", 1)).Err())
		require.NoError(b.t, b.rdb.PExpire(b.t.Context(), b.key, defaultTTL).Err())
		require.False(b.t, b.you.tries(b.t, toWrite(m)))
		b.me.unlocks(b.t, toRead(m))
	})
}
