package protocol

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redistest"
)

// The undo of a reader may come when the name is a plain lock's.
func TestRW_ReaderReleaseLeavesAPlainLock(t *testing.T) {
	eachRWBench(t, func(b *rwBench) {
		plain := hashOf(forever, "uuid:1", "2")
		b.paint(b.on.Keys[0], plain)
		for _, count := range []int{1, 0} {
			answer, out := b.reads.Release(b.t.Context(), options, b.on, "uuid:1", []int{count})
			require.NoError(b.t, out.Err)
			require.False(b.t, answer.Ours)
			require.Equal(b.t, plain, b.look(b.on.Keys[0]))
		}
		b.paint(b.on.Keys[0], absent)
	})
}

// A client hands over only what it does not read as well: a fixed owner may have begun to since.
func TestRW_WriterThatReadsIsNotFollowedByAWriter(t *testing.T) {
	eachRWBench(t, func(b *rwBench) {
		const writer = me + keys.WriteSuffix
		b.write(writer)
		b.read(me, writer)
		before := b.look(b.on.Keys[0])
		g, out := b.writes.Handoff(b.t.Context(), options, b.on, writer, "uuid:7:write", b.terms)
		require.ErrorIs(b.t, out.Err, errReadsToo)
		require.False(b.t, out.Ambiguous, "its owner releases it")
		require.False(b.t, g.Held)
		require.Equal(b.t, before, b.look(b.on.Keys[0]))
		b.release(b.reads, me)
		b.release(b.writes, writer)
	})
}

var scriptTime = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+),usec=(\d+)`)

// redisTime returns how often a server has run scripts by their digest since its statistics
// were reset, and for how long.
func redisTime(tb testing.TB, rdb *redis.Client) (calls, micros int) {
	tb.Helper()
	info, err := rdb.Info(tb.Context(), "commandstats").Result()
	found := scriptTime.FindStringSubmatch(info)
	if err != nil || found == nil {
		tb.Fatal("no statistics of scripts", err)
	}
	calls, _ = strconv.Atoi(found[1])
	micros, _ = strconv.Atoi(found[2])
	return calls, micros
}

// commandsOf returns how often a server has run each command since its statistics were reset, in scripts too.
func commandsOf(tb testing.TB, rdb *redis.Client) map[string]int {
	tb.Helper()
	info, err := rdb.Info(tb.Context(), "commandstats").Result()
	require.NoError(tb, err)
	calls := make(map[string]int)
	for _, m := range regexp.MustCompile(`cmdstat_([a-z]+):calls=(\d+)`).FindAllStringSubmatch(info, -1) {
		calls[m[1]], err = strconv.Atoi(m[2])
		require.NoError(tb, err)
	}
	return calls
}

// What Redis does for the release of one reader is bounded, however many others read and whatever leases they have.
func TestRW_ReaderReleaseDoesNotScanAllReaders(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"": nil, ", without HRANDFIELD": {"--rename-command", "HRANDFIELD", ""}} {
		for lives, left := range spreads {
			t.Run(lives+name, func(t *testing.T) {
				t.Parallel()
				b := newRWBench(t, redistest.NewServer(t, args...).Client(t))
				b.terms.TTL = 300 * time.Second
				manyRead(t, b.rdb, b.on, 2000, left)
				b.read(me, "")
				require.NoError(t, b.rdb.ConfigResetStat(t.Context()).Err())
				b.release(b.reads, me)
				calls, all := commandsOf(t, b.rdb), 0
				for command, n := range calls {
					require.NotContains(t, []string{"hgetall", "hkeys", "hvals"}, command)
					all += n
				}
				require.Less(t, all, 50, "%v", calls)
				require.EqualValues(t, 2000+1, b.rdb.HLen(t.Context(), b.on.Keys[0]).Val())
			})
		}
	}
}

func TestRW_ForceEndsManyReadersInSteps(t *testing.T) {
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
	manyRead(b.t, b.rdb, b.on, readers, func(int) time.Duration { return short })
	fields := b.readers()
	require.Len(b.t, fields, readers)
	for _, some := range [][]string{fields[:20], fields[20 : readers-1]} { // those who are left have the lock
		forced, out := b.reads.Force(b.t.Context(), options, b.on, 0, some)
		mustDo(b.t, out)
		require.True(b.t, forced)
		require.Equal(b.t, short, redistest.Life(b.t, b.rdb, b.on.Keys[0]))
	}
	require.Equal(b.t, fields[readers-1:], b.readers())
	forced, out := b.reads.Force(b.t.Context(), options, b.on, 0, fields[readers-1:])
	mustDo(b.t, out)
	require.True(b.t, forced)
	b.requireFree()
}

// BenchmarkReleaseAmongReaders is the time that Redis takes for the release of one of many readers.
func BenchmarkReleaseAmongReaders(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000, 10000} {
		for name, left := range spreads {
			b.Run(fmt.Sprintf("%d readers/%s", n, name), func(b *testing.B) {
				rdb := redistest.NewServer(b).Client(b)
				on, terms := keysOf(b, "x"), termsOf()
				on.ReadWrite()
				terms.TTL = 300 * time.Second
				reads, _ := NewReadWrite(NewPlain(executorOn(b, rdb, clock.System, terms.TTL), false))
				manyRead(b, rdb, on, n, left)
				take := func(i int) {
					g, out := reads.Acquire(b.Context(), options, on, fmt.Sprintf("me:%d", i), terms)
					if out.Err != nil || !g.Held {
						b.Fatal("not held", out.Err)
					}
				}
				giveBack := func(i int) {
					r, out := reads.Release(b.Context(), options, on, fmt.Sprintf("me:%d", i), []int{0})
					if out.Err != nil || !r.Ours {
						b.Fatal("not ours", out.Err)
					}
				}
				take(0)
				giveBack(0) // the scripts are known
				calls, micros := 0, 0
				for b.Loop() {
					for i := range 100 {
						take(i)
					}
					rdb.ConfigResetStat(b.Context())
					for i := range 100 {
						giveBack(i)
					}
					c, u := redisTime(b, rdb)
					calls, micros = calls+c, micros+u
				}
				b.ReportMetric(float64(micros)/float64(calls), "redis-us/op")
			})
		}
	}
}
