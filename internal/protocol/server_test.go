package protocol

import (
	"fmt"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redistest"
)

// fullBench is a bench on a server that is out of memory once the test says so.
func fullBench(t *testing.T) (b *bench, fill func()) {
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	return newBench(t, rdb), func() {
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
		require.ErrorContains(t, rdb.Set(t.Context(), "proof", "x", 0).Err(), "OOM")
	}
}

func TestOutOfMemory_AcquireIsRefusedAndLeavesNothing(t *testing.T) {
	b, fill := fullBench(t)
	fill()
	for _, s := range []*Terms{termsOf(), termsOf(fencing)} {
		target := b.target(3)
		g, out := b.Acquire(t.Context(), options, target, me, s)
		require.ErrorContains(t, out.Err, "OOM")
		require.False(t, out.Ambiguous, "it was not executed")
		require.Zero(t, g)
		for i := range target.Keys {
			require.Equal(t, absent, b.look(target.Keys[i]))
			require.Equal(t, absent, b.look(target.Counters[i]))
		}
	}
}

func TestOutOfMemory_HoldsLiveOn(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*Terms{"plain": termsOf(), "with fencing": termsOf(fencing)} {
		for n := 1; n <= 2; n++ {
			t.Run(fmt.Sprint(name, ", keys: ", n), func(t *testing.T) { testHoldsOutOfMemory(t, s, n) })
		}
	}
}

func testHoldsOutOfMemory(t *testing.T, s *Terms, n int) {
	b, fill := fullBench(t)
	target := b.target(n)
	b.paintAll(target, counted(n, hashOf(short, me, "1"))...)
	fill()

	g, out := b.Reenter(t.Context(), options, target, me, s, s.Fencing, []int{2, 3}[:n])
	mustDo(t, out)
	require.True(t, g.Held)
	require.Equal(t, []picture{hashOf(asked, me, "2"), hashOf(asked, me, "3")}[:n], b.lookAll(target))

	ours, out := b.Renew(t.Context(), options, target, me, long)
	mustDo(t, out)
	require.True(t, ours)
	require.Equal(t, []picture{hashOf(long, me, "2"), hashOf(long, me, "3")}[:n], b.lookAll(target))

	again, out := b.Reenter(t.Context(), options, target, me, s, false, []int{3, 4}[:n])
	mustDo(t, out)
	require.Equal(t, Grant{Held: true}, again, "though there is no lease to lengthen")
	require.Equal(t, []picture{hashOf(long, me, "3"), hashOf(long, me, "4")}[:n], b.lookAll(target))

	status, out := b.Release(t.Context(), options, target, me, []int{1, 1}[:n])
	mustDo(t, out)
	require.Equal(t, Released{Ours: true}, status)
	require.Equal(t, counted(n, hashOf(long, me, "1")), b.lookAll(target))

	first := g.Token
	g, out = b.Handoff(t.Context(), options, target, me, you, s)
	mustDo(t, out)
	require.True(t, g.Held)
	require.Equal(t, s.Fencing, g.Token > first, "a newer token if one was wished")
	require.Equal(t, counted(n, hashOf(asked, you, "1")), b.lookAll(target))

	forced, out := b.Force(t.Context(), options, target, 0, []string{you})
	mustDo(t, out)
	require.True(t, forced)
	status, out = b.Release(t.Context(), options, target, you, []int{0, 0}[:n])
	mustDo(t, out)
	require.False(t, status.Ours, "one key was forced")
	require.Equal(t, counted(n, absent), b.lookAll(target))
}

// allCommands are the commands that the scripts use.
var allCommands = []string{
	"hlen", "hexists", "hgetall", "hset", "hdel", "pttl", "pexpire", "time", "get", "set", "lindex", "publish",
}

// asUser returns a bench on a server of the test's own as a user with these ACL rules,
// and one without any limits.
func asUser(t *testing.T, rules ...string) (limited, full *bench) {
	t.Helper()
	server := redistest.NewServer(t)
	return newBench(t, server.User(t, rules...)), newBench(t, server.Client(t))
}

