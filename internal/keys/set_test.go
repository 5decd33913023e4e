package keys

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
)

func newSet(prefix string, names []string) (*Set, error) {
	t := new(Set)
	return t, t.Init(prefix, names)
}

func TestSet_DerivedNamesAreRedissons(t *testing.T) {
	for key, want := range map[string]struct{ counter, channel string }{
		"orders":       {"redisson_lock_token:{orders}", "redisson_lock__channel:{orders}"},
		"orders:42":    {"redisson_lock_token:{orders:42}", "redisson_lock__channel:{orders:42}"},
		"two words":    {"redisson_lock_token:{two words}", "redisson_lock__channel:{two words}"},
		"héé":          {"redisson_lock_token:{héé}", "redisson_lock__channel:{héé}"},
		"\x00\xff":     {"redisson_lock_token:{\x00\xff}", "redisson_lock__channel:{\x00\xff}"},
		"{t}:k":        {"redisson_lock_token:{t}:k", "redisson_lock__channel:{t}:k"},
		"a{b}c":        {"redisson_lock_token:a{b}c", "redisson_lock__channel:a{b}c"},
		"k:{t}":        {"redisson_lock_token:k:{t}", "redisson_lock__channel:k:{t}"},
		"{t}{u}":       {"redisson_lock_token:{t}{u}", "redisson_lock__channel:{t}{u}"},
		"{a{b}":        {"redisson_lock_token:{a{b}", "redisson_lock__channel:{a{b}"},
		"{t}}":         {"redisson_lock_token:{t}}", "redisson_lock__channel:{t}}"},
		"}{t}":         {"redisson_lock_token:}{t}", "redisson_lock__channel:}{t}"},
		"{redisson_x}": {"redisson_lock_token:{redisson_x}", "redisson_lock__channel:{redisson_x}"},
	} {
		target, err := newSet("", []string{key})
		require.NoError(t, err, key)
		require.Equal(t, []string{key}, target.Keys)
		require.Equal(t, []string{want.counter}, target.Counters)
		require.Equal(t, []string{want.channel}, target.Channels)
		require.Equal(t, key, target.Name)
	}
}

// badNames cannot be locks: their helper keys would fall into other slots of a Cluster.
var badNames = []string{"a{b", "{}x", "a}b", "{", "}", "{}", "x{}", "x{}{t}", "{a", "a{", "}a", "a}", "}{", "a}b{c"}

func TestSet_RefusesNamesThatBreakTheHashTag(t *testing.T) {
	for _, name := range append(badNames, "") {
		_, err := newSet("", []string{name})
		require.ErrorIs(t, err, lockerr.ErrInvalidName, name)
		if name != "" {
			require.ErrorContains(t, err, fmt.Sprintf("%q", name))
		} else {
			require.ErrorContains(t, err, "empty")
		}
		_, err = newSet("", []string{"good", name, "better"})
		require.ErrorIs(t, err, lockerr.ErrInvalidName, "one bad name among others: %q", name)
	}
	for _, names := range [][]string{nil, {}} {
		_, err := newSet("", names)
		require.ErrorIs(t, err, lockerr.ErrInvalidName)
		require.ErrorContains(t, err, "no names")
	}
}

func TestSet_PrefixIsPartOfTheName(t *testing.T) {
	for _, c := range []struct {
		prefix, name string
		key          string // "": refused
	}{
		{"app:", "orders", "app:orders"},
		{"app:", "{t}:k", "app:{t}:k"},
		{"{app}:", "orders", "{app}:orders"},
		{"{app}:", "a{b", "{app}:a{b"}, // the prefix has the tag; what follows does not matter
		{"{", "t}k", "{t}k"},
		{"app{", "orders", ""},
		{"app}", "orders", ""},
		{"{}", "orders", ""},
		{"{}", "{t}", ""},
		{"{app}:", "", ""},
		{"app:", "", ""},
	} {
		target, err := newSet(c.prefix, []string{c.name})
		if c.key == "" {
			require.ErrorIs(t, err, lockerr.ErrInvalidName, "%q + %q", c.prefix, c.name)
			continue
		}
		require.NoError(t, err, "%q + %q", c.prefix, c.name)
		require.Equal(t, []string{c.key}, target.Keys)
		require.Equal(t, c.name, target.Name, "the user's own name is the one for errors")
	}
}

