package protocol

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redistest"
)

// The usual case of a script for permits comes before its prelude: see permit_acquire.lua.

// semaphoreOn is one semaphore, with the sources of its scripts.
type semaphoreOn struct {
	*permitBench
	on               *keys.Set
	acquire, release string
}

// withoutUsualCase returns a script that begins with the prelude.
func withoutUsualCase(t *testing.T, source string) string {
	t.Helper()
	_, whole, found := strings.Cut(source, "-- prelude\n")
	require.True(t, found)
	return withPrelude(whole, linePrelude, permitPrelude).Source()
}

// outcome is what a script returned, without times, and what was on Redis after it.
type outcome struct {
	reply                  any
	members, line, entries []string
	expires                bool
}

func (s *semaphoreOn) run(script string, args ...any) outcome {
	s.t.Helper()
	var names []string
	for _, key := range s.on.Line {
		names = append(names, key.(string))
	}
	reply, err := s.rdb.Eval(s.t.Context(), script, names, args...).Result()
	require.NoError(s.t, err)
	if list, many := reply.([]any); many && len(list) > 3 {
		reply = slices.Delete(slices.Clone(list), 1, 2) // for how long
	}
	o := outcome{reply: reply}
	ctx := s.t.Context()
	o.members = s.rdb.ZRange(ctx, names[0], 0, -1).Val()
	o.line = s.rdb.ZRange(ctx, names[2], 0, -1).Val()
	o.entries = s.rdb.HKeys(ctx, names[3]).Val()
	slices.Sort(o.entries)
	o.expires = s.rdb.PTTL(ctx, names[0]).Val() > 0
	return o
}

func TestSemaphore_UsualCaseDecidesAsTheWholeScript(t *testing.T) {
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newPermitBench(newBench(t, backend.Client(t)))
		const seed = 1
		random, usual := rand.New(rand.NewPCG(seed, 0)), 0
		for round := range 40 {
			short := semaphoreOn{b, semaphoreKeys(t, fmt.Sprint(redistest.Key(t), round, "s")), PermitAcquireScript.Source(), PermitReleaseScript.Source()}
			whole := semaphoreOn{b, semaphoreKeys(t, fmt.Sprint(redistest.Key(t), round, "w")),
				withoutUsualCase(t, permitAcquireSource), withoutUsualCase(t, permitReleaseSource)}
			for step := range 25 {
				do := anyStep(random, step)
				got, want := do(&short), do(&whole)
				require.Equal(t, want, got, "round %d, step %d", round, step)
				if len(got.line) == 0 && (got.reply == int64(1) || got.reply == int64(0)) {
					usual++
				}
			}
		}
		require.Greater(t, usual, 100, "grants and releases with an empty line")
	})
}

func semaphoreKeys(tb testing.TB, name string) *keys.Set {
	tb.Helper()
	on := keysOf(tb, name)
	on.Semaphore()
	return on
}

// anyStep returns a random step. No two leases are equal, so the order in which permits end depends on nothing else.
func anyStep(random *rand.Rand, step int) func(s *semaphoreOn) outcome {
	field := permit(random.IntN(6), 1+random.IntN(8)/7)
	limit := 1 + random.IntN(4)
	lease := (asked + time.Duration(step*7%25)*time.Second).Milliseconds()
	first, second := 9e12+float64(1+step), 9e12+float64(1+random.IntN(25))
	switch kind := random.IntN(21); {
	case kind < 8:
		return func(s *semaphoreOn) outcome { return s.run(s.acquire, field, lease, limit, "publish", "numsub") }
	case kind < 10:
		return func(s *semaphoreOn) outcome {
			return s.run(s.acquire, field, lease, limit, "publish", "numsub", long.Milliseconds(), step, "grants")
		}
	case kind < 17:
		return func(s *semaphoreOn) outcome { return s.run(s.release, field, "publish", "numsub") }
	case kind < 18:
		return func(s *semaphoreOn) outcome {
			return s.run(s.release, field, "publish", "numsub", keys.PermitPlaceholder(field), lease)
		}
	case kind < 19:
		return func(s *semaphoreOn) outcome { // a lease that is over, and a key without expiry
			s.rdb.ZAddXX(s.t.Context(), s.on.Keys[0], redis.Z{Score: 1, Member: field})
			s.rdb.Persist(s.t.Context(), s.on.Keys[0])
			return s.run(s.acquire, permit(7, 1), lease, limit, "publish", "numsub")
		}
	case kind < 20:
		return func(s *semaphoreOn) outcome { // all entries of the line are skipped, also one of field
			s.rdb.Del(s.t.Context(), s.on.Line[2].(string))
			s.rdb.HSet(s.t.Context(), s.on.Line[3].(string), field, fmt.Sprintf("aside 1 9000000000000 60000 %d 1 2 grants", limit))
			s.rdb.PExpire(s.t.Context(), s.on.Line[3].(string), long)
			if step%2 == 0 {
				return s.run(s.release, field, "publish", "numsub")
			}
			return s.run(s.acquire, field, lease, limit, "publish", "numsub")
		}
	default:
		return func(s *semaphoreOn) outcome { // another program's
			s.rdb.Del(s.t.Context(), s.on.Keys[0])
			s.rdb.ZAdd(s.t.Context(), s.on.Keys[0], redis.Z{Score: first, Member: "ann"}, redis.Z{Score: second, Member: permit(8, 1)})
			s.rdb.PExpire(s.t.Context(), s.on.Keys[0], long)
			return s.run(s.acquire, permit(7, 1), lease, 4, "publish", "numsub")
		}
	}
}

// BenchmarkPermit is the time that Redis takes for a permit that is free, and for its release.
func BenchmarkPermit(b *testing.B) {
	for _, inUse := range []int{0, 1, 7, 99} {
		for _, measured := range []string{"acquire", "release"} {
			b.Run(fmt.Sprintf("%s/%d in use", measured, inUse), func(b *testing.B) { benchmarkPermit(b, inUse, measured) })
		}
	}
}

func benchmarkPermit(b *testing.B, inUse int, measured string) {
	rdb := redistest.NewServer(b).Client(b)
	permits := NewPermits(NewPlain(executorOn(b, rdb, clock.System, usualTTL), false), "p")
	var all []*keys.Set
	for i := range 100 {
		all = append(all, semaphoreKeys(b, fmt.Sprint("s", i)))
	}
	take := func(n int) {
		for _, on := range all {
			g, out := permits.Acquire(b.Context(), options, on, permit(n, 1), limited(100))
			if out.Err != nil || !g.Held {
				b.Fatal("not held", out.Err)
			}
		}
	}
	giveBack := func(n int) {
		for _, on := range all {
			r, out := permits.Release(b.Context(), options, on, permit(n, 1), []int{0})
			if out.Err != nil || !r.Ours {
				b.Fatal("not ours", out.Err)
			}
		}
	}
	for n := range inUse {
		take(n)
	}
	take(inUse)
	giveBack(inUse) // the scripts are known
	calls, micros := 0, 0
	count := func() {
		c, u := redisTime(b, rdb)
		calls, micros = calls+c, micros+u
	}
	for b.Loop() {
		rdb.ConfigResetStat(b.Context())
		take(inUse)
		if measured == "acquire" {
			count()
		}
		rdb.ConfigResetStat(b.Context())
		giveBack(inUse)
		if measured == "release" {
			count()
		}
	}
	b.ReportMetric(float64(micros)/float64(calls), "redis-us/op")
}
