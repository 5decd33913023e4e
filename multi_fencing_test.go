package relock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// ahead has the counter of name say a time that the clocks do not reach for long, as after one
// was set back.
func ahead(t *testing.T, b *redistest.Backend, name string) {
	t.Helper()
	at := time.Now().Add(time.Hour).UnixMicro()
	require.NoError(t, b.Client(t).Set(t.Context(), locktest.CounterOf(name), at, time.Hour).Err())
}

// requireAccepted requires that a resource which was used with the token used takes those of later
// holders of each of names.
func requireAccepted(t *testing.T, c *relock.Client, names []string, used int64) {
	t.Helper()
	for _, name := range names {
		m := c.Mutex(name, relock.WithFencing())
		locktest.RequireLocked(t, m)
		require.Greater(t, m.FencingToken(), used, "the resource refuses a later holder of %s", name)
		locktest.RequireUnlocked(t, m)
	}
}

func TestMultiTokens_AreBelowThoseOfTheNextHolderOfEachName(t *testing.T) {
	for name, held := range map[string]func(names []string) []string{
		"none held before": func([]string) []string { return nil },
		"one held before":  func(names []string) []string { return names[:1] },
		"all held before":  func(names []string) []string { return names },
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				names := locktest.NamesFrom(redistest.Key(t), 3)
				c := relock.LocksOn(t, b.Client(t))
				ahead(t, b, names[0])
				both := c.MultiMutex(names, relock.WithFencing())
				var singles []*relock.Mutex
				for _, name := range held(names) {
					m := c.Mutex(name, relock.WithFencing())
					locktest.RequireLocked(t, m)
					singles = append(singles, m)
				}
				locktest.RequireLocked(t, both)
				used := both.FencingToken()
				for _, m := range singles {
					require.LessOrEqual(t, m.FencingToken(), used)
				}
				locktest.RequireUnlocked(t, both)
				for _, m := range singles {
					locktest.RequireUnlocked(t, m)
				}
				requireAccepted(t, c, names, used)
			})
		})
	}
}

func TestMultiTokens_AreBelowThoseAfterAHandOverOfOneName(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		names := locktest.NamesFrom(redistest.Key(t), 2)
		c, me, you := relock.LocksOn(t, b.Client(t)), locktest.NewActor(t), locktest.NewActor(t)
		ahead(t, b, names[0])
		one, other := c.Mutex(names[0], relock.WithFencing()), c.Mutex(names[1], relock.WithFencing())
		both := c.MultiMutex(names, relock.WithFencing())
		you.Locks(t, other)
		me.Locks(t, one)
		waiting := me.Lock(t.Context(), both)
		relock.AwaitWaiters(t, c, names[1], 1)
		you.Unlocks(t, other)
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		var used int64
		require.NoError(t, me.Call(func() error { used = both.FencingToken(); return nil }))
		me.Unlocks(t, both)
		me.Unlocks(t, one)
		requireAccepted(t, c, names, used)
	})
}

// A node's clock is ahead. The first name is held by the votes of the others; the second one is
// got with its vote.
func TestMultiTokens_OfPartlyHeldNamesRiseOnAQuorum(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		names := []string{b.key, b.key + "-too"}
		if mini := b.minis[0].Miniredis; mini != nil {
			mini.SetTime(time.Now().Add(time.Hour))
		} else { // whose clock cannot be set: it has counted so far
			ahead(b.t, b.minis[0], names[1])
		}
		one, both := b.mutex(relock.WithFencing()), b.locks.MultiMutex(names, relock.WithFencing())
		b.othersOn(0)
		b.me.Locks(b.t, one)
		b.awaitHeldOn(1, 2)
		require.NoError(b.t, b.servers[2].HSet(b.t.Context(), names[1], "another:1", 1).Err())
		b.me.Locks(b.t, both)
		used := b.tokenOf(b.me, both)
		b.me.Unlocks(b.t, both)
		b.me.Unlocks(b.t, one)
		b.awaitOn(1, 0)
		b.me.Locks(b.t, one)
		require.Greater(b.t, b.tokenOf(b.me, one), used, "the resource refuses a later holder of the first name")
		b.me.Unlocks(b.t, one)
	})
}