func TestSet_OrderOfNamesDoesNotMatter(t *testing.T) {
	first, err := newSet("p:", []string{"b", "a", "b", "c", "a"})
	require.NoError(t, err)
	second, err := newSet("p:", []string{"c", "a", "b"})
	require.NoError(t, err)
	require.Equal(t, []string{"p:a", "p:b", "p:c"}, first.Keys)
	require.Equal(t, first.ID, second.ID)
	require.Equal(t, "b,a,b,c,a", first.Name)
	for i, key := range first.Keys {
		require.Equal(t, derived(counterPrefix, key), first.Counters[i])
		require.Equal(t, derived(channelPrefix, key), first.Channels[i])
		require.True(t, first.Has(key))
	}
	require.False(t, first.Has("a"))
	require.False(t, first.Has("p:d"))

	part := first.Only([]string{"p:b"})
	single, err := newSet("p:", []string{"b"})
	require.NoError(t, err)
	require.Equal(t, single.ID, part.ID)
	require.Equal(t, single.Counters, part.Counters)
	require.Equal(t, first.Name, part.Name)
	twice, err := newSet("p:", []string{"b", "b"})
	require.NoError(t, err)
	require.Equal(t, single.ID, twice.ID, "a name given twice is the name")
}

func TestSet_IDsOfDifferentKeysDiffer(t *testing.T) {
	seen := map[ID][]string{}
	for _, names := range [][]string{
		{"a"},
		{"b"},
		{"a", "b"},
		{"ab"},
		{"a,b"},
		{"a,", "b"},
		{"a", ",b"},
		{"a", "b", "c"},
		{"a", "b,c"},
		{"a,b", "c"},
		{"1:a,1:b,"},
		{"1:a,", "1:b,"},
		{"1:a", "1:b"},
		{"1:a,1:b"},
		{"2 a b"},
		{"1:a"},
		{"1:a,"},
		{"11:a", "1"},
		{"1", "1:a"},
	} {
		target, err := newSet("", names)
		require.NoError(t, err)
		require.Empty(t, seen[target.ID], "%q has the id of another", names)
		seen[target.ID] = names
	}
}

func TestSet_NamesOfOneSlotAreRecognised(t *testing.T) {
	for _, c := range []struct {
		names []string
		one   bool
	}{
		{[]string{"a"}, true},
		{[]string{"a", "a"}, true},
		{[]string{"a", "b"}, false},
		{[]string{"{t}a", "{t}b"}, true},
		{[]string{"{t}a", "b{t}", "t"}, true},
		{[]string{"{t}a", "{u}a"}, false},
	} {
		target, err := newSet("", c.names)
		require.NoError(t, err)
		require.Equal(t, c.one, target.OneSlot(), c.names)
	}
}

