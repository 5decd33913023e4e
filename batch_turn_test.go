package relock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

func TestBatch_WaiterThatNeedsMoreThanALeaseIsSentToRedisFirst(t *testing.T) {
	for name, opts := range map[string][]relock.MutexOption{
		"a token":         {relock.WithFencing()},
		"a fixed lease":   {relock.WithoutRenewal()},
		"a shorter lease": {relock.WithTTL(5 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				relay, rdb := locktest.RelayedTo(t, b)
				c := relock.LocksOn(t, rdb)
				m := c.Mutex(redistest.Key(t))
				locktest.RequireLocked(t, m)
				next := c.Mutex(m.Name(), opts...)
				relock.HandOver(t, c, m, next)
				renames := locktest.RunsOf(protocol.RenameScript)
				require.Equal(t, 1, relay.Executed(renames.And(locktest.HandsOver)))
				require.Equal(t, 1, relay.Executed(renames))
			})
		})
	}
}

// Only a rename counts the line, and such a waiter has none.
func TestBatch_WaiterThatNeedsMoreThanALeaseEndsTheTurn(t *testing.T) {
	for name, opts := range map[string][]relock.MutexOption{
		"a token":       {relock.WithFencing()},
		"a fixed lease": {relock.WithoutRenewal()},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				c, elsewhere := relock.LocksOn(t, b.Client(t), relock.WithLocalHandoffs(1)), relock.LocksOn(t, b.Client(t))
				m := c.Mutex(redistest.Key(t))
				next, theirs := c.Mutex(m.Name(), opts...), elsewhere.Mutex(m.Name())
				first, second, third, other := locktest.NewActor(t), locktest.NewActor(t), locktest.NewActor(t), locktest.NewActor(t)
				first.Locks(t, m)
				following := second.Lock(t.Context(), m)
				relock.AwaitWaiters(t, c, m.Name(), 1)
				first.Unlocks(t, m)
				require.NoError(t, locktest.OutcomeOf(t, following)) // when it followed, the line was empty
				waiting := other.Lock(t.Context(), theirs)
				relock.AwaitEntries(t, elsewhere, m.Name(), 1)
				last := third.Lock(t.Context(), next)
				relock.AwaitWaiters(t, c, m.Name(), 1)
				second.Unlocks(t, m)
				require.NoError(t, locktest.OutcomeOf(t, waiting))
				locktest.GoesOn(t, last)
				other.Unlocks(t, theirs)
				require.NoError(t, locktest.OutcomeOf(t, last))
				third.Unlocks(t, next)
			})
		})
	}
}

// If no other process waits, a turn has no end that WithLocalHandoffs sets; but it has one.
func TestBatch_LoneProcessGoesOnBeyondItsTurn(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		const limit = 3
		c := relock.LocksOn(t, rdb, relock.WithLocalHandoffs(limit))
		m := c.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		var running sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		defer running.Wait()
		defer cancel()
		var holds atomic.Int64
		for range 8 {
			running.Go(func() {
				for ctx.Err() == nil {
					if m.Lock(ctx) == nil {
						holds.Add(1)
						_ = m.Unlock()
					}
				}
			})
		}
		relock.AwaitWaiters(t, c, m.Name(), 8)
		relay.ResetLog()
		locktest.RequireUnlocked(t, m)
		redistest.Eventually(t, "turns that end by themselves, later than at their limit", func() bool {
			turns := relay.Executed(locktest.RunsOf(protocol.ReleaseScript))
			return turns >= 3 && int(holds.Load()) > 2*limit*turns
		})
	})
}
