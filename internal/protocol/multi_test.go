package protocol

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redistest"
)

var silence = [][]string{nil, nil, nil}

func TestMulti_AcquireTakesAllOrNone(t *testing.T) {
	mine, theirs := hashOf(asked, me, "1"), hashOf(short, them, "1")
	for name, c := range map[string]struct {
		before []picture
		reply  string
	}{
		"all free":          {[]picture{absent, absent, absent}, "held, token 0"},
		"one mine":          {[]picture{absent, hashOf(short, me, "1"), absent}, "held, token 0"},
		"the first busy":    {[]picture{theirs, absent, absent}, "busy: " + them},
		"the middle busy":   {[]picture{absent, theirs, absent}, "busy: " + them},
		"the last busy":     {[]picture{absent, absent, theirs}, "busy: " + them},
		"busy after mine":   {[]picture{hashOf(short, me, "1"), theirs, absent}, "busy: " + them},
		"a string":          {[]picture{absent, absent, textOf(short, "x")}, "another type"},
		"a read-write lock": {[]picture{absent, hashOf(short, "mode", "read", me, "1"), absent}, "read-write lock"},
	} {
		t.Run(name, func(t *testing.T) {
			eachBench(t, func(t *testing.T, b *bench) {
				target := b.target(3)
				b.paintAll(target, c.before...)
				after := c.before
				if c.reply == "held, token 0" {
					after = counted(3, mine)
				}
				for range 2 {
					messages := b.messages(target, func() {
						require.Equal(t, c.reply, granted(b.Acquire(t.Context(), options, target, me, termsOf())))
					})
					require.Equal(t, silence, messages)
					require.Equal(t, after, b.lookAll(target))
				}
			})
		})
	}
}

func TestMulti_AcquireNamesABusyKeyByItsPosition(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		for i := range 3 {
			target := b.target(3)
			b.paint(target.Keys[i], hashOf(forever, them, "1"))
			r, out := b.Exec.Run(t.Context(), options, AcquireScript, target.Locks(), me, asked.Milliseconds(), 3, 0, 0)
			mustDo(t, out)
			require.Equal(t, []any{int64(0), int64(-1), int64(i + 1), them}, r)
			g, out := b.Acquire(t.Context(), options, target, me, termsOf())
			mustDo(t, out)
			require.Equal(t, Grant{Key: i, TTL: forever, Holder: them}, g)
		}
	})
}

func TestMulti_AcquireNamesARefusedKeyInTheError(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		for i := range 3 {
			target := b.target(3)
			b.paint(target.Keys[i], textOf(forever, "x"))
			_, out := b.Acquire(t.Context(), options, target, me, termsOf())
			refusedAs(t, out, lockerr.ErrInvalidName, `"`+target.Keys[i]+`"`)
			_, out = b.State(t.Context(), options, target, i)
			refusedAs(t, out, lockerr.ErrInvalidName, `"`+target.Keys[i]+`"`)
		}
	})
}

func TestMultiKeys_OneLostKeyIsAllLostAndNothingChanges(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	scripts := map[string]func(b *bench, target *keys.Set) string{
		"reenter": func(b *bench, target *keys.Set) string {
			return granted(b.Reenter(b.t.Context(), options, target, me, termsOf(), false, []int{2, 3, 2}))
		},
		"renew": func(b *bench, target *keys.Set) string {
			if ok := yes(b.Renew(b.t.Context(), options, target, me, asked)); ok != "false" {
				return ok
			}
			return "lost"
		},
		"handoff": func(b *bench, target *keys.Set) string {
			return granted(b.Handoff(b.t.Context(), options, target, me, you, termsOf()))
		},
	}
	states := map[string]picture{
		"absent":            absent,
		"another owner's":   hashOf(short, them, "1"),
		"a string":          textOf(short, "x"),
		"a read-write lock": hashOf(short, "mode", "read", them, "1"),
	}
	for script, run := range scripts {
		for state, gone := range states {
			t.Run(script+" "+state, func(t *testing.T) {
				eachBench(t, func(t *testing.T, b *bench) {
					for i := range 3 {
						target := b.target(3)
						before := counted(3, hashOf(short, me, "1"))
						before[i] = gone
						b.paintAll(target, before...)
						messages := b.messages(target, func() { require.Equal(t, "lost", run(b, target)) })
						require.Equal(t, silence, messages)
						require.Equal(t, before, b.lookAll(target))
					}
				})
			})
		}
	}
}

func TestMultiKeys_EachHasItsOwnCount(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		target := b.target(3)
		b.paintAll(target, counted(3, hashOf(short, me, "1"))...)
		require.Equal(t, "held, token 0",
			granted(b.Reenter(t.Context(), options, target, me, termsOf(), false, []int{1, 2, 3})))
		require.Equal(t, []picture{hashOf(asked, me, "1"), hashOf(asked, me, "2"), hashOf(asked, me, "3")}, b.lookAll(target))

		messages := b.messages(target, func() {
			status, out := b.Release(t.Context(), options, target, me, []int{0, 1, 2})
			mustDo(t, out)
			require.Equal(t, Released{Ours: true, Receivers: 1}, status)
		})
		require.Equal(t, [][]string{{"0"}, nil, nil}, messages, "only the released key is free")
		require.Equal(t, []picture{absent, hashOf(asked, me, "1"), hashOf(asked, me, "2")}, b.lookAll(target))
	})
}

