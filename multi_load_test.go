package relock

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// goroutinesOf counts the goroutines that c runs besides the one that watches the clocks.
func goroutinesOf(c *Client) int {
	return c.session.goroutines.Len() - 1
}

// Every set overlaps every other, in a circle, and nobody knows of an order of the names.
func TestOverlappingMultiMutexesOfManyProcessesDoNotDeadlock(t *testing.T) {
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		const rounds = 12
		rdb, names := b.Client(t), namesFrom(redistest.Key(t), 3)
		sets := [][]string{
			{names[0], names[1]}, {names[1], names[0]}, {names[1], names[2]}, {names[2], names[0]},
			{names[2], names[1], names[0]}, {names[1]},
		}
		var inside [3]int // not atomic: who holds the name is alone with it
		index := map[string]int{names[0]: 0, names[1]: 1, names[2]: 2}
		ctx, cancel := context.WithTimeout(t.Context(), 2*soonEnough)
		defer cancel()
		var all sync.WaitGroup
		for range 3 {
			c := locksOn(t, b.Client(t))
			for _, set := range sets {
				all.Go(func() {
					m := c.MultiMutex(set)
					for done := 0; done < rounds && ctx.Err() == nil; {
						if rand.IntN(8) == 0 { // some give up, at any point
							brief, stop := context.WithTimeout(ctx, rand.N(3*time.Millisecond))
							if m.Lock(brief) == nil {
								_ = m.Unlock()
							}
							stop()
							continue
						}
						if err := m.Do(ctx, func(context.Context) error {
							for _, name := range set {
								inside[index[name]]++
							}
							return nil
						}); err != nil {
							t.Errorf("%v: %v", set, err)
							return
						}
						done++
					}
				})
			}
		}
		all.Wait()
		require.NoError(t, ctx.Err(), "they wait for each other")
		require.Equal(t, [3]int{4 * 3 * rounds, 5 * 3 * rounds, 3 * 3 * rounds}, inside)
		eventually(t, "free", func() bool { return rdb.Exists(t.Context(), names...).Val() == 0 })
	})
}

// What is acquired in one step is one hold, however many levels its names have.
func TestAHoldOfSeveralNamesHasOneWatchdog(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		names, events := namesFrom(redistest.Key(t), 5), &chronicle{}
		c := locksOn(t, rdb, WithRenewInterval(30*time.Millisecond), WithHooks(events.hooks()))
		steps := []struct {
			m     *Mutex
			holds int
		}{
			{c.MultiMutex(names[:3]), 1},
			{c.Mutex(names[0]), 1},
			{c.MultiMutex(names[1:]), 2}, // the two that were not held yet
			{c.MultiMutex(names), 2},
		}
		for _, s := range steps {
			requireLocked(t, s.m)
			require.Len(t, c.session.holds(), s.holds)
			require.LessOrEqual(t, goroutinesOf(c), s.holds)
		}
		before := len(events.of("renewed"))
		relay.ResetLog()
		// renewals are those that were sent since then, by the number of their keys.
		renewals := func() map[string]int {
			keys := map[string]int{}
			for _, e := range relay.Log() {
				if runsOf(protocol.RenewScript)(e.Command) {
					keys[e.Command.Arg(2)]++
				}
			}
			return keys
		}
		eventually(t, "renewals of both", func() bool {
			keys := renewals()
			return len(events.of("renewed")) >= before+6 && keys["3"] > 0 && keys["2"] > 0
		})
		require.Len(t, renewals(), 2)
		for _, s := range steps {
			requireUnlocked(t, s.m)
		}
		eventually(t, "no watchdog", func() bool { return goroutinesOf(c) == 0 })
		requireFree(t, b.Client(t), names...)
	})
}

// Nested in different orders they can wait for each other: then a bound on the wait helps,
// and what was held already is kept.
func TestNestedMultiMutexesInDifferentOrdersEndWithTheirContext(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, names, me, you := b.Client(t), namesFrom(redistest.Key(t), 2), newActor(t), newActor(t)
		mine, yours := locksOn(t, rdb), locksOn(t, rdb)
		me.locks(t, mine.Mutex(names[0]))
		you.locks(t, yours.Mutex(names[1]))
		bounded := mine.MultiMutex(names, WithWaitTimeout(aWhile))
		waiting := you.lock(t.Context(), yours.MultiMutex(names))
		require.ErrorIs(t, me.call(func() error { return bounded.Lock(t.Context()) }), ErrTimeout)
		goesOn(t, waiting)
		me.unlocks(t, mine.Mutex(names[0]))
		require.NoError(t, outcomeOf(t, waiting))
		require.Equal(t, "2", firstCount(onRedis(t, rdb, names[1])))
		require.Equal(t, "1", firstCount(onRedis(t, rdb, names[0])))
		you.unlocks(t, yours.MultiMutex(names))
		you.unlocks(t, yours.Mutex(names[1]))
		requireFree(t, rdb, names...)
	})
}

// firstCount is the count of the only field of a lock's hash.
func firstCount(fields map[string]string) string {
	for _, count := range fields {
		return count
	}
	return ""
}
