package relock

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// spreads are the leases of many readers, as what they have left of them.
var spreads = map[string]func(i int) time.Duration{
	"alike":  func(int) time.Duration { return 300 * time.Second },
	"spread": func(i int) time.Duration { return 200*time.Second + time.Duration(i*7919%10000)*10*time.Millisecond },
	"mixed":  func(i int) time.Duration { return 100*time.Second + time.Duration(i%97)*100*time.Second },
}

// manyRead has n processes that are none of ours read m.
func manyRead(tb testing.TB, rdb *redis.Client, m *RWMutex, n int, left func(i int) time.Duration) {
	tb.Helper()
	t, ctx := m.read.target, tb.Context()
	var longest time.Duration
	pipe := rdb.Pipeline()
	for i := range n {
		field, lease := fmt.Sprintf("00000000-0000-4000-8000-%012d:%d", i, i), left(i)
		longest = max(longest, lease)
		pipe.HSet(ctx, t.Keys[0], "mode", "read", field, 1)
		pipe.Set(ctx, fmt.Sprintf("%s:%s:rwlock_timeout:1", t.RW.Timeouts, field), 1, lease)
	}
	pipe.PExpire(ctx, t.Keys[0], longest)
	if _, err := pipe.Exec(ctx); err != nil {
		tb.Fatal(err)
	}
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
func TestTheReleaseOfAReaderDoesNotLookAtAllOthers(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"": nil, ", without HRANDFIELD": {"--rename-command", "HRANDFIELD", ""}} {
		for lives, left := range spreads {
			t.Run(lives+name, func(t *testing.T) {
				t.Parallel()
				rdb := redistest.NewServer(t, args...).Client(t)
				m := locksOn(t, rdb, WithTTL(300*time.Second)).RWMutex("x")
				manyRead(t, rdb, m, 2000, left)
				takeAs(t, m, 0)
				require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
				giveBackAs(t, m, 0)
				calls, all := commandsOf(t, rdb), 0
				for command, n := range calls {
					require.NotContains(t, []string{"hgetall", "hkeys", "hvals"}, command)
					all += n
				}
				require.Less(t, all, 50, "%v", calls)
				require.EqualValues(t, 2000+1, rdb.HLen(t.Context(), "x").Val())
			})
		}
	}
}

// Each that is dead is paid for once.
func TestTheLastReaderOfManyFreesALockThatTheDeadHaveLeft(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex()
		manyRead(b.t, b.rdb, m, 500, func(int) time.Duration { return time.Millisecond })
		b.me.locks(b.t, toRead(m))
		require.NoError(b.t, b.rdb.PExpire(b.t.Context(), b.key, time.Hour).Err())
		eventually(b.t, "the end of their leases", func() bool { return len(keysAbout(b.t, b.rdb, "{"+b.key+"}")) == 1 })
		theirs := b.another(WithSafetyPoll(time.Hour))
		waiting := b.you.lock(b.t.Context(), toWrite(theirs))
		eventually(b.t, "a claim", func() bool { return b.rdb.Exists(b.t.Context(), m.write.target.RW.Claim).Val() == 1 })
		b.me.unlocks(b.t, toRead(m))
		require.NoError(b.t, outcomeOf(b.t, waiting))
		b.you.unlocks(b.t, toWrite(theirs))
	})
}

func TestAForceEndsManyReaders(t *testing.T) {
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
	fields := slices.Collect(maps.Keys(stateOf(b.t, m).Readers))
	t, k := m.read.target, m.read.kind
	for _, some := range [][]string{fields[:20], fields[20 : readers-1]} { // those who are left have the lock
		forced, out := k.protocol.Force(b.t.Context(), acquireEffort, t, 0, some)
		mustDo(b.t, out)
		require.True(b.t, forced)
		b.requireLife(time.Minute)
	}
	require.Len(b.t, stateOf(b.t, m).Readers, 1)
	forced, err := m.ForceUnlock(b.t.Context())
	require.NoError(b.t, err)
	require.True(b.t, forced)
	b.free()
	manyRead(b.t, b.rdb, m, 100, func(int) time.Duration { return time.Minute })
	forced, err = m.ForceUnlock(b.t.Context()) // nobody is left
	require.NoError(b.t, err)
	require.True(b.t, forced)
	b.free()
}

// BenchmarkReleaseAmongReaders is the time that Redis takes for the release of one of many readers.
func BenchmarkReleaseAmongReaders(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000, 10000} {
		for name, left := range spreads {
			b.Run(fmt.Sprintf("%d readers/%s", n, name), func(b *testing.B) {
				rdb := redistest.NewServer(b).Client(b)
				c, err := New(rdb, WithTTL(300*time.Second))
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = c.Close() })
				m := c.RWMutex("x")
				manyRead(b, rdb, m, n, left)
				releaseOnce(b, m) // the scripts are known
				calls, micros := 0, 0
				for b.Loop() {
					for i := range 100 {
						takeAs(b, m, i)
					}
					rdb.ConfigResetStat(b.Context())
					for i := range 100 {
						giveBackAs(b, m, i)
					}
					c, u := redisTime(b, rdb)
					calls, micros = calls+c, micros+u
				}
				b.ReportMetric(float64(micros)/float64(calls), "redis-us/op")
			})
		}
	}
}

func takeAs(tb testing.TB, m *RWMutex, i int) {
	g, out := m.read.kind.protocol.Acquire(tb.Context(), acquireEffort, m.read.target, fmt.Sprintf("me:%d", i), &m.read.settings.Terms)
	if out.Err != nil || !g.Held {
		tb.Fatal("not held", out.Err)
	}
}

func giveBackAs(tb testing.TB, m *RWMutex, i int) {
	r, out := m.read.kind.protocol.Release(tb.Context(), acquireEffort, m.read.target, fmt.Sprintf("me:%d", i), []int{0})
	if out.Err != nil || !r.Ours {
		tb.Fatal("not ours", out.Err)
	}
}

func releaseOnce(tb testing.TB, m *RWMutex) {
	takeAs(tb, m, 0)
	giveBackAs(tb, m, 0)
}