// interesting names are those in which braces may confuse.
func interestingNames() []string {
	names := slices.Clone(badNames)
	const alphabet = "a{}"
	for n := range 3 * 3 * 3 * 3 * 3 { // all words of five letters, and the shorter ones that they begin with
		word := ""
		for range 5 {
			word += alphabet[n%3 : n%3+1]
			n /= 3
			names = append(names, word)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestSet_DerivedNamesAreInTheSlotOfTheirKey(t *testing.T) {
	names := append(interestingNames(), "orders:42", "{user:1}:cart", "héé", "\x00{\xff}")
	refused := 0
	for _, name := range names {
		slot := keySlot(name)
		counter, channel := keySlot(derived(counterPrefix, name)), keySlot(derived(channelPrefix, name))
		if _, err := newSet("", []string{name}); err != nil {
			require.NotEqual(t, []uint16{slot, slot}, []uint16{counter, channel}, "%q was refused for nothing", name)
			refused++
			continue
		}
		require.Equal(t, []uint16{slot, slot, slot}, []uint16{keySlot(HashTag(name)), counter, channel}, "helpers of %q", name)
	}
	require.NotZero(t, refused)
	require.Less(t, refused, len(names))
}

// The slots are those that CLUSTER KEYSLOT of a server returns.
func TestSet_SlotOfTheTestsIsThatOfTheServer(t *testing.T) {
	for name, slot := range map[string]uint16{
		"123456789":     12739,
		"orders:42":     11414,
		"{user:1}:cart": 10778,
		"héé":           14144,
		"foo{}{bar}":    8363,
		"foo{{bar}}zap": 4015,
		"foo{bar}{zap}": 5061,
		"{}a":           10875,
		"a{":            14311,
		"}a{b}":         3300,
		"a}b{":          6027,
		"{{}}":          4092,
		"{}{a}":         13650,
		"":              0,
	} {
		require.Equal(t, slot, keySlot(name), "%q", name)
	}
}

// keySlot is the slot of a Cluster that key is in, by the letter of the Cluster
// specification: CRC16 of the key, or of what is between its first '{' and the next '}',
// if that is not empty.
func keySlot(key string) uint16 {
	hashed := key
	for i := range len(key) {
		if key[i] != '{' {
			continue
		}
		for j := i + 1; j < len(key); j++ {
			if key[j] == '}' {
				if j > i+1 {
					hashed = key[i+1 : j]
				}
				break
			}
		}
		break
	}
	crc := uint16(0)
	for i := range len(hashed) {
		crc ^= uint16(hashed[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % 16384
}

func FuzzName(f *testing.F) {
	for _, name := range interestingNames() {
		f.Add("", name)
		f.Add("app:", name)
		f.Add("{", name)
	}
	f.Fuzz(func(t *testing.T, prefix, name string) {
		key := prefix + name
		target, err := newSet(prefix, []string{name})
		if err == nil {
			require.NotEmpty(t, name)
			require.Equal(t, keySlot(key), keySlot(target.Keys[0]))
			require.Equal(t, keySlot(key), keySlot(target.Counters[0]), "counter of %q", key)
			require.Equal(t, keySlot(key), keySlot(target.Channels[0]), "channel of %q", key)
			require.Len(t, map[string]bool{key: true, target.Counters[0]: true, target.Channels[0]: true}, 3)
			return
		}
		require.ErrorIs(t, err, lockerr.ErrInvalidName)
		if name == "" {
			return
		}
		// Nothing is refused but what has braces and no tag. A key without any brace, or
		// whose tag is its own, is always good.
		require.True(t, strings.ContainsAny(key, "{}"), "%q was refused", key)
		if open := strings.Index(key, "{"); open >= 0 {
			require.LessOrEqual(t, strings.Index(key[open:], "}"), 1, "%q has a tag", key)
		}
	})
}

func FuzzTargetID(f *testing.F) {
	f.Add("a", "b", "1:a,1:b,", "1:a,1:b,")
	f.Add("a", "b", "b", "a")
	f.Add("a,", "b", "a", ",b")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		first, err1 := newSet("", []string{a, b})
		second, err2 := newSet("", []string{c, d})
		if err1 != nil || err2 != nil {
			return // FuzzName is about those
		}
		for _, target := range []*Set{first, second} {
			require.True(t, slices.IsSorted(target.Keys))
			require.Len(t, slices.Compact(slices.Clone(target.Keys)), len(target.Keys))
			if target.OneSlot() {
				require.Equal(t, keySlot(target.Keys[0]), keySlot(target.Keys[len(target.Keys)-1]), "%q", target.Keys)
			}
		}
		require.Equal(t, slices.Equal(first.Keys, second.Keys), first.ID == second.ID, "%q and %q", first.Keys, second.Keys)
	})
}

func TestSet_FenceIsTheKeysOwnAndInItsSlot(t *testing.T) {
	of := make(map[string]string)
	for _, name := range append(interestingNames(), "orders:42", "{user:1}:cart", "héé") {
		fence, err := FenceOf(name)
		if err != nil {
			require.ErrorIs(t, err, lockerr.ErrInvalidName)
			continue
		}
		require.Equal(t, keySlot(name), keySlot(fence), name)
		require.Contains(t, []string{"", name}, of[fence])
		of[fence] = name
	}
	require.NotEmpty(t, of)
	for _, name := range append(badNames, "", "{t}") {
		_, err := FenceOf(name)
		require.ErrorIs(t, err, lockerr.ErrInvalidName, name)
	}
}
