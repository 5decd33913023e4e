package tests

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/inside"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// BenchmarkReadersInParallel is one name that many goroutines read: compare it with
// BenchmarkUncontendedNamesInParallel, where each has a lock of its own.
func BenchmarkReadersInParallel(b *testing.B) {
	benchmarkEach(b, func(b *testing.B, c *relock.Client) { benchmarkReadWrite(b, c, 0) })
}

func BenchmarkReadMostly(b *testing.B) {
	benchmarkEach(b, func(b *testing.B, c *relock.Client) { benchmarkReadWrite(b, c, 5) })
}

func BenchmarkWriteMostly(b *testing.B) {
	benchmarkEach(b, func(b *testing.B, c *relock.Client) { benchmarkReadWrite(b, c, 80) })
}

// BenchmarkWriterAmongReaders is how long a writer takes in a stream of readers, of two
// clients, that never ends by itself: 32 at a time, for a millisecond each.
func BenchmarkWriterAmongReaders(b *testing.B) {
	rdb := redistest.Redis(b).Client(b)
	other, err := relock.New(rdb)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = other.Close() })
	benchmarkOn(b, rdb, func(b *testing.B, c *relock.Client) {
		key := redistest.Key(b)
		ctx, stop := context.WithCancel(b.Context())
		var readers sync.WaitGroup
		for i := range 32 {
			m := []*relock.RWMutex{c.RWMutex(key), other.RWMutex(key)}[i%2]
			readers.Go(func() {
				for ctx.Err() == nil {
					err := m.RDo(context.WithoutCancel(ctx), func(ctx context.Context) error {
						clock.Pause(ctx, time.Millisecond)
						return nil
					})
					if err != nil {
						b.Error(err)
					}
				}
			})
		}
		m := c.RWMutex(key)
		var longest time.Duration
		for b.Loop() {
			began := time.Now()
			if err := m.Do(context.Background(), func(context.Context) error { return nil }); err != nil {
				b.Fatal(err)
			}
			longest = max(longest, time.Since(began))
		}
		b.ReportMetric(float64(longest.Nanoseconds()), "longest-ns")
		stop()
		readers.Wait()
	})
}

// benchmarkReadWrite has goroutines write in so many of a hundred turns, and read in the others.
func benchmarkReadWrite(b *testing.B, c *relock.Client, writes int64) {
	m := c.RWMutex(redistest.Key(b))
	var turns atomic.Int64
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			do := m.RDo
			if turns.Add(1)*37%100 < writes {
				do = m.Do
			}
			if err := do(context.Background(), func(context.Context) error { return nil }); err != nil {
				b.Error(err)
			}
		}
	})
}

// manyRead has n owners of no process read m.
func manyRead(tb testing.TB, rdb *redis.Client, m *relock.RWMutex, n int, left func(i int) time.Duration) {
	tb.Helper()
	redistest.ManyRead(tb, rdb, inside.OfMutex(toRead(m)).Keys.Keys[0], inside.OfMutex(toRead(m)).Keys.RW.Timeouts, n, left)
}

// Each that is dead is paid for once.
func TestRWMutex_LastReaderOfManyFreesALockOfDeadReaders(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex()
		manyRead(b.t, b.rdb, m, 500, func(int) time.Duration { return time.Millisecond })
		b.me.Locks(b.t, toRead(m))
		require.NoError(b.t, b.rdb.PExpire(b.t.Context(), b.key, time.Hour).Err())
		redistest.Eventually(b.t, "the end of their leases", func() bool { return len(keysAbout(b.t, b.rdb, "{"+b.key+"}")) == 1 })
		theirs := b.another(relock.WithSafetyPoll(time.Hour))
		waiting := b.you.Lock(b.t.Context(), toWrite(theirs))
		redistest.Eventually(b.t, "a claim", func() bool { return b.rdb.Exists(b.t.Context(), inside.OfMutex(toWrite(m)).Keys.RW.Claim).Val() == 1 })
		b.me.Unlocks(b.t, toRead(m))
		require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
		b.you.Unlocks(b.t, toWrite(theirs))
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
