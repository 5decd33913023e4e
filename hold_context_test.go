package relock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

type plainKey struct{}

var errOver = errors.New("over")

// derived returns contexts of holds of their own, each derived from the one before.
func derived(t *testing.T, n int) []*holdContext {
	all := make([]*holdContext, n)
	ctx := t.Context()
	for i := range all {
		all[i] = newHoldContext(ctx, new(hold), new(keys.Set))
		ctx = context.WithValue(all[i], plainKey{}, i)
	}
	return all
}

func TestHoldContext_EndsWithItsParentOrByItself(t *testing.T) {
	for name, ends := range map[string]func(parent context.CancelCauseFunc, x *holdContext){
		"with its parent": func(parent context.CancelCauseFunc, _ *holdContext) { parent(errOver) },
		"by itself":       func(_ context.CancelCauseFunc, x *holdContext) { x.cancel(errOver) },
	} {
		t.Run(name, func(t *testing.T) {
			parent, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			x := newHoldContext(parent, new(hold), new(keys.Set))
			require.NoError(t, x.Err())
			ends(stop, x)
			<-x.Done()
			require.ErrorIs(t, x.Err(), context.Canceled)
			require.Equal(t, errOver, context.Cause(x))
			x.cancel(errors.New("again"))
			require.Equal(t, errOver, context.Cause(x), "the first cause stays")
		})
	}
}

func TestHoldContext_HasTheValuesOfItsParent(t *testing.T) {
	x := newHoldContext(context.WithValue(t.Context(), plainKey{}, "value"), new(hold), new(keys.Set))
	require.Equal(t, "value", x.Value(plainKey{}))
	x.cancel(nil)
}

func TestHoldContext_NearestIsFound(t *testing.T) {
	require.Nil(t, nearestHoldContext(t.Context()))
	all := derived(t, 3)
	defer all[0].cancel(nil)
	require.Nil(t, all[0].above)
	for i, x := range all {
		require.Same(t, x, nearestHoldContext(x))
		below, stop := context.WithCancel(x)
		require.Same(t, x, nearestHoldContext(below))
		stop()
		if i > 0 {
			require.Same(t, all[i-1], x.above)
		}
	}
}

// The watchdog may not have run yet, as after the machine was suspended.
func TestHoldContext_ErrLosesTheHoldsAboveToo(t *testing.T) {
	c := LocksOn(t, redistest.Mini(t).Client(t))
	ctx := t.Context()
	var above []*hold
	for i := range 3 {
		m := c.Mutex(fmt.Sprint(redistest.Key(t), i))
		locktest.RequireLocked(t, m)
		defer func() { _ = m.Unlock() }()
		ctx = m.Context(ctx)
		above = append(above, holdsOn(c.session, m.target.Keys[0])...)
	}
	require.NoError(t, ctx.Err())
	above[0].mu.Lock()
	endsAt(&above[0].lease, c.session.now())
	above[0].mu.Unlock()
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	require.ErrorIs(t, context.Cause(ctx), ErrLost)
	require.NoError(t, above[1].usable(), "only the context of the one below has ended")
}

func TestHoldContext_AllUpToAnotherEnd(t *testing.T) {
	for up := -1; up < 3; up++ {
		t.Run(fmt.Sprint(up), func(t *testing.T) {
			all := derived(t, 4)
			defer all[0].cancel(nil)
			var above *holdContext
			if up >= 0 {
				above = all[up]
			}
			all[3].endUpTo(above, errOver)
			for i, x := range all {
				require.Equal(t, i > up, x.Context.Err() != nil, i)
			}
		})
	}
}

// contexts returns so many that are in s, which end when the test is over.
func contexts(t *testing.T, s *contextSet, n int) []*holdContext {
	all := make([]*holdContext, n)
	for i := range all {
		all[i] = newHoldContext(t.Context(), new(hold), new(keys.Set))
		s.add(all[i])
	}
	t.Cleanup(func() {
		for _, x := range all {
			x.cancel(nil)
		}
	})
	return all
}

