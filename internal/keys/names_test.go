package keys

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lockerr"
)

// Whatever key a lock has besides its own, that key cannot be a lock.
func TestSet_HelperKeysOfALockAreNoNames(t *testing.T) {
	for _, name := range []string{"a", "{a}b", "redisson_lock", "relock_line", "relock_linea:b"} {
		var of Set
		require.NoError(t, of.Init("", []string{name}))
		of.ReadWrite()
		fence, err := FenceOf(name)
		require.NoError(t, err)
		line := LineOf(name)
		helpers := slices.Concat(of.Counters, []string{fence, line.Queue, line.Entries, OfClient("uuid")})
		var semaphore Set
		require.NoError(t, semaphore.Init("", []string{name}))
		semaphore.Semaphore()
		require.NotContains(t, semaphore.Line[2:], of.Line[2], "no script serves waiters of the other kind")
		for _, key := range slices.Concat(of.Freeing[1:], of.Line, semaphore.Line, of.WithClaim(true)) {
			if helper := text(key); helper != name {
				helpers = append(helpers, helper)
			}
		}
		for _, helper := range helpers {
			var other Set
			err := other.Init("", []string{"x", helper})
			require.ErrorIs(t, err, lockerr.ErrInvalidName, helper)
			require.ErrorContains(t, err, helper)
			require.NoError(t, other.Init("app:", []string{helper}), "the prefix is a part of the name")
			cut := len(helper) / 3
			require.ErrorIs(t, other.Init(helper[:cut], []string{helper[cut:]}), lockerr.ErrInvalidName)
		}
	}
}

// text is a key as it goes to Redis.
func text(key any) string {
	if p, ok := key.(*string); ok {
		return *p
	}
	return key.(string)
}

func TestReplacedBy_DistinguishesAPlaceholderFromAnOwnerOfThatName(t *testing.T) {
	for _, field := range []string{"uuid:kept", "uuid:kept" + WriteSuffix, "uuid:1.kept", "uuid:1.kept" + WriteSuffix, "uuid:7", "uuid:7" + WriteSuffix} {
		_, is := ReplacedBy(field)
		require.False(t, is, field)
		of, is := ReplacedBy(Placeholder(field, clock.Instant{Mono: 123456789}))
		require.True(t, is, field)
		require.Equal(t, field, of)
	}
}

func TestPermit_IsFoundByItsMember(t *testing.T) {
	of := Set{Side: Permits}
	member := of.Field("uuid", Permit(17, 3))
	require.Equal(t, "uuid:17:3", member)
	require.Equal(t, Permit(17, 3), OwnerNamed(member))
	require.Equal(t, 3, WeightOf(member))
	kept := PermitPlaceholder(member)
	require.Equal(t, "uuid:17.kept:3", kept)
	require.Equal(t, 3, WeightOf(kept))
	require.NotEqual(t, Permit(17, 3), OwnerNamed(kept))
	replaced, is := ReplacedBy(kept)
	require.True(t, is)
	require.Equal(t, member, replaced)
	require.Zero(t, WeightOf("ann"))
}
