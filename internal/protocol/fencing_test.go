package protocol

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
)

// minters are the scripts that mint a token when they are asked to, each with the state of
// the keys that it needs.
var minters = map[string]struct {
	needs picture
	run   func(b *bench, target *keys.Set, s *Terms) (Grant, redisexec.Outcome)
}{
	"acquire": {absent, func(b *bench, target *keys.Set, s *Terms) (Grant, redisexec.Outcome) {
		return b.Acquire(b.t.Context(), options, target, me, s)
	}},
	"reenter": {hashOf(short, me, "1"), func(b *bench, target *keys.Set, s *Terms) (Grant, redisexec.Outcome) {
		return b.Reenter(b.t.Context(), options, target, me, s, true, make([]int, len(target.Keys)))
	}},
	"handoff": {hashOf(short, them, "1"), func(b *bench, target *keys.Set, s *Terms) (Grant, redisexec.Outcome) {
		return b.Handoff(b.t.Context(), options, target, them, me, s)
	}},
}

// eachMinter runs fn for each script that mints, on n keys that are ready for it.
func eachMinter(t *testing.T, n int, fn func(t *testing.T, b *bench, target *keys.Set, mint func(*Terms) (Grant, redisexec.Outcome))) {
	for name, m := range minters {
		t.Run(name, func(t *testing.T) {
			eachBench(t, func(t *testing.T, b *bench) {
				target := b.target(n)
				b.paintAll(target, counted(n, m.needs)...)
				fn(t, b, target, func(s *Terms) (Grant, redisexec.Outcome) { return m.run(b, target, s) })
			})
		})
	}
}

// microseconds returns what the server's clock says.
func (b *bench) microseconds() int64 {
	b.t.Helper()
	now, err := b.rdb.Time(b.t.Context()).Result()
	require.NoError(b.t, err)
	return now.UnixMicro()
}

func text(token int64) string { return strconv.FormatInt(token, 10) }

func TestTokens_AreAtLeastTheServersTime(t *testing.T) {
	eachMinter(t, 1, func(t *testing.T, b *bench, target *keys.Set, mint func(*Terms) (Grant, redisexec.Outcome)) {
		before := b.microseconds()
		g, out := mint(termsOf(fencing))
		mustDo(t, out)
		require.True(t, g.Held)
		require.GreaterOrEqual(t, g.Token, before)
		require.LessOrEqual(t, g.Token, b.microseconds())
		require.Equal(t, textOf(day, text(g.Token)), b.look(target.Counters[0]))
	})
}

func TestTokens_EveryReplayMintsANewerOne(t *testing.T) {
	eachMinter(t, 1, func(t *testing.T, b *bench, target *keys.Set, mint func(*Terms) (Grant, redisexec.Outcome)) {
		last := int64(0)
		for range 20 {
			g, out := mint(termsOf(fencing))
			mustDo(t, out)
			require.Greater(t, g.Token, last)
			last = g.Token
		}
		require.Equal(t, text(last), b.look(target.Counters[0]).Text)
	})
}

func TestTokens_RiseOverALostCounter(t *testing.T) {
	eachMinter(t, 1, func(t *testing.T, b *bench, target *keys.Set, mint func(*Terms) (Grant, redisexec.Outcome)) {
		first, out := mint(termsOf(fencing))
		mustDo(t, out)
		b.paint(target.Counters[0], absent)
		second, out := mint(termsOf(fencing))
		mustDo(t, out)
		require.Greater(t, second.Token, first.Token)
	})
}

func TestTokens_CountOnFromACounterAheadOfTheClock(t *testing.T) {
	eachMinter(t, 1, func(t *testing.T, b *bench, target *keys.Set, mint func(*Terms) (Grant, redisexec.Outcome)) {
		ahead := b.microseconds() + int64(365*24*time.Hour/time.Microsecond)
		for i, last := range []int64{ahead, 1<<53 - 3} {
			b.paint(target.Counters[0], textOf(short, text(last)))
			g, out := mint(termsOf(fencing))
			mustDo(t, out)
			require.Equal(t, last+1, g.Token, "case %d", i)
			require.Equal(t, text(last+1), b.look(target.Counters[0]).Text)
		}
	})
}

func TestTokens_LeaveACounterBehindTheClock(t *testing.T) {
	eachMinter(t, 1, func(t *testing.T, b *bench, target *keys.Set, mint func(*Terms) (Grant, redisexec.Outcome)) {
		for _, last := range []string{"0", "1", "41"} { // as Java's counter says them
			b.paint(target.Counters[0], textOf(forever, last))
			before := b.microseconds()
			g, out := mint(termsOf(fencing))
			mustDo(t, out)
			require.GreaterOrEqual(t, g.Token, before)
		}
	})
}