func TestHoldContext_IsForgottenLongBeforeItsHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s contextSet
		all := contexts(t, &s, 4)
		require.Len(t, s.all, 4)
		all[1].cancel(errOver)
		synctest.Wait()
		require.Len(t, s.all, 3)
		require.Equal(t, all[2:3], s.take(func(x *holdContext) bool { return x == all[2] }))
		require.ElementsMatch(t, []*holdContext{all[0], all[3]}, s.take(nil))
		require.Empty(t, s.all)
	})
}

func TestHoldContext_TakesThoseThatAreAgreedTo(t *testing.T) {
	for wanted := range 1 << 4 {
		var s contextSet
		all := contexts(t, &s, 4)
		var take, keep []*holdContext
		for i, x := range all {
			if wanted>>i&1 == 1 {
				take = append(take, x)
			} else {
				keep = append(keep, x)
			}
		}
		require.ElementsMatch(t, take, s.take(func(x *holdContext) bool { return slices.Contains(take, x) }))
		require.ElementsMatch(t, keep, s.take(nil))
	}
}

func TestHoldContext_IsForgottenInAnyOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s contextSet
		all := contexts(t, &s, 50)
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for i, x := range all {
			x.cancel(nil)
			synctest.Wait()
			require.Len(t, s.all, len(all)-i-1)
			require.NotContains(t, s.all, x)
		}
	})
}

func (s *contextSet) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// An askingContext asks the library in Err, as the context of a hold does.
type askingContext struct {
	context.Context
	ask func()
}

func (x askingContext) Err() error {
	x.ask()
	return x.Context.Err()
}

// unlocked unlocks m if the Lock that returned err has succeeded.
func unlocked(m *Mutex, err error) error {
	if err != nil {
		return err
	}
	return m.Unlock()
}

func TestContext_IsAskedWithoutAMutex(t *testing.T) {
	c, key := LocksOn(t, redistest.Mini(t).Client(t)), redistest.Key(t)
	names := []string{key + "-1", key + "-2", key + "-3"}
	both := c.MultiMutex(names[:2], WithOwner("job"))
	one, third := c.Mutex(names[0], WithOwner("job")), c.Mutex(names[2], WithOwner("job"))
	all := c.MultiMutex(names, WithOwner("job"))
	held := []*Mutex{both, third}
	for _, m := range held {
		locktest.RequireLocked(t, m)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	for which, parent := range map[string]context.Context{"live": t.Context(), "ended": ended} {
		ctx := askingContext{parent, func() { all.HoldCount() }}
		for what, call := range map[string]func(m *Mutex) error{
			"Lock":    func(m *Mutex) error { return unlocked(m, m.Lock(ctx)) },
			"TryLock": func(m *Mutex) error { _, err := m.TryLock(ctx); return unlocked(m, err) },
			"Do":      func(m *Mutex) error { return m.Do(ctx, func(ctx context.Context) error { return ctx.Err() }) },
			"State":   func(m *Mutex) error { _, err := m.State(ctx); return err },
			"Context": func(m *Mutex) error { return m.Context(ctx).Err() },
			"Wanted":  func(m *Mutex) error { m.Wanted(ctx); return parent.Err() },
		} {
			for kind, m := range map[string]*Mutex{"a hold": both, "a part of a hold": one, "two holds": all} {
				t.Run(which+"/"+what+" of "+kind, func(t *testing.T) {
					done := make(chan error, 1)
					go func() { done <- call(m) }()
					err := locktest.OutcomeOf(t, done)
					if parent.Err() == nil {
						require.NoError(t, err)
					}
				})
			}
		}
	}
	for _, m := range held {
		locktest.RequireUnlocked(t, m)
	}
}

// The context of Wanted is then that of a hold that has ended, or the caller's.
func TestWanted_AfterTheLossOfOneOfTheHolds(t *testing.T) {
	c, key := LocksOn(t, redistest.Mini(t).Client(t)), redistest.Key(t)
	names := []string{key + "-1", key + "-2"}
	all := c.MultiMutex(names, WithOwner("job"))
	locktest.RequireLocked(t, all)
	one := c.Mutex(names[0], WithOwner("job"))
	holdOf(one).lose(errForced)
	done := make(chan error, 1)
	go func() {
		<-one.Context(t.Context()).Done()
		one.Wanted(t.Context())
		done <- nil
	}()
	require.NoError(t, locktest.OutcomeOf(t, done))
	require.ErrorIs(t, all.Unlock(), ErrLost)
}