func TestMulti_ReleaseReportsTheSmallestAudience(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		for _, receivers := range [][]int{{0, 0, 0}, {1, 2, 3}, {3, 1, 2}, {2, 3, 1}, {2, 0, 2}, {0, 1, 1}} {
			target := b.target(3)
			b.paintAll(target, counted(3, hashOf(short, me, "1"))...)
			var subs []*redis.PubSub
			for i, n := range receivers {
				for range n {
					sub := b.rdb.Subscribe(t.Context(), target.Channels[i])
					_, err := sub.Receive(t.Context())
					require.NoError(t, err)
					subs = append(subs, sub)
				}
			}
			r, out := b.Release(t.Context(), options, target, me, []int{0, 0, 0})
			mustDo(t, out)
			require.Equal(t, Released{Ours: true, Receivers: slices.Min(receivers)}, r, "of %v", receivers)
			for _, sub := range subs {
				require.NoError(t, sub.Close())
			}
		}
	})
}

func TestMulti_RenewLengthensEachKeyByWhatItLacks(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		target := b.target(3)
		b.paintAll(target, hashOf(long, me, "1"), hashOf(short, me, "2"), hashOf(forever, me, "1"))
		require.Equal(t, "true", yes(b.Renew(t.Context(), options, target, me, asked)))
		require.Equal(t, []picture{hashOf(long, me, "1"), hashOf(asked, me, "2"), hashOf(asked, me, "1")}, b.lookAll(target))
	})
}

func TestMulti_ReleaseFreesTheRestWhenOneKeyIsLost(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		for _, gone := range []picture{absent, hashOf(short, them, "1"), textOf(short, "x")} {
			target := b.target(3)
			b.paintAll(target, hashOf(short, me, "1"), gone, hashOf(short, me, "1"))
			messages := b.messages(target, func() {
				status, out := b.Release(t.Context(), options, target, me, []int{0, 0, 0})
				mustDo(t, out)
				require.Equal(t, Released{Receivers: 1}, status)
			})
			require.Equal(t, [][]string{{"0"}, nil, {"0"}}, messages)
			require.Equal(t, []picture{absent, gone, absent}, b.lookAll(target))
		}
	})
}

func TestMulti_QuietReleaseReportsHoldsAndWakesNobody(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		target := b.target(3)
		b.paintAll(target, hashOf(short, me, "1"), hashOf(short, me, "2"), hashOf(short, me, "1"))
		for _, held := range []bool{true, false} {
			messages := b.messages(target, func() {
				ours, out := b.ReleaseQuietly(t.Context(), options, target, me)
				mustDo(t, out)
				require.Equal(t, held, ours)
			})
			require.Equal(t, silence, messages)
		}
	})
}

func TestMulti_HandoffIsFinishedByItsReplay(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		target := b.target(3)
		b.paintAll(target, hashOf(long, you, "1"), hashOf(short, me, "2"), hashOf(short, you, "2"))
		messages := b.messages(target, func() {
			require.Equal(t, "held, token 0", granted(b.Handoff(t.Context(), options, target, me, you, termsOf())))
		})
		require.Equal(t, silence, messages)
		require.Equal(t, []picture{hashOf(long, you, "1"), hashOf(asked, you, "1"), hashOf(asked, you, "2")}, b.lookAll(target))
	})
}

func TestMulti_ForceEndsOneKey(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		target := b.target(3)
		b.paintAll(target, counted(3, hashOf(short, them, "1"))...)
		messages := b.messages(target, func() {
			require.Equal(t, "true", yes(b.Force(t.Context(), options, target, 1, []string{them})))
		})
		require.Equal(t, [][]string{nil, {"0"}, nil}, messages)
		require.Equal(t, []picture{hashOf(short, them, "1"), absent, hashOf(short, them, "1")}, b.lookAll(target))
	})
}

// A life of a lock may be longer than a time.Duration can say; a waiter must not take it
// for a short one.
func TestMultiKeys_TTLOfCenturiesIsNotTakenForAShortOne(t *testing.T) {
	b := newBench(t, redistest.Redis(t).Client(t)) // the in-memory server does not support such lives
	target := b.target(1)
	b.paint(target.Keys[0], hashOf(forever, them, "1"))
	for _, life := range []int64{10_000_000_000_000, 18446744073710, 27670116110564} {
		require.NoError(t, b.rdb.Do(t.Context(), "pexpire", target.Keys[0], life).Err())
		g, out := b.Acquire(t.Context(), options, target, me, termsOf())
		mustDo(t, out)
		require.Greater(t, g.TTL, 290*365*24*time.Hour, "of %d ms", life)
		s, out := b.State(t.Context(), options, target, 0)
		mustDo(t, out)
		require.Greater(t, s.TTL, 290*365*24*time.Hour, "of %d ms", life)
	}
}