// allowed are the ACL rules for a user of the scripts who lacks some commands.
func allowed(without ...string) []string {
	rules := []string{"~*", "&*", "+eval", "+evalsha"}
	for _, command := range allCommands {
		if !slices.Contains(without, command) {
			rules = append(rules, "+"+command)
		}
	}
	return rules
}

func TestPermissions_WithoutPexpireNoKeyStaysForever(t *testing.T) {
	limited, full := asUser(t, allowed("pexpire")...)
	for _, s := range []*Terms{termsOf(), termsOf(fencing)} {
		target := full.target(2)
		g, out := limited.Acquire(t.Context(), options, target, me, s)
		require.Regexp(t, redistest.RefusedByACL, out.Err)
		require.Zero(t, g)
		require.Equal(t, counted(2, absent), full.lookAll(target))
	}
}

func TestPermissions_WithoutPublishReleaseWorks(t *testing.T) {
	for name, rules := range map[string][]string{
		"no command": allowed("publish"),
		"no channel": append(allowed(), "resetchannels"),
	} {
		t.Run(name, func(t *testing.T) {
			limited, full := asUser(t, rules...)
			target := full.target(2)
			full.paintAll(target, counted(2, hashOf(short, me, "2"))...)
			messages := full.messages(target, func() {
				status, out := limited.Release(t.Context(), options, target, me, []int{1, 1})
				mustDo(t, out)
				require.Equal(t, Released{Ours: true}, status, "no one was to be notified")
				status, out = limited.Release(t.Context(), options, target, me, []int{0, 0})
				mustDo(t, out)
				require.Equal(t, Released{Ours: true, Receivers: -1}, status)
			})
			require.Equal(t, [][]string{nil, nil}, messages)
			require.Equal(t, counted(2, absent), full.lookAll(target))

			full.paint(target.Keys[0], hashOf(short, them, "1"))
			forced, out := limited.Force(t.Context(), options, target, 0, []string{them})
			mustDo(t, out)
			require.True(t, forced)
			require.Equal(t, absent, full.look(target.Keys[0]))
		})
	}
}

// A command that is not allowed is an error in its server's words, and never taken for a
// state of the lock.
func TestPermissions_MissingCommandIsReported(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"hlen", "hexists", "hset", "pttl", "time", "get", "set"} {
		t.Run(command, func(t *testing.T) {
			limited, full := asUser(t, allowed(command)...)
			target := full.target(1)
			_, out := limited.Acquire(t.Context(), options, target, me, termsOf(fencing))
			if out.Err == nil && slices.Contains([]string{"pttl", "hexists"}, command) {
				_, out = limited.Acquire(t.Context(), options, target, you, termsOf(fencing))
			}
			require.Regexp(t, redistest.RefusedByACL, out.Err)
			require.NotErrorIs(t, out.Err, lockerr.ErrInvalidName)
			if command != "set" && command != "pttl" && command != "hexists" {
				require.Equal(t, absent, full.look(target.Keys[0]))
			}
		})
	}
}

// keys computes no slot, so its tests have a computation of their own. A server confirms it for the names in which
// braces may confuse: all words of braces and a letter.
func TestCluster_DerivedKeysAreInTheSlotOfTheirKey(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t, "--cluster-enabled", "yes").Client(t)
	words, accepted := []string{""}, 0
	for len(words[0]) < 5 {
		var longer []string
		for _, word := range words {
			longer = append(longer, word+"a", word+"{", word+"}")
		}
		words = longer
		for _, word := range words {
			on := new(keys.Set)
			if on.Init("", []string{word}) != nil {
				continue // a key of it would be in another slot, or its name is not allowed
			}
			accepted++
			slots, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
				for _, key := range append(on.Line, on.Channels[0], keys.WantedOf(word), keys.WaitsOf(word)) {
					p.ClusterKeySlot(t.Context(), fmt.Sprint(key))
				}
				return nil
			})
			require.NoError(t, err)
			for _, slot := range slots {
				require.Equal(t, slots[0].(*redis.IntCmd).Val(), slot.(*redis.IntCmd).Val(), "%q: %v", word, slot)
			}
		}
	}
	require.Greater(t, accepted, 50)
}
