package relock

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSlot_FreeOneIsTakenAtOnce(t *testing.T) {
	var s slot
	for range 3 {
		require.True(t, s.take(t.Context()))
		s.free()
	}
}

func TestSlot_IsKeptUntilFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s slot
		require.True(t, s.take(t.Context()))
		got := false
		go func() {
			got = s.take(context.Background())
		}()
		synctest.Wait()
		require.False(t, got)
		s.free()
		synctest.Wait()
		require.True(t, got)
	})
}

func TestSlot_WaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s slot
		require.True(t, s.take(t.Context()))
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		require.False(t, s.take(ctx))
		require.Error(t, ctx.Err(), "it has waited")
		s.free()
		require.True(t, s.take(t.Context()), "the one that left has not got it")
	})
}

// A renewal that is always due would otherwise keep an Unlock from its command until its time is up.
func TestSlot_IsTakenInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s slot
		require.True(t, s.take(t.Context()))
		var order []string // guarded by s
		wait := func(name string, ctx context.Context) {
			go func() {
				if s.take(ctx) {
					order = append(order, name)
				}
			}()
			synctest.Wait()
		}
		leaving, leave := context.WithCancel(t.Context())
		wait("first", t.Context())
		wait("leaves", leaving)
		wait("second", t.Context())
		leave()
		synctest.Wait()

		s.free()
		ended, end := context.WithCancel(t.Context())
		end()
		require.False(t, s.take(ended), "whoever freed it comes after those that wait")
		synctest.Wait()
		require.Equal(t, []string{"first"}, order)
		s.free()
		synctest.Wait()
		require.Equal(t, []string{"first", "second"}, order)
		s.free()
		require.True(t, s.take(ended), "it is free again")
	})
}

// As the command of an Unlock has it, whose time is up: what is free need not be waited for.
func TestSlot_FreeOneIsTakenUnderAnEndedContext(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var s slot
	require.True(t, s.take(ctx))
	require.False(t, s.take(ctx))
}

func TestSlot_HasOneHolderAtATimeAndServesAll(t *testing.T) {
	const waiters, turns = 8, 50
	synctest.Test(t, func(t *testing.T) {
		var s slot
		require.True(t, s.take(t.Context()))
		inside, most, taken := 0, 0, 0 // guarded by s
		var all sync.WaitGroup
		for range waiters {
			all.Go(func() {
				for range turns {
					if !s.take(context.Background()) {
						return
					}
					inside++
					most, taken = max(most, inside), taken+1
					time.Sleep(time.Millisecond)
					inside--
					s.free()
				}
			})
		}
		synctest.Wait()
		s.free()
		all.Wait()
		require.Equal(t, 1, most)
		require.Equal(t, waiters*turns, taken)
	})
}
