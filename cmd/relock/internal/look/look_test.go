package look

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLook_NameOfALockIsReadFromItsHelperKeys(t *testing.T) {
	for _, name := range []string{"plain", "a:b", "{tag}:x", "x{tag}", "odd}"} {
		if names, err := NamesOf(name); err == nil {
			require.Equal(t, name, named(names.Keys[2], "relock_line:"))
			require.Equal(t, name, named(names.Keys[4], "redisson_lock_queue:"))
			require.Equal(t, name, named(names.Keys[6], "relock_line_permits:"))
		}
	}
}

func TestLook_PatternIsThatOfSCAN(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		like          bool
	}{
		{"*", "a/b\nc", true}, {"a*c", "abbc", true}, {"a*c", "abb", false}, {"a?c", "abc", true}, {"a?c", "ac", false},
		{"[ab]x", "bx", true}, {"[^ab]x", "bx", false}, {"[a-c]", "b", true}, {`\*`, "*", true}, {`\*`, "a", false},
		{"a.c", "abc", false}, {"a.c", "a.c", true}, {"[", "[", true}, {"a(b", "a(b", true},
	} {
		like, err := glob(c.pattern)
		require.NoError(t, err)
		require.Equal(t, c.like, like.MatchString(c.name), "%q %q", c.pattern, c.name)
	}
}

func TestLook_MajorityHoldsOnAQuorum(t *testing.T) {
	has := func(owner string) Lock {
		return Lock{Kind: Plain, Holders: []Holder{{Owner: owner, Count: 1, TTLms: 5}}}
	}
	l := Together("a", []Lock{has("x"), has("x"), has("y")}, 2)
	require.True(t, l.Held)
	require.Equal(t, "x", l.Holders[0].Owner)
	require.Len(t, l.Disagree, 2)
	l = Together("a", []Lock{has("x"), has("y"), {Error: "down", Node: "n"}}, 2)
	require.False(t, l.Held)
	require.Contains(t, l.Disagree, "n does not answer")
	l = Together("a", []Lock{has("x"), has("x"), has("x")}, 2)
	require.Empty(t, l.Disagree)
}
