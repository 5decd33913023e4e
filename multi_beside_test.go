package relock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// What a MultiMutex that waits, or fails, means for the other holds of its names.

// besideAWaitForTheOtherName has a MultiMutex wait for a name that another process holds, until held has used its other name
// through m. Then the first name is released, and the MultiMutex waits for the other one, but not for long.
func besideAWaitForTheOtherName(t *testing.T, held func(m *relock.Mutex), opts ...relock.ClientOption) {
	t.Helper()
	t.Parallel()
	for _, names := range [][2]string{{"k", "l"}, {"l", "k"}} {
		t.Run(names[0], func(t *testing.T) {
			redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
				here, there := relock.LocksOn(t, b.Client(t), opts...), relock.LocksOn(t, b.Client(t)).Mutex(names[0])
				locktest.RequireLocked(t, there)
				a := locktest.NewActor(t)
				both := here.MultiMutex([]string{"k", "l"})
				waiting := a.Lock(t.Context(), both)
				time.Sleep(3 * time.Second)
				m := here.Mutex(names[1])
				locktest.RequireLocked(t, m)
				time.Sleep(time.Second)
				began := time.Now()
				locktest.RequireUnlocked(t, there)
				held(m)
				require.NoError(t, locktest.OutcomeOf(t, waiting))
				require.Less(t, time.Since(began), 3*time.Second)
				a.Unlocks(t, both)
			})
		})
	}
}

func TestMulti_WaiterEndsTheLingeringOfAnyOfItsNames(t *testing.T) {
	besideAWaitForTheOtherName(t, func(m *relock.Mutex) { _ = m.Unlock() }, relock.WithLinger(10*time.Second))
}

func TestMulti_WaiterIsNoticedByTheHolderOfAnyOfItsNames(t *testing.T) {
	besideAWaitForTheOtherName(t, func(m *relock.Mutex) {
		select {
		case <-m.Wanted(context.Background()):
		case <-time.After(time.Minute):
		}
		_ = m.Unlock()
	})
}

// A Lock that waits for one name, and fails, has not changed the hold of the other name.
func TestMulti_FailedLockLeavesLeaseAndTokenOfAHold(t *testing.T) {
	for name, opts := range map[string][]relock.MutexOption{
		"fenced":     {relock.WithFencing(), relock.WithoutRenewal()},
		"not fenced": {relock.WithoutRenewal()},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
				c := relock.LocksOn(t, b.Client(t))
				locktest.RequireLocked(t, relock.LocksOn(t, b.Client(t)).Mutex("b"))
				a, both := c.Mutex("a", opts...), c.MultiMutex([]string{"a", "b"}, relock.WithTTL(24*time.Hour), relock.WithFencing())
				locktest.RequireLocked(t, a)
				deadline, _ := a.Deadline()
				token := a.FencingToken()
				before, err := a.State(t.Context())
				require.NoError(t, err)
				time.Sleep(time.Second)
				held, err := both.TryLock(t.Context())
				require.NoError(t, err)
				require.False(t, held)
				short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				require.ErrorIs(t, both.Lock(short), context.DeadlineExceeded)
				after, held := a.Deadline()
				require.True(t, held)
				require.Equal(t, deadline, after)
				require.Equal(t, token, a.FencingToken())
				state, err := a.State(t.Context())
				require.NoError(t, err)
				require.LessOrEqual(t, state.TTL, before.TTL-6*time.Second)
				locktest.RequireUnlocked(t, a)
			})
		})
	}
}

// The token of one name says nothing about the other one.
func TestMulti_HasNoTokenIfOneOfItsHoldsHasNone(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		c := relock.LocksOn(t, b.Client(t))
		a, both := c.Mutex("a", relock.WithFencing()), c.MultiMutex([]string{"a", "b"})
		locktest.RequireLocked(t, a)
		locktest.RequireLocked(t, both)
		require.NotZero(t, a.FencingToken())
		require.Zero(t, both.FencingToken())
		locktest.RequireUnlocked(t, both)
		locktest.RequireUnlocked(t, a)
	})
}

// The race detector is the judge.
func TestMulti_KeysLeaveAHoldBesideOtherCallsOfItsOwner(t *testing.T) {
	c, key := relock.LocksOn(t, redistest.Mini(t).Client(t)), redistest.Key(t)
	names := []string{key + "-1", key + "-2"}
	both, one := c.MultiMutex(names, relock.WithOwner("job")), c.Mutex(names[0], relock.WithOwner("job"))
	for range 200 {
		locktest.RequireLocked(t, both)
		locktest.RequireLocked(t, one)
		var calls sync.WaitGroup
		for _, call := range []func(){
			func() { assert.NoError(t, both.Unlock()) },
			func() { assert.NoError(t, one.Unlock()) },
			func() {
				for range 20 {
					one.Wanted(t.Context())
					both.Wanted(t.Context())
				}
			},
		} {
			calls.Go(call)
		}
		calls.Wait()
	}
}