func TestTokens_CounterLivesADayUnlessShared(t *testing.T) {
	t.Parallel()
	private, shared := termsOf(fencing), termsOf(sharedFencing)
	for name, c := range map[string]struct {
		terms  *Terms
		before picture
		life   time.Duration
	}{
		"a new one":                              {private, absent, day},
		"a new shared one":                       {shared, absent, forever},
		"one that expires":                       {private, textOf(short, "1"), day},
		"one that expires, now shared":           {shared, textOf(short, "1"), forever},
		"one without expiry":                     {private, textOf(forever, "1"), forever},
		"one without expiry, shared":             {shared, textOf(forever, "1"), forever},
		"one without expiry, ahead of the clock": {private, textOf(forever, "8000000000000000"), forever},
	} {
		t.Run(name, func(t *testing.T) {
			eachMinter(t, 1, func(t *testing.T, b *bench, target *keys.Set, mint func(*Terms) (Grant, redisexec.Outcome)) {
				b.paint(target.Counters[0], c.before)
				for range 2 {
					g, out := mint(c.terms)
					mustDo(t, out)
					require.Equal(t, textOf(c.life, text(g.Token)), b.look(target.Counters[0]))
				}
			})
		})
	}
}

func TestMultiTokens_ExceedAllCounters(t *testing.T) {
	eachMinter(t, 3, func(t *testing.T, b *bench, target *keys.Set, mint func(*Terms) (Grant, redisexec.Outcome)) {
		b.paint(target.Counters[0], textOf(short, "5"))
		b.paint(target.Counters[1], textOf(forever, "8000000000000000"))
		b.paint(target.Counters[2], absent)
		g, out := mint(termsOf(fencing))
		mustDo(t, out)
		require.Equal(t, int64(8000000000000001), g.Token)
		for i, life := range []time.Duration{day, forever, day} {
			require.Equal(t, textOf(life, "8000000000000001"), b.look(target.Counters[i]))
		}
	})
}

func TestTokens_RefuseAnInvalidCounterAndChangeNothing(t *testing.T) {
	t.Parallel()
	for _, bad := range []picture{
		listOf(forever),
		hashOf(short, "a", "1"),
		textOf(forever, ""),
		textOf(short, "garbage"),
		textOf(forever, "12 months"),
		textOf(forever, " 12"),
		textOf(forever, "-12"),
		textOf(forever, "1.5"),
		textOf(forever, "1e3"),
		textOf(forever, "0x10"),
		textOf(forever, "nan"),
		textOf(forever, "inf"),
		textOf(forever, "9007199254740991"), // 2^53-1: the next one could not be distinguished from its neighbours
		textOf(forever, "99999999999999999999"),
	} {
		t.Run(bad.Kind+" "+bad.Text, func(t *testing.T) {
			eachMinter(t, 2, func(t *testing.T, b *bench, target *keys.Set, mint func(*Terms) (Grant, redisexec.Outcome)) {
				for i := range 2 {
					b.paint(target.Counters[i], bad)
					b.paint(target.Counters[1-i], textOf(short, "7"))
					before := b.lookAll(target)
					var out redisexec.Outcome
					messages := b.messages(target, func() { _, out = mint(termsOf(fencing)) })
					refusedAs(t, out, lockerr.ErrInvalidName, `"`+target.Counters[i]+`"`)
					require.Equal(t, [][]string{nil, nil}, messages)
					require.Equal(t, before, b.lookAll(target))
					require.Equal(t, bad, b.look(target.Counters[i]))
					require.Equal(t, textOf(short, "7"), b.look(target.Counters[1-i]))
				}
			})
		})
	}
}

func TestTokens_FailedScriptMintsNone(t *testing.T) {
	eachMinter(t, 2, func(t *testing.T, b *bench, target *keys.Set, mint func(*Terms) (Grant, redisexec.Outcome)) {
		b.paint(target.Keys[1], hashOf(short, "uuid-3:1", "1"))
		g, out := mint(termsOf(fencing))
		mustDo(t, out)
		require.False(t, g.Held)
		require.Zero(t, g.Token)
		for _, counter := range target.Counters {
			require.Equal(t, absent, b.look(counter))
		}
	})
}

func TestTokens_ReentryMintsOnlyOnRequest(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		target := b.target(1)
		b.paint(target.Keys[0], hashOf(short, me, "1"))
		g, out := b.Reenter(t.Context(), options, target, me, termsOf(fencing), false, []int{2})
		mustDo(t, out)
		require.Equal(t, Grant{Held: true}, g)
		require.Equal(t, absent, b.look(target.Counters[0]))
	})
}

func TestTokens_AreReadableByOtherPrograms(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		target := b.target(1)
		g, out := b.Acquire(t.Context(), options, target, me, termsOf(sharedFencing))
		mustDo(t, out)
		// What Java does with it.
		next, err := b.rdb.Incr(t.Context(), target.Counters[0]).Result()
		require.NoError(t, err)
		require.Equal(t, g.Token+1, next)
		g, out = b.Acquire(t.Context(), options, target, me, termsOf(sharedFencing))
		mustDo(t, out)
		require.Greater(t, g.Token, next)
	})
}
