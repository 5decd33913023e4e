package relock_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// exchange is a command of a lock, and a use of the lock that it is part of.
type exchange struct {
	name   string
	script *redisexec.Script
	do     func(b *kindBench, m *relock.Mutex)
	kinds  []string // that have it; nil: all
}

var exchanges = []exchange{
	{name: "an acquisition", script: protocol.AcquireScript, do: func(b *kindBench, m *relock.Mutex) {
		b.me.Locks(b.t, m)
		b.requireHeld(m, 1)
		b.me.Unlocks(b.t, m)
	}},
	{name: "a re-entry", script: protocol.ReenterScript, do: func(b *kindBench, m *relock.Mutex) {
		b.me.Locks(b.t, m)
		b.me.Locks(b.t, m)
		b.requireHeld(m, 2)
		b.me.Unlocks(b.t, m)
		b.requireHeld(m, 1)
		b.me.Unlocks(b.t, m)
	}},
	{name: "a renewal", script: protocol.RenewScript, do: func(b *kindBench, _ *relock.Mutex) {
		renewed := make(chan relock.Event, 1000)
		m := b.mutex(relock.WithRenewInterval(50*time.Millisecond), relock.WithHooks(relock.Hooks{Renewed: func(e relock.Event) { renewed <- e }}))
		b.me.Locks(b.t, m)
		ctx := b.me.ContextOf(m)
		b.awaitFault()
		for range len(renewed) + 1 {
			redistest.Receive(b.t, renewed)
		}
		require.NoError(b.t, ctx.Err())
		b.requireHeld(m, 1)
		b.me.Unlocks(b.t, m)
	}},
	{name: "the release of an inner level", script: protocol.ReleaseScript, do: func(b *kindBench, m *relock.Mutex) {
		b.me.Locks(b.t, m)
		b.me.Locks(b.t, m)
		ctx := b.me.ContextOf(m)
		b.me.Unlocks(b.t, m)
		b.requireHeld(m, 1)
		require.NoError(b.t, ctx.Err())
		b.me.Unlocks(b.t, m)
	}},
	{name: "a release", script: protocol.ReleaseScript, do: func(b *kindBench, m *relock.Mutex) {
		b.me.Locks(b.t, m)
		b.me.Unlocks(b.t, m)
		require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrNotHeld)
	}},
	{name: "a keep", script: protocol.PlaceholderScript, do: func(b *kindBench, _ *relock.Mutex) {
		earliest, latest := b.heldBriefly(b.mutex(relock.WithMinHold(aMinHold)))
		b.requireKept(earliest, aMinHold)
		b.requireOver(b.another(), earliest, latest, aMinHold)
	}},
	{name: "a hand-over", script: protocol.RenameScript, do: func(b *kindBench, m *relock.Mutex) {
		b.you.Locks(b.t, m)
		next := b.me.Lock(b.t.Context(), m)
		relock.AwaitWaiters(b.t, b.c, b.key, 1)
		b.you.Unlocks(b.t, m)
		require.NoError(b.t, locktest.OutcomeOf(b.t, next))
		b.requireHeld(m, 1)
		b.me.Unlocks(b.t, m)
	}, kinds: []string{"plain", "multi", "write", "unpipelined", "quorum", "quorum multi"}},
	{name: "a force", script: protocol.ForceScript, do: func(b *kindBench, m *relock.Mutex) {
		theirs := b.kind.mutex(b.others, b.key)
		b.you.Locks(b.t, theirs)
		fieldsOn(b) // all have it
		forced, err := m.ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, forced)
		require.ErrorIs(b.t, b.you.Call(theirs.Unlock), relock.ErrLost)
	}},
	{name: "a question", script: protocol.StateScript, do: func(b *kindBench, m *relock.Mutex) {
		b.me.Locks(b.t, m)
		s, err := m.State(b.t.Context())
		require.NoError(b.t, err)
		require.Equal(b.t, 1, s.Count)
		b.me.Unlocks(b.t, m)
	}},
	{name: "the raise of a token", script: protocol.RaiseScript, do: func(b *kindBench, m *relock.Mutex) {
		for i, rdb := range b.rdbs[1:] { // so that there is one to be raised, on the first at least
			ahead := time.Now().Add(time.Duration(i+1) * time.Hour).UnixMicro()
			require.NoError(b.t, rdb.Set(b.t.Context(), locktest.CounterOf(b.key), ahead, 0).Err())
		}
		b.me.Locks(b.t, m)
		require.Greater(b.t, b.me.TokenOf(m), time.Now().Add(time.Minute).UnixMicro())
		b.me.Unlocks(b.t, m)
	}, kinds: []string{"quorum", "quorum multi"}},
}

// test has the exchange done while replies of some nodes are lost, and the lock used after that.
func (e exchange) test(b *kindBench) {
	b.relay()
	m := b.mutex(relock.WithFencing())
	some := [][]int{{0}}
	if b.kind.nodes > 0 {
		some = [][]int{{0}, {1, 2}, {0, 1, 2}}
	}
	for _, nodes := range some {
		b.t.Log("on nodes", nodes)
		b.faults = nil
		for _, n := range nodes {
			b.faults = append(b.faults, b.relays[n].DropReply(b.runs(e.script)))
		}
		e.do(b, m)
		b.awaitFault()
		for _, fault := range b.faults {
			fault.Remove()
		}
		b.me.Locks(b.t, m)
		b.requireHeld(m, 1)
		b.me.Unlocks(b.t, m)
		b.free()
	}
}

// awaitFault waits until a reply was lost: of several nodes one may not be asked.
func (b *kindBench) awaitFault() {
	b.t.Helper()
	redistest.Eventually(b.t, "a reply lost", func() bool {
		return slices.ContainsFunc(b.faults, func(fault *redistest.Rule) bool {
			select {
			case <-fault.Caught():
				return true
			default:
				return false
			}
		})
	})
}

// requireHeld requires that b.me has so many levels, here and on most servers, and that nobody else
// gets in.
func (b *kindBench) requireHeld(m *relock.Mutex, levels int) {
	b.t.Helper()
	require.Equal(b.t, levels, levelsOf(b.me, m))
	counted := b.on(func(rdb redis.UniversalClient) bool {
		fields := locktest.OnRedis(b.t, rdb, b.key)
		delete(fields, "mode")
		return slices.Equal(slices.Collect(maps.Values(fields)), []string{fmt.Sprint(levels)})
	})
	require.Greater(b.t, counted, len(b.rdbs)/2)
	require.False(b.t, b.you.Tries(b.t, b.kind.rival(b.others, b.key)), "two holders")
}

// levelsOf returns how many levels of m the actor has.
func levelsOf(a *locktest.Actor, m *relock.Mutex) (n int) {
	_ = a.Call(func() error {
		n = m.HoldCount()
		return nil
	})
	return n
}
