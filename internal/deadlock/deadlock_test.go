package deadlock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// world is who holds what, and who waits for what.
type world struct {
	holders map[string][]string // by key: owners
	waits   map[string][]string // by owner: keys
	seq     uint64
}

func (w *world) wait(owner string) *Wait {
	if w.waits[owner] == nil {
		return nil
	}
	return &Wait{ID: owner, Seq: w.seq, Since: int64(len(owner)), For: w.waits[owner], Owner: owner}
}

func (w *world) look(key string) (all []Holder, _ error) {
	for _, owner := range w.holders[key] {
		all = append(all, Holder{Field: owner, Wait: w.wait(owner)})
	}
	return all, nil
}

func (w *world) find(t *testing.T, owner string) *Deadlock {
	t.Helper()
	d, err := Find(w.wait(owner), w.look)
	require.NoError(t, err)
	return d
}

func TestFind_NamesTheShortestWayBack(t *testing.T) {
	w := &world{
		holders: map[string][]string{"a": {"A"}, "b": {"B"}, "c": {"C"}},
		waits:   map[string][]string{"A": {"b"}, "B": {"c"}, "C": {"a"}},
	}
	require.Equal(t, `A waits for "b", held by B, who waits for "c", held by C, who waits for "a", held by A`, w.find(t, "A").String())
	require.Len(t, w.find(t, "C").waits, 3)
}

func TestFind_OwnerThatGoesOnEndsEveryDeadlockBehindIt(t *testing.T) {
	w := &world{
		holders: map[string][]string{"rw": {"A", "B"}, "m": {"W"}},
		waits:   map[string][]string{"A": {"m"}, "W": {"rw"}},
	}
	require.Nil(t, w.find(t, "W"), "B reads, and may go on")
	w.waits["B"] = []string{"m"}
	require.NotNil(t, w.find(t, "W"))
	require.Len(t, w.find(t, "W").waits, 3)
}

func TestFind_WaiterBehindADeadlockIsNotInIt(t *testing.T) {
	w := &world{
		holders: map[string][]string{"a": {"A"}, "b": {"B"}, "z": {"Z"}},
		waits:   map[string][]string{"A": {"b"}, "B": {"a"}, "Z": {"a"}},
	}
	require.Nil(t, w.find(t, "Z"))
	require.Len(t, w.find(t, "A").waits, 2)
}

func TestFind_OneKeyOfSeveralIsEnough(t *testing.T) {
	w := &world{
		holders: map[string][]string{"a": {"A"}, "b": {"M"}, "busy": {"X"}, "also": {"Y"}, "y": {"X"}},
		waits:   map[string][]string{"A": {"b"}, "M": {"busy", "a", "also"}, "Y": {"y"}},
	}
	require.Equal(t, `M waits for "a", held by A, who waits for "b", held by M`, w.find(t, "M").String(), "X goes on")
	require.Len(t, w.find(t, "A").waits, 2)
	require.Nil(t, w.find(t, "Y"))
	w.waits["A"] = []string{"b", "busy"}
	require.Len(t, w.find(t, "A").waits, 2)
	w.holders["a"] = []string{"X"}
	require.Nil(t, w.find(t, "M"))
}

func TestFind_OwnKeyOfSeveralIsNoWait(t *testing.T) {
	w := &world{
		holders: map[string][]string{"a": {"M"}, "b": {"B"}},
		waits:   map[string][]string{"M": {"a", "b"}},
	}
	require.Nil(t, w.find(t, "M"), "it was granted one of its names")
	w.waits["B"] = []string{"a"}
	require.NotNil(t, w.find(t, "M"))
}

func TestFind_GivesUpAfterManyWaits(t *testing.T) {
	w := &world{holders: map[string][]string{}, waits: map[string][]string{}}
	for i := range mostWaits + 1 {
		w.holders[fmt.Sprint(i)] = []string{fmt.Sprint("o", i)}
		w.waits[fmt.Sprint("o", i)] = []string{fmt.Sprint(i + 1)}
	}
	_, err := Find(w.wait("o0"), w.look)
	require.ErrorIs(t, err, errTooMany)
}

