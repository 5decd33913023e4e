package keys

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeys_OfAnRWMutexAreInOneSlot(t *testing.T) {
	locked := func(name string) *Set {
		set, err := newSet("", []string{name})
		require.NoError(t, err)
		set.ReadWrite()
		return set
	}
	for _, name := range []string{"plain", "{tag}:name", "name:{tag}", "a:b"} {
		set := locked(name)
		for _, key := range []string{set.RW.Claim, set.RW.Timeouts + ":uuid:1:rwlock_timeout:1", set.Channels[0]} {
			require.Equal(t, HashTag(name), HashTag(key), "%s of %s", key, name)
		}
	}
	require.Equal(t, "{plain}", locked("plain").RW.Timeouts)
	require.Equal(t, "redisson_rwlock:{plain}", locked("plain").Channels[0])
	require.Equal(t, "{tag}:name", locked("{tag}:name").RW.Timeouts)
	require.Equal(t, "redisson_rwlock:{tag}:name", locked("{tag}:name").Channels[0])
}
