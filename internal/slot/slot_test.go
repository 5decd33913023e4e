package slot

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAFreeSlotIsTakenWithoutAWait(t *testing.T) {
	var s Slot
	for range 3 {
		require.True(t, s.Take(t.Context()))
		require.Nil(t, s.freed, "no one waits for it")
		s.Free()
	}
}

func TestOneThatHasASlotKeepsItUntilItIsFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Slot
		require.True(t, s.Take(t.Context()))
		got := false
		go func() {
			got = s.Take(context.Background())
		}()
		synctest.Wait()
		require.False(t, got)
		s.Free()
		synctest.Wait()
		require.True(t, got)
	})
}

func TestAWaitForASlotEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Slot
		require.True(t, s.Take(t.Context()))
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		require.False(t, s.Take(ctx))
		require.Error(t, ctx.Err(), "it has waited")
		s.Free()
		require.True(t, s.Take(t.Context()), "the one that left has not got it")
	})
}

// As the command of an Unlock has it, whose time is up: what is free need not be waited for.
func TestAFreeSlotIsTakenUnderAContextThatHasEnded(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var s Slot
	require.True(t, s.Take(ctx))
	require.False(t, s.Take(ctx))
}

func TestOneAtATimeHasASlotAndEachThatWaitsGetsIt(t *testing.T) {
	const waiters, turns = 8, 50
	synctest.Test(t, func(t *testing.T) {
		var s Slot
		require.True(t, s.Take(t.Context()))
		inside, most, taken := 0, 0, 0 // guarded by s
		var all sync.WaitGroup
		for range waiters {
			all.Go(func() {
				for range turns {
					if !s.Take(context.Background()) {
						return
					}
					inside++
					most, taken = max(most, inside), taken+1
					time.Sleep(time.Millisecond)
					inside--
					s.Free()
				}
			})
		}
		synctest.Wait()
		s.Free()
		all.Wait()
		require.Equal(t, 1, most)
		require.Equal(t, waiters*turns, taken)
	})
}