// What one look finds is compared with what is found by letting every owner go on that can, until none can.
func TestFind_AgreesWithAnExhaustiveSearch(t *testing.T) {
	redistest.Slow(t)
	r := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range 20_000 {
		w := &world{holders: map[string][]string{}, waits: map[string][]string{}}
		owners := []string{"A", "BB", "CCC", "DDDD", "EEEEE"}
		keys := []string{"a", "b", "c", "d"}
		for _, key := range keys {
			for _, o := range owners {
				if r.IntN(5) == 0 {
					w.holders[key] = append(w.holders[key], o)
				}
			}
		}
		for _, o := range owners {
			if r.IntN(4) > 0 {
				w.waits[o] = []string{keys[r.IntN(len(keys))]}
			}
			if w.waits[o] != nil && r.IntN(4) == 0 { // for several locks together
				w.waits[o] = append(w.waits[o], keys[r.IntN(len(keys))])
			}
		}
		stuck := w.stuck()
		for _, o := range owners {
			if w.waits[o] == nil {
				continue
			}
			d := w.find(t, o)
			if d == nil {
				continue
			}
			found++
			for id := range d.waits {
				require.Contains(t, stuck, id, "%v", w)
			}
			for id := range d.waits {
				require.Equal(t, d.victim(), w.find(t, id).victim(), "all choose the same: %v", w)
				require.Len(t, w.find(t, id).waits, len(d.waits))
			}
		}
	}
	require.Greater(t, found, 1000)
}

// stuck returns the owners that cannot go on, whatever the others do: one key that they wait for has a holder that cannot go
// on either.
func (w *world) stuck() (all []string) {
	for o := range w.waits {
		all = append(all, o)
	}
	for {
		left := slices.DeleteFunc(slices.Clone(all), func(o string) bool {
			return !slices.ContainsFunc(w.waits[o], func(key string) bool {
				return slices.ContainsFunc(w.holders[key], func(h string) bool { return h != o && slices.Contains(all, h) })
			})
		})
		if len(left) == len(all) {
			return all
		}
		all = left
	}
}

func TestDeadlock_VictimIsTheLastOfThoseThatMayEnd(t *testing.T) {
	d := &Deadlock{waits: map[string]*Wait{
		"a": {ID: "a", Since: 1}, "b": {ID: "b", Since: 3}, "c": {ID: "c", Since: 3}, "d": {ID: "d", Since: 9, Reported: true},
	}}
	require.Equal(t, "c", d.victim())
	d.waits["a"].Shared = true
	require.Empty(t, d.victim(), "another goroutine may unlock what it holds")
	require.Empty(t, (&Deadlock{waits: map[string]*Wait{"a": {Reported: true}}}).victim())
}

func TestDeadlock_CountsWhenEachWaitWasPublishedTwiceSince(t *testing.T) {
	w := &world{
		holders: map[string][]string{"a": {"A"}, "b": {"B"}},
		waits:   map[string][]string{"A": {"b"}, "B": {"a"}},
		seq:     7,
	}
	first := w.find(t, "A")
	require.False(t, first.confirms(first))
	w.seq = 8
	require.False(t, w.find(t, "A").confirms(first), "it may have been sent before the first look")
	w.seq = 9
	again := w.find(t, "A")
	require.True(t, again.is(first))
	require.True(t, again.confirms(first))
	first.took = interval
	require.True(t, again.confirms(first))
	first.took = interval + 1
	require.False(t, again.confirms(first), "the first look was long")
	w.seq = 10
	require.True(t, w.find(t, "A").confirms(first))
	first.took = 0
	first.waits["B"].Seq = 8
	require.False(t, again.confirms(first), "every one of them")
	w.holders["b"] = []string{"X"}
	w.waits["X"] = []string{"a"}
	require.False(t, w.find(t, "A").is(first), "another holder")
}

func TestWait_IsReadOnlyIfItIsOne(t *testing.T) {
	for _, text := range []string{"", "{", "7", `7 {"seq":1}`, "7 null", `{"id":"x"}`, "7 " + strings.Repeat("[", 100)} {
		require.Nil(t, Published(text), text)
	}
	require.Equal(t, &Wait{ID: "x", Seq: 2}, Published(`7 {"id":"x","seq":2}`))
}
