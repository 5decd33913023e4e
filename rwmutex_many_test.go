package relock_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// manyRead has n owners of no process read m.
func manyRead(tb testing.TB, rdb *redis.Client, m *relock.RWMutex, n int, left func(i int) time.Duration) {
	tb.Helper()
	redistest.ManyRead(tb, rdb, m.Read().Keys().Keys[0], m.Read().Keys().RW.Timeouts, n, left)
}

// Each that is dead is paid for once.
func TestRWMutex_LastReaderOfManyFreesALockOfDeadReaders(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex()
		manyRead(b.t, b.rdb, m, 500, func(int) time.Duration { return time.Millisecond })
		b.me.Locks(b.t, m.Read())
		require.NoError(b.t, b.rdb.PExpire(b.t.Context(), b.key, time.Hour).Err())
		redistest.Eventually(b.t, "the end of their leases", func() bool { return len(keysAbout(b.t, b.rdb, "{"+b.key+"}")) == 1 })
		theirs := b.another(relock.WithSafetyPoll(time.Hour))
		waiting := b.you.Lock(b.t.Context(), theirs.Write())
		redistest.Eventually(b.t, "a claim", func() bool { return b.rdb.Exists(b.t.Context(), m.Write().Keys().RW.Claim).Val() == 1 })
		b.me.Unlocks(b.t, m.Read())
		require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
		b.you.Unlocks(b.t, theirs.Write())
	})
}

func TestRWMutex_ForceUnlockEndsManyReaders(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	for name, args := range map[string][]string{"": nil, "without HRANDFIELD": {"--rename-command", "HRANDFIELD", ""}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testForceOfMany(newRWBench(t, redistest.NewServer(t, args...).Client(t)), 600)
		})
	}
	// Its Lua is slow where the race detector looks on.
	t.Run("miniredis", func(t *testing.T) { testForceOfMany(newRWBench(t, redistest.Mini(t).Client(t)), 100) })
}

func testForceOfMany(b *rwBench, readers int) {
	m := b.mutex()
	manyRead(b.t, b.rdb, m, readers, func(int) time.Duration { return time.Minute })
	require.Len(b.t, stateOf(b.t, m).Readers, readers)
	forced, err := m.ForceUnlock(b.t.Context())
	require.NoError(b.t, err)
	require.True(b.t, forced)
	b.free()
	manyRead(b.t, b.rdb, m, 100, func(int) time.Duration { return time.Minute })
	forced, err = m.ForceUnlock(b.t.Context()) // no reader of the first is left
	require.NoError(b.t, err)
	require.True(b.t, forced)
	b.free()
}
